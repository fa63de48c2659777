/** Metrics of Servers. */
import { Counter, Histogram, type Registry } from 'prom-client';
import { type LastAction, POWER_STATES, type Server } from '../../api/v1alpha1/server.ts';
import { exportLeaderGauge } from '../../kube/leadergauge.ts';

/** Upper bounds in seconds. A call ends after 10 s at the latest. */
const BUCKETS = [0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10];

export interface ServerView {
  readonly isLeader: () => boolean;
  readonly servers: () => readonly Readonly<Server>[];
}

export class ServerMetrics {
  readonly #actions: Counter<'action' | 'result'>;
  readonly #calls: Histogram<'controller' | 'call' | 'result'>;

  constructor(registry: Registry, view: ServerView) {
    const registers = [registry];
    exportLeaderGauge(registry, {
      name: 'berth_server_power',
      help: 'Power of each Server: 1 for its state On, Off, Rebooting or Error',
      labelNames: ['server', 'power'],
      isLeader: view.isLeader,
      count: (gauge) => {
        for (const { metadata, status } of view.servers()) {
          POWER_STATES.filter((state) => state === status?.power).forEach((state) =>
            gauge.set({ server: metadata.name, power: state }, 1),
          );
        }
      },
    });
    this.#actions = new Counter({
      name: 'berth_server_actions_total',
      help: 'Ended power actions by action and result',
      labelNames: ['action', 'result'],
      registers,
    });
    this.#calls = new Histogram({
      name: 'berth_server_controller_duration_seconds',
      help: 'Time of calls of the controllers of Servers',
      labelNames: ['controller', 'call', 'result'],
      buckets: BUCKETS,
      registers,
    });
  }

  /** Counts an action that has ended. */
  countAction({ action, result }: Pick<LastAction, 'action' | 'result'>): void {
    this.#actions.inc({ action, result });
  }

  /** Measures one call. @throws the error of the call */
  async measure<T>(
    { spec: { controller } }: Pick<Server, 'spec'>,
    name: string,
    call: () => Promise<T>,
  ): Promise<T> {
    const kind = controller.redfish ? 'redfish' : controller.ipmi ? 'ipmi' : 'webhook';
    const end = this.#calls.startTimer({ controller: kind, call: name });
    try {
      const result = await call();
      end({ result: 'answered' });
      return result;
    } catch (error) {
      end({ result: 'failed' });
      throw error;
    }
  }
}
