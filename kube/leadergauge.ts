import { Gauge, type Registry } from 'prom-client';

interface LeaderGauge<Label extends string> {
  readonly name: string;
  readonly help: string;
  readonly labelNames?: readonly Label[];
  readonly isLeader: () => boolean;
  /** Sets the values. */
  readonly count: (gauge: Gauge<Label>) => void;
}

/** Exports a gauge that only the leader counts, for each scrape. Otherwise a sum over all replicas would count each object several times. */
export function exportLeaderGauge<Label extends string>(
  registry: Registry,
  { name, help, labelNames = [], isLeader, count }: LeaderGauge<Label>,
): void {
  const gauge: Gauge<Label> = new Gauge({
    name,
    help,
    labelNames,
    registers: [registry],
    collect: () => {
      gauge.reset();
      if (isLeader()) {
        count(gauge);
      }
    },
  });
}
