/**
 * Watches a running hypervisor, and provides the connections to the hypervisor and to its guest agent. The agent perhaps started the
 * hypervisor before the agent's own restart.
 */
import type { ProcessIdentity } from '../../processes/process.ts';
import type { MachineFolder } from '../driver.ts';
import { ProcessWatch } from '../machineprocess.ts';
import { GuestAgent } from './guestagent.ts';
import { QmpConnection, QmpError, type QmpEvent } from './qmp.ts';
import { FILES } from './state.ts';

/**
 * Time limit to connect to a running QEMU. QEMU answers in milliseconds. The limit is longer, because another client can be connected for a
 * moment, for example the previous process of the agent, which is ending.
 */
const ADOPT_TIMEOUT_MILLISECONDS = 3_000;

/**
 * Shortest time between two inspections that the agent makes because QEMU reports a stop of the guest's processors. Without this limit, a
 * hostile hypervisor could cause inspections without end.
 */
const STOP_INTERVAL_MILLISECONDS = 1_000;

export interface HypervisorHandlers {
  /** Called with each event of QEMU, in order. */
  onEvent: (event: QmpEvent) => void;
  /** Called once, when the process has ended. */
  onExit: () => void;
}

export class Hypervisor extends ProcessWatch {
  readonly folder: MachineFolder;
  readonly guestAgent: GuestAgent;
  /**
   * Whether QEMU reported that it ends because of a signal. The run state does not show this, because it is `shutdown` after a signal and
   * also after the guest has powered off.
   */
  endsFromOutside = false;
  #qmp: QmpConnection | undefined;
  #connecting: Promise<QmpConnection> | undefined;
  #closed = false;
  #poweredOff = false;
  #nextStop = 0;
  readonly #handlers: HypervisorHandlers;

  constructor(folder: MachineFolder, identity: ProcessIdentity, handlers: HypervisorHandlers) {
    super(identity, handlers.onExit);
    this.folder = folder;
    this.guestAgent = new GuestAgent(folder.path);
    this.#handlers = handlers;
  }

  /** Records that the guest powered off. Returns true only at the first call, because a hypervisor can report a power-off many times. */
  powersOff(): boolean {
    const first = !this.#poweredOff;
    this.#poweredOff = true;
    return first;
  }

  /**
   * Records that QEMU stopped the guest's processors, and returns whether the caller must look at the run state. The result is false after
   * a power-off of the guest or a signal to QEMU, because the cause of the stop is known. The result is true at most once per second.
   */
  stops(): boolean {
    const now = performance.now();
    if (this.#poweredOff || this.endsFromOutside || now < this.#nextStop) {
      return false;
    }
    this.#nextStop = now + STOP_INTERVAL_MILLISECONDS;
    return true;
  }

  /**
   * Returns the connection to QEMU. If the connection was lost, the function connects again. @throws QmpError when QEMU does not answer.
   */
  async qmp(options?: { timeoutMilliseconds: number; signal: AbortSignal }): Promise<QmpConnection> {
    if (this.#qmp !== undefined && !this.#qmp.closed) {
      return this.#qmp;
    }
    this.#connecting ??= this.#connect(options ?? { timeoutMilliseconds: ADOPT_TIMEOUT_MILLISECONDS });
    try {
      return await this.#connecting;
    } finally {
      this.#connecting = undefined;
    }
  }

  override close(): void {
    super.close();
    this.#closed = true;
    this.#qmp?.close();
    this.guestAgent.close();
  }

  async #connect(options: { timeoutMilliseconds: number; signal?: AbortSignal }): Promise<QmpConnection> {
    const qmp = await QmpConnection.connect(this.folder.path, FILES.qmp, options);
    if (this.#closed) {
      qmp.close();
      throw new QmpError('The agent closed the connection to QEMU');
    }
    qmp.on('event', (event) => this.#handlers.onEvent(event));
    // The closed connection usually means that the process is about to end. Therefore it is checked now, before the next regular check.
    qmp.on('close', () => this.check());
    this.#qmp = qmp;
    return qmp;
  }
}
