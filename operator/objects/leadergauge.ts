import { Gauge, type Registry } from 'prom-client';

/**
 * Declares a gauge that only the leader exports. Otherwise a sum over all replicas would count each object several times. At each scrape,
 * `measure` sets all values of the gauge.
 */
export function leaderGauge<Label extends string>(
  registry: Registry,
  o: {
    readonly name: string;
    readonly help: string;
    readonly labelNames?: Label[];
    readonly isLeader: () => boolean;
    readonly measure: (gauge: Gauge<Label>) => void;
  },
): void {
  const { isLeader, measure, ...definition } = o;
  const collect = (): void => {
    gauge.reset();
    if (isLeader()) {
      measure(gauge);
    }
  };
  const gauge = new Gauge<Label>({ ...definition, registers: [registry], collect });
}
