/**
 * Checks the network of this host's machines at a fixed interval. Each check also repairs the network, and passes a report to `onReport`.
 */
import { isDeepStrictEqual } from 'node:util';
import type { Logger } from 'pino';
import { Counter, type Registry } from 'prom-client';
import { messageOf } from '../../base/errors.ts';
import { rest } from '../../base/time.ts';
import type { Network, NetworkHealth, NetworkReport } from './network.ts';

export interface MonitorOptions {
  network: Network;
  intervalMilliseconds: number;
  logger: Logger;
  metrics: Registry;
}

export class NetworkMonitor {
  /** Called after every check with the report of the check. */
  onReport: (report: NetworkReport) => void = () => undefined;
  readonly #options: MonitorOptions;
  readonly #repairs: Counter;
  readonly #checks: Counter<'result'>;
  readonly #refused: Counter;
  #report: NetworkReport | undefined;
  #running: Promise<NetworkReport> | undefined;
  #faultyChecks = 0;

  constructor(options: MonitorOptions) {
    this.#options = options;
    const registers = [options.metrics];
    this.#repairs = new Counter({
      name: 'berth_agent_network_repairs_total',
      help: 'Differences between the actual and the wanted network of this host that the agent has repaired.',
      registers,
    });
    this.#checks = new Counter({
      name: 'berth_agent_network_checks_total',
      help: 'Checks of the network of this host, by result.',
      labelNames: ['result'],
      registers,
    });
    this.#refused = new Counter({
      name: 'berth_agent_network_refused_packets_total',
      help: 'Dropped packets of guests that have as many connections as network.connectionsPerGuest allows.',
      registers,
    });
    for (const result of ['healthy', 'repaired', 'machine_faulty', 'faulty']) {
      this.#checks.inc({ result }, 0);
    }
  }

  /** Health of the shared parts of the network, as found by the last check; undefined before the first check. */
  get host(): NetworkHealth | undefined {
    const report = this.#report;
    return report === undefined
      ? undefined
      : {
          healthy: report.healthy,
          message: report.healthy ? 'Test packets reach their target' : report.faults.join('; '),
        };
  }

  /** Number of consecutive checks that found a fault in the shared parts of the network and could not repair it. */
  get faultyChecks(): number {
    return this.#faultyChecks;
  }

  /**
   * Starts a check, or waits for the check that is already running. The promise never rejects, because a failed check becomes a fault in
   * the report.
   */
  async check(): Promise<NetworkReport> {
    this.#running ??= this.#check().finally(() => {
      this.#running = undefined;
    });
    return await this.#running;
  }

  /**
   * Resolves with a report that includes this machine, or that shows a fault which affects all machines. A check that is already running
   * perhaps began before the machine was attached, so its report can lack the machine. If the report lacks the machine, the function runs a
   * second check. If the report shows a fault which affects all machines, the function runs no second check, because {@link faultyChecks}
   * would count the same fault twice.
   */
  async checkOf(uid: string): Promise<NetworkReport> {
    const report = await this.check();
    return report.healthy && report.machines[uid] === undefined ? await this.check() : report;
  }

  async run(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      await this.check();
      await rest(this.#options.intervalMilliseconds, signal);
    }
  }

  async #check(): Promise<NetworkReport> {
    const { network, logger } = this.#options;
    let report: NetworkReport;
    try {
      report = await network.check();
      if (report.faults.length > 0 && this.#areNew(report.faults)) {
        logger.error({ faults: report.faults }, 'The network has faults');
      }
    } catch (error) {
      const faults = [`The network could not be checked: ${messageOf(error)}`];
      if (this.#areNew(faults)) {
        logger.error({ err: error }, 'The check of the network failed');
      }
      report = { healthy: false, repaired: [], faults, machines: {}, refusedConnections: {} };
    }
    this.#count(report);
    this.#report = report;
    this.onReport(report);
    return report;
  }

  #count(report: NetworkReport): void {
    const { logger } = this.#options;
    this.#faultyChecks = report.healthy ? 0 : this.#faultyChecks + 1;
    this.#repairs.inc(report.repaired.length);
    if (report.repaired.length > 0) {
      logger.warn({ repaired: report.repaired }, 'The network was repaired');
    }
    this.#countRefused(report);
    const faults = report.faults.length > 0;
    const fine = report.repaired.length > 0 ? 'repaired' : 'healthy';
    // A host takes no VMs while its whole network is faulty. A fault of single machines has no such effect.
    const faulty = report.healthy ? 'machine_faulty' : 'faulty';
    this.#checks.inc({ result: faults ? faulty : fine });
  }

  /** Returns whether the last check had other faults. A fault can last for many checks, so it is logged only when it begins or changes. */
  #areNew(faults: readonly string[]): boolean {
    return !isDeepStrictEqual(faults, this.#report?.faults);
  }

  /**
   * Counts refused packets of guests. If consecutive checks find refused packets of the same guest, only the first of these checks writes a
   * line to the log.
   */
  #countRefused({ refusedConnections }: NetworkReport): void {
    for (const [uid, packets] of Object.entries(refusedConnections)) {
      this.#refused.inc(packets);
      if (this.#report?.refusedConnections[uid] === undefined) {
        const reported =
          'A guest lost packets, because it has as many connections as network.connectionsPerGuest allows';
        this.#options.logger.warn({ uid }, reported);
      }
    }
  }
}
