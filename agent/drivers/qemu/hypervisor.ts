/** This agent's hold on one running hypervisor, started by it or found: its QMP connection and the notice of its end. */
import { isAlive, type ProcessIdentity } from '../../machines/process.ts';
import type { MachineFolder } from '../driver.ts';
import type { ExitStatus } from './launch.ts';
import { QmpConnection, QmpError, type QmpEvent } from './qmp.ts';
import { FILES } from './state.ts';

/** The end of a found process shows itself at once by its QMP connection; this is for one whose QMP is lost. */
const LIVENESS_INTERVAL_MILLISECONDS = 1_000;
/** A QEMU that runs greets in milliseconds; another client, such as an agent about to end, may hold it a moment. */
const ADOPT_TIMEOUT_MILLISECONDS = 3_000;

export interface HypervisorHandlers {
  /** QEMU's events, in order. */
  onEvent: (event: QmpEvent) => void;
  /** Once, when the process is gone. */
  onExit: () => void;
}

export class Hypervisor {
  readonly folder: MachineFolder;
  readonly identity: ProcessIdentity;
  /** The hypervisor said that it ends, and not for its guest: by a signal. Its run state is `shutdown` then, as after a power-off. */
  endsFromOutside = false;
  #exitStatus: Promise<ExitStatus> | undefined;
  #qmp: QmpConnection | undefined;
  #connecting: Promise<QmpConnection> | undefined;
  #exitHandled = false;
  #closed = false;
  #poweredOff = false;
  readonly #handlers: HypervisorHandlers;
  readonly #timer: NodeJS.Timeout;

  constructor(folder: MachineFolder, identity: ProcessIdentity, handlers: HypervisorHandlers) {
    this.folder = folder;
    this.identity = identity;
    this.#handlers = handlers;
    this.#timer = setInterval(() => this.#check(), LIVENESS_INTERVAL_MILLISECONDS);
    this.#timer.unref();
  }

  /** The exit of a child is told by the system, with its status. */
  watch(exited: Promise<ExitStatus>): void {
    this.#exitStatus = exited;
    exited.then(
      () => this.#exited(),
      () => this.#exited(),
    );
  }

  /** Whoever ends the process writes down that it is gone: a notice that comes late would tell of the next one. */
  expectExit(): void {
    this.#exitHandled = true;
    clearInterval(this.#timer);
  }

  /** True once: a hypervisor may say again and again that its guest powered off. */
  powersOff(): boolean {
    const first = !this.#poweredOff;
    this.#poweredOff = true;
    return first;
  }

  /** Of a process that is gone; undefined for one that another agent started. */
  async exitStatus(): Promise<ExitStatus | undefined> {
    return await this.#exitStatus;
  }

  /** The connection, made again where it was lost. @throws QmpError when QEMU does not answer. */
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

  close(): void {
    this.#closed = true;
    clearInterval(this.#timer);
    this.#qmp?.close();
  }

  async #connect(options: { timeoutMilliseconds: number; signal?: AbortSignal }): Promise<QmpConnection> {
    const qmp = await QmpConnection.connect(this.folder.path, FILES.qmp, options);
    if (this.#closed) {
      qmp.close();
      throw new QmpError('the machine was let go of');
    }
    qmp.on('event', (event) => this.#handlers.onEvent(event));
    qmp.on('close', () => this.#check());
    this.#qmp = qmp;
    return qmp;
  }

  #check(): void {
    if (this.#closed || this.#exitHandled) {
      return;
    }
    isAlive(this.identity).then(
      (alive) => {
        if (!alive) {
          this.#exited();
        }
      },
      // What cannot be read now is read at the next interval.
      () => undefined,
    );
  }

  #exited(): void {
    if (this.#closed || this.#exitHandled) {
      return;
    }
    this.expectExit();
    this.#handlers.onExit();
  }
}
