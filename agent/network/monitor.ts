/** Checks the host's network again and again, which repairs it, and passes on each report. */
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
  /** Called after every check with its report. */
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
      help: 'Repaired differences in the network of this host.',
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
      help: 'Packets of guests dropped because the guest has as many connections as network.connectionsPerGuest allows.',
      registers,
    });
    for (const result of ['healthy', 'repaired', 'faulty']) {
      this.#checks.inc({ result }, 0);
    }
  }

  /** The host-wide part as last seen; undefined before the first look. */
  get host(): NetworkHealth | undefined {
    const report = this.#report;
    return report === undefined
      ? undefined
      : {
          healthy: report.healthy,
          message: report.healthy ? 'packets go through' : report.faults.join('; '),
        };
  }

  /** Looks in a row that found the host-wide part beyond repair. */
  get faultyChecks(): number {
    return this.#faultyChecks;
  }

  /** One check now, or the one that is under way. Never rejects: a check that breaks is a fault. */
  async check(): Promise<NetworkReport> {
    this.#running ??= this.#check().finally(() => {
      this.#running = undefined;
    });
    return await this.#running;
  }

  /** A check that has looked at this machine too: the one under way may have begun before it was attached. */
  async checkOf(uid: string): Promise<NetworkReport> {
    const report = await this.check();
    return report.machines[uid] === undefined ? await this.check() : report;
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
    } catch (error) {
      logger.error({ err: error }, 'network check failed');
      const message = messageOf(error);
      const nothing = { repaired: [], refusedConnections: {} };
      report = { ...nothing, healthy: false, faults: [message], machines: this.#report?.machines ?? {} };
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
      logger.warn({ repaired: report.repaired }, 'network repaired');
    }
    this.#countRefused(report);
    const faults = report.faults.length > 0;
    // A fault lasts for many checks; it is told when it comes and when it changes.
    if (faults && !isDeepStrictEqual(report.faults, this.#report?.faults)) {
      logger.error({ faults: report.faults }, 'network faulty');
    }
    const fine = report.repaired.length > 0 ? 'repaired' : 'healthy';
    this.#checks.inc({ result: faults ? 'faulty' : fine });
  }

  /** A guest that goes on trying is told once, until it has rested for a check. */
  #countRefused({ refusedConnections }: NetworkReport): void {
    for (const [uid, packets] of Object.entries(refusedConnections)) {
      this.#refused.inc(packets);
      if (this.#report?.refusedConnections[uid] === undefined) {
        const setting = 'network.connectionsPerGuest';
        this.#options.logger.warn({ uid, setting }, 'a guest has all the connections it may have');
      }
    }
  }
}
