/**
 * The QEMU mode of the stand-in for `tart`: the guest of a machine is a real one, in QEMU in place of the hypervisor of macOS. Each guest has an
 * address of its own in the loopback network, at which its SSH server and its web server are reached.
 */
import { type ChildProcessByStdio, spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import type { Readable, Writable } from 'node:stream';
import { setTimeout as delay } from 'node:timers/promises';

const QEMU = 'qemu-system-x86_64';
const MEBIBYTE = 1024 ** 2;
/** Ports of the guest that are reached at its address. */
const PORTS = [22, 80];
/** Time between two questions whether QEMU has written or read the memory of the guest. */
const LOOK_MILLISECONDS = 50;

export interface GuestMachine {
  disk: string;
  /** Disks that the guest can only read. */
  drives: readonly string[];
  cpuCount: number;
  /** Memory in bytes. */
  memorySize: number;
  macAddress: string;
  address: string;
  /** File with the memory from which the guest continues. Undefined if it boots. */
  memory: string | undefined;
}

interface Reply {
  return?: unknown;
  error?: { desc: string };
  event?: string;
  data?: { guest?: boolean };
}

/** Returns the address of a machine's guest. */
export function loopbackAddress(name: string): string {
  const [first = 0, ...others] = createHash('sha256').update(name).digest();
  return ['127', 64 + (first % 64), ...others.slice(0, 2)].join('.');
}

export class QemuGuest {
  /** Resolves when QEMU has ended, with whether the guest has shut down by itself. */
  readonly ended: Promise<boolean>;
  readonly #qemu: ChildProcessByStdio<Writable, Readable, null>;
  readonly #waiting: PromiseWithResolvers<unknown>[] = [];
  #isOfGuest = false;

  private constructor(qemu: ChildProcessByStdio<Writable, Readable, null>) {
    this.#qemu = qemu;
    qemu.stdin.on('error', () => undefined);
    const lines = createInterface({ input: qemu.stdout });
    lines.on('line', (line) => this.#take(JSON.parse(line) as Reply));
    this.ended = Promise.all([once(qemu, 'exit'), once(lines, 'close')]).then(() => {
      this.#waiting.forEach(({ reject }) => reject(new Error('QEMU has ended')));
      return this.#isOfGuest;
    });
  }

  /** Starts QEMU, which ends with this process. Resolves when the guest runs. */
  static async start(machine: GuestMachine): Promise<QemuGuest> {
    const command = ['--pdeathsig', 'KILL', QEMU, ...options(machine)];
    const qemu = spawn('setpriv', command, { stdio: ['pipe', 'pipe', 'inherit'] });
    const guest = new QemuGuest(qemu);
    await guest.#do('qmp_capabilities');
    if (machine.memory !== undefined) {
      await guest.#until('query-status', ({ status }) => status !== 'inmigrate');
      await guest.#do('cont');
    }
    return guest;
  }

  /** Presses the power button. */
  async press(): Promise<void> {
    await this.#do('system_powerdown');
  }

  /** Takes the power away. */
  async cut(): Promise<void> {
    // QEMU ends, perhaps before it answers.
    await this.#do('quit').catch(() => undefined);
  }

  /** Stops the guest, and writes its memory to a file. */
  async save(path: string): Promise<void> {
    await this.#do('stop');
    await this.#do('migrate', { uri: `exec:cat >${path}.new && mv ${path}.new ${path}` });
    await this.#until('query-migrate', ({ status }) => status === 'completed' || status === 'failed');
  }

  async #until(command: string, isReached: (answer: { status?: string }) => boolean): Promise<void> {
    while (!isReached((await this.#do(command)) as { status?: string })) {
      await delay(LOOK_MILLISECONDS);
    }
  }

  async #do(execute: string, parameters?: object): Promise<unknown> {
    const answer = Promise.withResolvers<unknown>();
    this.#waiting.push(answer);
    this.#qemu.stdin.write(`${JSON.stringify({ execute, arguments: parameters })}\n`);
    return await answer.promise;
  }

  #take({ event, data, return: value, error }: Reply): void {
    if (event === 'SHUTDOWN') {
      this.#isOfGuest = data?.guest === true;
    } else if (error !== undefined) {
      this.#waiting.shift()?.reject(new Error(error.desc));
    } else if (value !== undefined) {
      this.#waiting.shift()?.resolve(value);
    }
  }
}

function options({
  disk,
  drives,
  cpuCount,
  memorySize,
  macAddress,
  address,
  memory,
}: GuestMachine): string[] {
  const forwards = PORTS.map((port) => `hostfwd=tcp:${address}:${port}-:${port}`).join(',');
  const card = `virtio-net-pci,netdev=net,mac=${macAddress},romfile=`;
  const plain = ['-nodefaults', '-no-user-config', '-display', 'none', '-serial', 'null'];
  const size = ['-smp', String(cpuCount), '-m', `${Math.floor(memorySize / MEBIBYTE)}M`];
  const monitor = ['-chardev', 'stdio,id=monitor,signal=off', '-mon', 'chardev=monitor,mode=control'];
  const network = ['-netdev', `user,id=net,ipv6=off,${forwards}`, '-device', card];
  const disks = [
    `file=${disk},format=raw,if=virtio`,
    ...drives.map((file) => `file=${file},format=raw,if=virtio,readonly=on`),
  ];
  return [
    ...plain,
    '-machine',
    'q35,accel=tcg',
    '-cpu',
    'max',
    ...size,
    ...monitor,
    ...disks.flatMap((drive) => ['-drive', drive]),
    ...network,
    ...(memory === undefined ? [] : ['-incoming', `exec:cat ${memory}`]),
  ];
}
