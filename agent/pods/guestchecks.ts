/** Runs all regular checks of running guests: the checks of guest agents, of readiness, and of the boot of emulators. */
import { type Pod } from '../../kube/core.ts';
import { askBooted } from '../drivers/emulator/adb.ts';
import { driverOfVM } from '../drivers/hostdrivers.ts';
import { BootPoller } from './bootpoller.ts';
import { GuestPoller } from './guestpoller.ts';
import type { Host } from './host.ts';
import type { Runtime } from './machine.ts';
import { ReadinessProber } from './readiness.ts';

export class GuestChecks {
  readonly #host: Pick<Host, 'forwardAddress'>;
  readonly #poller: GuestPoller;
  readonly #prober: ReadinessProber;
  readonly #boots: BootPoller;
  /** Machines that this agent has seen without a process. */
  readonly #stood = new WeakSet<Runtime>();

  /** `changed` is called with a machine's uid when the result of a check has changed. */
  constructor(host: Host, changed: (uid: string) => void) {
    this.#host = host;
    this.#prober = new ReadinessProber(changed);
    this.#boots = new BootPoller({
      ask: askBooted,
      booted: (record) => host.records.update(record, { booted: true }),
      changed,
      onError: (uid, error) =>
        host.logger.error(
          { uid, err: error },
          'The record of a machine could not be changed to tell that its Android has booted',
        ),
    });
    this.#poller = new GuestPoller({
      ask: async ({ record, folder }, question) => await driverOfVM(host, record).askGuest(folder, question),
      changed,
      onError: (uid, error) => host.logger.debug({ uid, err: error }, 'A request to a guest agent failed'),
    });
  }

  /**
   * If the Pod's machine runs, starts its checks. Otherwise ends the checks. If the machine continued to run during a restart of the agent,
   * the Pod's last report applies until the first results. If the agent has seen the machine stopped, the report is ignored, because the
   * cached Pod can contain an old report for some time.
   */
  follow(pod: Readonly<Pod>, runtime: Runtime): void {
    if (runtime.state.kind !== 'running') {
      this.#stood.add(runtime);
    }
    const { status: _status, ...unreported } = pod;
    const known = this.#stood.has(runtime) ? unreported : pod;
    if (runtime.record.emulator !== undefined) {
      this.#boots.follow(known, runtime);
      return;
    }
    this.#poller.follow(known, runtime);
    this.#prober.follow(known, runtime, this.#host.forwardAddress);
  }

  /** Ends the checks of a machine whose Pod no longer exists, because the machine's address might soon belong to another machine. */
  forget(uid: string): void {
    this.#poller.forget(uid);
    this.#prober.forget(uid);
    this.#boots.forget(uid);
  }

  close(): void {
    this.#poller.close();
    this.#prober.close();
    this.#boots.close();
  }
}
