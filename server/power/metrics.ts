/** Metrics of the power API. */
import { Counter, Gauge, type Registry } from 'prom-client';

export type PowerMetrics = ReturnType<typeof powerMetrics>;

/** Declares the metrics. `lockedSources` and `waitingChecks` return the present numbers. */
export function powerMetrics(
  registry: Registry,
  { lockedSources, waitingChecks }: { lockedSources: () => number; waitingChecks: () => number },
) {
  const registers = [registry];
  // oxlint-disable-next-line no-new -- The registry keeps the gauge.
  new Gauge({
    name: 'berth_power_locked_sources',
    help: 'Sources that get no answer from the power API, because of too many failed sign-ins',
    registers,
    collect() {
      this.set(lockedSources());
    },
  });
  // oxlint-disable-next-line no-new -- The registry keeps the gauge.
  new Gauge({
    name: 'berth_power_waiting_password_checks',
    help: 'Passwords of callers of the power API that wait to be checked',
    registers,
    collect() {
      this.set(waitingChecks());
    },
  });
  return {
    requests: new Counter({
      name: 'berth_power_requests_total',
      help: 'Requests to the power API, by kind of request and status code of the answer (none for a locked-out source)',
      labelNames: ['request', 'code'] as const,
      registers,
    }),
    lockouts: new Counter({
      name: 'berth_power_lockouts_total',
      help: 'Sources that this replica of the power API has locked out',
      registers,
    }),
  };
}
