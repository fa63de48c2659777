/** Connects streams to a running QEMU machine: its serial console, its screen, and ports of its guest. */
import { once } from 'node:events';
import { open, rm } from 'node:fs/promises';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import { join } from 'node:path';
import type { Duplex } from 'node:stream';
import type { Logger } from 'pino';
import * as z from 'zod';
import { SCREENSHOT_BYTES } from '../../../api/v1alpha1/names.ts';
import type { RunAs } from '../../../base/exec.ts';
import { hasCode, undefinedIf } from '../../../base/errors.ts';
import { Serial } from '../../../base/concurrency.ts';
import { connectTerminal, SharedConsole } from '../../console/terminal.ts';
import { connectTo, type ProcessIdentity, withSocketPath } from '../../processes/process.ts';
import {
  type MachineFolder,
  NO_SCREEN,
  NOT_RUNNING,
  PICTURE_BUSY,
  type PortForward,
  type Reserve,
  StreamRefused,
} from '../driver.ts';
import { NETWORK } from './arguments.ts';
import type { QemuMachine } from './machine.ts';
import { type QmpConnection, QmpError } from './qmp.ts';
import { FILES } from './state.ts';

/** Loopback address on which QEMU listens. Other hosts cannot reach this address. */
const ADDRESS = '127.0.0.1';
/**
 * Largest number of forwards of one machine: the largest number of the machine's streams, because a stream needs at most one forward, and one
 * for the check of its readiness.
 */
const FORWARDS = 17;
/**
 * Largest number of attempts to open a host port. Another program can take a free port before QEMU does, but this hardly happens three
 * times in a row.
 */
const ATTEMPTS = 3;
/** Limit of the text of QEMU's error. Normally this text is one sentence. */
const ERROR_LIMIT_CHARACTERS = 300;

const BUSY =
  'Another user types into this console. To read the output only, attach without input. To send input, wait until the other user has left';

export class MachineStreams {
  readonly forwards: PortForwards;
  readonly #folder: MachineFolder;
  readonly #machine: QemuMachine;
  readonly #console = new SharedConsole(async () => await this.#connectTerminal());
  readonly #screens = new Set<Socket>();
  #isPictured = false;

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

  /** Returns a picture of the screen. @throws StreamRefused as {@link DriverOfVMs.screenshot} does. */
  async screenshot(reserve: Reserve): Promise<Buffer> {
    await this.#requireProcess();
    const { launched } = (await this.#machine.state.read()) ?? {};
    const qmp = await (await this.#machine.hypervisor())?.qmp();
    if (launched?.screen.card === undefined || qmp === undefined) {
      throw new StreamRefused(launched?.screen.card === undefined ? NO_SCREEN : NOT_RUNNING);
    }
    if (this.#isPictured) {
      throw new StreamRefused(PICTURE_BUSY);
    }
    this.#isPictured = true;
    try {
      return await this.#picture(qmp, launched.runAs, reserve);
    } finally {
      this.#isPictured = false;
    }
  }

  /**
   * Lets QEMU write the picture into a file that the agent has made, because QEMU may make none in the machine's folder. The agent reads the
   * file that it has open, whatever its name then leads to.
   */
  async #picture(qmp: QmpConnection, runAs: RunAs | undefined, reserve: Reserve): Promise<Buffer> {
    const path = join(this.#folder.path, FILES.picture);
    await rm(path, { force: true });
    await using file = await open(path, 'wx+', 0o600);
    try {
      if (runAs !== undefined && process.getuid?.() === 0) {
        await file.chown(runAs.uid, runAs.gid);
      }
      await qmp.execute('screendump', { filename: FILES.picture, format: 'png' });
      const { size } = await file.stat();
      if (size > SCREENSHOT_BYTES) {
        throw new StreamRefused(
          `The picture has ${size} bytes, and at most ${SCREENSHOT_BYTES} are possible`,
        );
      }
      if (!reserve(size)) {
        throw new StreamRefused(`The picture has ${size} bytes, for which the host has no memory now`);
      }
      const { buffer, bytesRead } = await file.read(Buffer.alloc(size), 0, size, 0);
      return buffer.subarray(0, bytesRead);
    } catch (error) {
      throw error instanceof QmpError ? new StreamRefused(`QEMU made no picture: ${error.message}`) : error;
    } finally {
      await rm(path, { force: true });
    }
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
      throw new StreamRefused(NOT_RUNNING);
    }
    return terminal;
  }

  async #requireProcess(): Promise<ProcessIdentity> {
    const identity = await this.#machine.process();
    if (identity === undefined) {
      throw new StreamRefused(NOT_RUNNING);
    }
    return identity;
  }
}

/**
 * Forwards ports of the host's loopback address to a guest whose network is inside QEMU. Each forward exists as long as one stream uses it.
 */
