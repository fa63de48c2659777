/** Connects streams to a running QEMU machine: its serial console, its screen, and ports of its guest. */
import type { Duplex } from 'node:stream';
import { hasCode, undefinedIf } from '../../../base/errors.ts';
import { connectTo, withSocketPath } from '../../processes/socket.ts';
import { type MachineFolder, type PortForward, StreamRefused } from '../driver.ts';
import type { QemuMachine } from './machine.ts';
import { FILES } from './state.ts';

const NOT_RUNNING = 'The machine does not run';

export class MachineStreams {
  readonly #folder: MachineFolder;
  readonly #machine: QemuMachine;

  constructor(folder: MachineFolder, machine: QemuMachine) {
    this.#folder = folder;
    this.#machine = machine;
  }

  async connectConsole(_: { input: boolean }): Promise<Duplex> {
    throw new StreamRefused('The machine has no console for input');
  }

  async connectScreen(): Promise<Duplex> {
    return await this.#connect(FILES.vnc, 'The machine has no screen: vnc.enabled is false');
  }

  async forwardPort(_: number): Promise<PortForward> {
    throw new StreamRefused('The machine cannot forward ports');
  }

  /** Connects to a socket of the hypervisor. @throws StreamRefused with the text `without` when the hypervisor has no such socket. */
  async #connect(name: string, without: string): Promise<Duplex> {
    if ((await this.#machine.process()) === undefined) {
      throw new StreamRefused(NOT_RUNNING);
    }
    const { path } = this.#folder;
    const isClosed = hasCode('ENOENT', 'ECONNREFUSED', 'EAGAIN');
    const socket = await undefinedIf(isClosed, withSocketPath(path, name, connectTo));
    if (socket === undefined) {
      throw new StreamRefused(without);
    }
    return socket;
  }
}
