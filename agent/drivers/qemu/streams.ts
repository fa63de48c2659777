/** Connects streams to a running QEMU machine: its serial console, its screen, and ports of its guest. */
import type { Duplex } from 'node:stream';
import type { Socket } from 'node:net';
import type { Logger } from 'pino';
import { hasCode, undefinedIf } from '../../../base/errors.ts';
import { SharedConsole } from '../../console/shared.ts';
import { connectTerminal } from '../../console/terminal.ts';
import type { ProcessIdentity } from '../../processes/process.ts';
import { connectTo, withSocketPath } from '../../processes/socket.ts';
import { type MachineFolder, StreamRefused } from '../driver.ts';
import { PortForwards } from './forwards.ts';
import type { QemuMachine } from './machine.ts';
import { FILES } from './state.ts';

const NO_CONSOLE =
  'This console accepts no input, because an earlier release of the agent started the machine. Restart the machine';
const BUSY =
  'Another user types into this console. To read the output only, attach without input. To send input, wait until the other user has left';
const NO_SCREEN = 'This machine has no screen. Set vnc.enabled to true, and restart the machine';

export class MachineStreams {
  readonly forwards: PortForwards;
  readonly #folder: MachineFolder;
  readonly #machine: QemuMachine;
  readonly #console = new SharedConsole(async () => await this.#connectTerminal());
  readonly #screens = new Set<Socket>();

  constructor(folder: MachineFolder, machine: QemuMachine, logger: Logger) {
    this.#folder = folder;
    this.#machine = machine;
    this.forwards = new PortForwards(folder.uid, machine, logger);
  }

  async connectConsole(options: { input: boolean }): Promise<Duplex> {
    const stream = await this.#console.open(options);
    if (stream === undefined) {
      throw new StreamRefused(BUSY);
    }
    return stream;
  }

  async connectScreen(): Promise<Duplex> {
    await this.#requireProcess();
    const attempt = withSocketPath(this.#folder.path, FILES.vnc, connectTo);
    const screen = await undefinedIf(hasCode('ENOENT', 'ECONNREFUSED'), attempt);
    if (screen === undefined) {
      throw new StreamRefused(NO_SCREEN);
    }
    // This listener is added at once, because an error can come before the caller listens. An error that nobody handles would end the
    // agent.
    screen.on('error', () => undefined);
    this.#screens.add(screen);
    screen.once('close', () => this.#screens.delete(screen));
    return screen;
  }

  /** Ends the streams. The guest is not affected. */
  close(): void {
    this.#console.close();
    for (const screen of this.#screens) {
      screen.destroy();
    }
  }

  async #connectTerminal(): Promise<Duplex> {
    const { pid, startTime } = await this.#requireProcess();
    const isRunning = async (): Promise<boolean> => {
      const now = await this.#machine.process();
      return now?.pid === pid && now.startTime === startTime;
    };
    const terminal = connectTerminal(this.#folder.path, isRunning);
    if (terminal === undefined) {
      throw new StreamRefused(NO_CONSOLE);
    }
    return terminal;
  }

  async #requireProcess(): Promise<ProcessIdentity> {
    const identity = await this.#machine.process();
    if (identity === undefined) {
      throw new StreamRefused('The machine does not run');
    }
    return identity;
  }
}