class PortForwards {
  readonly #uid: string;
  readonly #machine: QemuMachine;
  readonly #logger: Logger;
  readonly #serial = new Serial();
  /** QEMU process that opened the host ports. When this process ends, the kernel closes these ports. */
  #process: ProcessIdentity | undefined;
  readonly #open = new Set<number>();
  /** Host ports to remove, for example because the agent opened them before its restart, or because their removal failed. */
  readonly #unwanted = new Set<number>();

  constructor(uid: string, machine: QemuMachine, logger: Logger) {
    this.#uid = uid;
    this.#machine = machine;
    this.#logger = logger;
  }

  /** Opens a host port that leads to the port `guestPort` of the guest. @throws StreamRefused as {@link Driver.forwardPort} does. */
  async open(guestPort: number): Promise<PortForward> {
    return await this.#serial.run(async () => {
      await this.#removeUnwanted();
      const qmp = await this.#qmp();
      const owner = this.#process;
      if (owner === undefined || qmp === undefined) {
        throw new StreamRefused(NOT_RUNNING);
      }
      if (this.#open.size >= FORWARDS) {
        throw new StreamRefused(
          `The machine already has ${FORWARDS} forwarded ports, which is the limit. First close another stream to a port of the machine`,
        );
      }
      const port = await this.#add(qmp, guestPort);
      return { port, close: async () => await this.#close(port, owner) };
    });
  }

  /**
   * Removes host ports that are no longer needed. The agent opened them before its restart, or their removal failed. An error is only
   * logged, because the next call tries again.
   */
  async tidy(): Promise<void> {
    if (this.#process === undefined || this.#unwanted.size > 0) {
      await this.#serial.run(async () => await this.#tryRemoveUnwanted());
    }
  }

  async #add(qmp: QmpConnection, guestPort: number): Promise<number> {
    let answer = '';
    for (let attempt = 1; attempt <= ATTEMPTS; attempt += 1) {
      const port = await freePort();
      // The host port is written into the state file before QEMU opens the port. So if the agent dies, the agent removes the port after its
      // restart.
      this.#unwanted.add(port);
      await this.#note();
      answer = await command(qmp, `hostfwd_add ${NETWORK} tcp:${ADDRESS}:${port}-:${guestPort}`);
      this.#unwanted.delete(port);
      if (answer === '') {
        this.#open.add(port);
        return port;
      }
    }
    await this.#note();
    const why = answer.slice(0, ERROR_LIMIT_CHARACTERS);
    throw new StreamRefused(`The hypervisor cannot forward port ${guestPort} of the guest: ${why}`);
  }

  async #close(port: number, owner: ProcessIdentity): Promise<void> {
    await this.#serial.run(async () => {
      if (isSame(owner, this.#process) && this.#open.delete(port)) {
        this.#unwanted.add(port);
        await this.#tryRemoveUnwanted();
      }
    });
  }

  async #tryRemoveUnwanted(): Promise<void> {
    try {
      await this.#removeUnwanted();
    } catch (error) {
      this.#logger.warn({ uid: this.#uid, err: error }, 'A forwarded port of a machine could not be removed');
    }
  }

  async #removeUnwanted(): Promise<void> {
    const now = await this.#machine.process();
    if (!isSame(now, this.#process)) {
      // The machine now has a different QEMU process. The ports of the previous process closed when that process ended. So the only ports
      // to remove are those in the state file. The agent opened them before its restart, in the present QEMU process.
      const { forwards = [] } = (await this.#machine.state.read()) ?? {};
      this.#process = now;
      this.#open.clear();
      this.#unwanted.clear();
      forwards.forEach((port) => this.#unwanted.add(port));
    }
    const qmp = this.#unwanted.size === 0 ? undefined : await this.#qmp();
    if (qmp !== undefined) {
      for (const port of this.#unwanted) {
        await command(qmp, `hostfwd_remove ${NETWORK} tcp:${ADDRESS}:${port}`);
      }
      this.#unwanted.clear();
      await this.#note();
    }
  }

  async #qmp(): Promise<QmpConnection | undefined> {
    return await (await this.#machine.hypervisor())?.qmp();
  }

  /** Writes all ports that are perhaps open into the state file. */
  async #note(): Promise<void> {
    const forwards = [...this.#open, ...this.#unwanted];
    await this.#machine.state.update({ forwards: forwards.length === 0 ? undefined : forwards });
  }
}

/**
 * Executes a command of QEMU's human monitor, because QMP cannot forward a port. Returns the command's output, which is empty after a
 * success.
 */
async function command(qmp: QmpConnection, line: string): Promise<string> {
  return (await qmp.ask('human-monitor-command', z.string(), { 'command-line': line })).trim();
}

function isSame(one: ProcessIdentity | undefined, other: ProcessIdentity | undefined): boolean {
  return one?.pid === other?.pid && one?.startTime === other?.startTime && one?.bootId === other?.bootId;
}

/**
 * Returns a port that is free now. The kernel chooses the port from its range for outgoing connections. VMs rarely use a `hostPort` in this
 * range, so the chosen port seldom conflicts with a `hostPort`.
 */
async function freePort(): Promise<number> {
  const server = createServer().listen(0, ADDRESS);
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, 'close');
  return port;
}
