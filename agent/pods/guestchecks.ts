/** All regular checks of running guests: of their guest agents, and of their readiness. */
import { type Pod } from '../../kube/core.ts';
import { driverOf } from '../drivers/hostdrivers.ts';
import { GuestPoller } from './guestpoller.ts';
import type { Host } from './host.ts';
import type { Runtime } from './machine.ts';
import { ReadinessProber } from './readiness.ts';

export class GuestChecks {
  readonly #host: Pick<Host, 'forwardAddress'>;
  readonly #poller: GuestPoller;
  readonly #prober: ReadinessProber;

  /** `changed` is called with a machine's uid when the result of a check has changed. */
  constructor(host: Host, changed: (uid: string) => void) {
    this.#host = host;
    this.#prober = new ReadinessProber(changed);
    this.#poller = new GuestPoller({
      ask: async ({ record, folder }, question) => await driverOf(host, record).askGuest(folder, question),
      changed,
      onError: (uid, error) => host.logger.debug({ uid, err: error }, 'A guest agent could not be asked'),
    });
  }

  /** If the Pod's machine runs, starts its checks, else ends them. */
  follow(pod: Readonly<Pod>, runtime: Runtime): void {
    this.#poller.follow(pod, runtime);
    this.#prober.follow(pod, runtime, this.#host.forwardAddress);
  }

  close(): void {
    this.#poller.close();
    this.#prober.close();
  }
}
