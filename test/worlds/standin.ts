/**
 * Stand-ins for the parts that run machines on a host. They have no hypervisor, disks or network, only the folder of each machine. Tests use them to check the
 * agent's reports to the API server and the order of its work. Other tests check QEMU itself.
 */
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { mkdir, readFile, rm, writeFile } from 'node:fs/promises';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { type Duplex, PassThrough } from 'node:stream';
import {
  type Accelerator,
  type CopyOptions,
  type DiskCopy,
  type DriverOfVMs,
  type ExitReason,
  type FoundMachine,
  type GuestAnswer,
  type GuestCommand,
  type GuestCommandResult,
  type LaunchPlan,
  type MachineFolder,
  type MachinePlan,
  type MachineState,
  type PortForward,
  StreamRefused,
  type DiskSnapshot,
} from '../../agent/drivers/driver.ts';
import { SharedConsole } from '../../agent/console/terminal.ts';
import type { BaseImage } from '../../agent/disks/disk.ts';
import type { AskedImage, ImageStore } from '../../agent/images/store.ts';
import type { Holder } from '../../agent/images/local/holders.ts';
import type {
  AttachOptions,
  GuestNetwork,
  NamespaceNetwork,
  NamespaceOptions,
  Network,
  NetworkReport,
} from '../../agent/network/network.ts';
import { ReasonedError } from '../../api/v1alpha1/reasons.ts';
import type { MachineImageSource } from '../../api/v1alpha1/source.ts';

/** Largest number of forwards of a machine. Machines of QEMU have the same limit. */
const FORWARDS = 17;
const SECTOR_BYTES = 512;
/** Its path is that of this file, because the agent checks before each start of a machine that it can read the image. */
const IMAGE: BaseImage = {
  path: import.meta.filename,
  digest: 'sha256:0',
  format: 'raw',
  virtualSizeBytes: 1024,
};

/** A guest's report of itself, as in the tests with QEMU. It has the number of boots from this disk, an id of the boot, and a note. */
interface Guest {
  boots: string;
  boot_id: string;
  marker: string;
}

/** A driver whose machines are entries of a map. Like a host, the object outlives the agents that use it one after another. */
export class StandInDriver implements DriverOfVMs {
  readonly name: string = 'standin';
  readonly machines = new Map<string, MachineState>();
  /** Data that guests keep on their disks, for machines with a disk. */
  readonly #disks = new Map<string, Guest>();
  /** Content of snapshots, by their uids. */
  readonly #snapshots = new Map<string, Guest>();
  readonly findSnapshot = async () => await Promise.resolve(undefined);
  readonly snapshotBytes = async () => await Promise.resolve(0);
  readonly requireMemory = async () => await Promise.resolve();
  readonly mergeLayers = async () => await Promise.resolve(true);
  readonly #paths = new Map<string, string>();
  readonly #consoles = new Map<string, SharedConsole>();
  readonly #forwards = new Set<Server>();
  /** All calls, for example `start UID`. */
  readonly calls: string[] = [];
  /** Whether the guest ignores its power button. */
  deaf = false;
  /** Answer of all guest agents. */
  guestAnswer: GuestAnswer = { kind: 'silent' };
  /** Error that the next start throws. */
  startError: Error | undefined;
  /** Error that each start from memory throws. */
  memoryError: Error | undefined;
  #handlers: ((uid: string) => void)[] = [];

  async probe(): Promise<Accelerator[]> {
    return [
      { architecture: 'amd64', accelerator: 'standin' },
      { architecture: 'arm64', accelerator: 'standin' },
    ];
  }

  async create(folder: MachineFolder, plan: MachinePlan, base: BaseImage | undefined): Promise<void> {
    await mkdir(folder.path, { recursive: true });
    this.#set('create', folder, { kind: 'stopped' });
    this.#disks.delete(folder.uid);
    const size = 'vm' in plan.guest ? plan.guest.diskSizeBytes : undefined;
    if (base !== undefined || size !== undefined) {
      this.#disks.set(folder.uid, { boots: '0', boot_id: '', marker: '' });
    }
  }

  async start(folder: MachineFolder, _plan: LaunchPlan): Promise<void> {
    if (this.machines.get(folder.uid)?.kind === 'running') {
      return;
    }
    const error = this.startError;
    if (error !== undefined) {
      this.startError = undefined;
      throw error;
    }
    this.#set('start', folder, { kind: 'running', pid: 1, guestStarted: true, paused: false });
    const guest = this.#disks.get(folder.uid);
    if (guest !== undefined) {
      Object.assign(guest, { boots: String(Number(guest.boots) + 1), boot_id: randomUUID() });
    }
  }

  async startFromMemory(folder: MachineFolder, plan: LaunchPlan): Promise<void> {
    const error = this.memoryError;
    if (error !== undefined) {
      throw error;
    }
    this.calls.push(`startFromMemory ${folder.uid}`);
    await this.start(folder, plan);
  }

  async stop(folder: MachineFolder, o: { graceMilliseconds: number; hurry?: AbortSignal }): Promise<void> {
    this.calls.push(`power ${folder.uid}`);
    if (this.deaf && this.machines.get(folder.uid)?.kind === 'running') {
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, o.graceMilliseconds);
        o.hurry?.addEventListener('abort', () => {
          clearTimeout(timer);
          resolve();
        });
      });
    }
    if (this.machines.has(folder.uid)) {
      this.#set('stop', folder, { kind: 'stopped' });
    }
  }

  async pause(folder: MachineFolder): Promise<void> {
    this.#set('pause', folder, { kind: 'running', pid: 1, guestStarted: false, paused: true });
  }

  async unpause(folder: MachineFolder): Promise<void> {
    this.#set('unpause', folder, { kind: 'running', pid: 1, guestStarted: true, paused: false });
  }

  async suspend(folder: MachineFolder): Promise<void> {
    if (this.machines.get(folder.uid)?.kind !== 'running') {
      throw new Error('Only a running machine can be suspended');
    }
    this.#set('suspend', folder, { kind: 'suspended' });
  }

  async resume(folder: MachineFolder): Promise<void> {
    this.#set('resume', folder, { kind: 'running', pid: 1, guestStarted: true, paused: false });
  }

  async revert(
    folder: MachineFolder,
    _plan: MachinePlan,
    _base: BaseImage | undefined,
    snapshot?: string,
  ): Promise<void> {
    const kept = this.#snapshots.get(snapshot ?? '');
    this.#set('revert', folder, { kind: 'stopped' });
    Object.assign(this.#disks.get(folder.uid) ?? {}, kept ?? { boots: '0', marker: '' });
  }

  async takeSnapshot(folder: MachineFolder, uid: string, signal: AbortSignal): Promise<DiskSnapshot> {
    this.calls.push(`takeSnapshot ${folder.uid} ${uid}`);
    signal.throwIfAborted();
    this.#snapshots.set(uid, { ...this.guest(folder.uid) });
    const sizeBytes = IMAGE.virtualSizeBytes;
    return { takenAt: new Date().toISOString(), consistency: 'Crash', sizeBytes, storageBytes: sizeBytes };
  }

  async keepSnapshots({ uid }: MachineFolder, uids: ReadonlySet<string>): Promise<void> {
    this.calls.push(`keepSnapshots ${uid} ${[...uids].join()}`);
  }

  async copyBytes({ uid }: MachineFolder): Promise<number> {
    return this.#disks.has(uid) ? IMAGE.virtualSizeBytes : 0;
  }

  async copyDisk(folder: MachineFolder, o: CopyOptions): Promise<DiskCopy> {
    this.calls.push(`copyDisk ${folder.uid}`);
    o.signal.throwIfAborted();
    const state = this.machines.get(folder.uid);
    const guest = this.#disks.get(folder.uid);
    if (state === undefined) {
      throw new ReasonedError('NoMachine', `There is no machine ${folder.uid}`);
    }
    if (guest === undefined) {
      throw new ReasonedError('NoDisk', 'The machine has no disk');
    }
    const disk = Buffer.alloc(IMAGE.virtualSizeBytes);
    disk.write(guest.marker);
    await writeFile(o.target, disk);
    o.onProgress(100);
    const isOff = state.kind === 'stopped' || (state.kind === 'exited' && state.reason === 'GuestShutdown');
    return { consistency: isOff ? 'Stopped' : 'Crash', virtualSizeBytes: IMAGE.virtualSizeBytes };
  }

  /**
   * Returns the report of the guest of a machine with a disk. The caller may change `marker`. @throws Error when the machine does
   * not exist or has no disk.
   */
  guest(uid: string): Guest {
    const guest = this.#disks.get(uid);
    if (guest === undefined) {
      throw new Error(`machine ${uid} has no disk`);
    }
    return guest;
  }

  /** Returns the marker in a copy of a disk. */
  async markerOn(path: string): Promise<string> {
    return (await readFile(path, 'latin1')).replaceAll('\0', '');
  }

  async delete(folder: MachineFolder): Promise<void> {
    this.calls.push(`delete ${folder.uid}`);
    await rm(folder.path, { recursive: true, force: true });
    this.machines.delete(folder.uid);
    this.#disks.delete(folder.uid);
  }

  async hasProcess(folder: MachineFolder): Promise<boolean> {
    return this.machines.get(folder.uid)?.kind === 'running';
  }

  async inspect(folder: MachineFolder): Promise<MachineState> {
    return this.machines.get(folder.uid) ?? { kind: 'absent' };
  }

  async list(): Promise<FoundMachine[]> {
    return [...this.machines.keys()].map((uid) => ({
      uid,
      path: this.#paths.get(uid) ?? `/stand-in/${uid}`,
      runAs: undefined,
      base: undefined,
    }));
  }

  onChange(handler: (uid: string) => void): void {
    this.#handlers.push(handler);
  }

  console(): { read: () => AsyncIterable<string> } {
    return {
      read: async function* () {
        yield 'a line of the console\n';
      },
    };
  }

  async askGuest(): Promise<GuestAnswer> {
    return this.guestAnswer;
  }

  async execute(folder: MachineFolder, { path }: GuestCommand): Promise<GuestCommandResult> {
    this.#requireRunning(folder);
    throw new StreamRefused(`No guest agent runs ${path}`);
  }

  /** Returns a console that prints what is typed into it. */
  async connectConsole(folder: MachineFolder, options: { input: boolean }): Promise<Duplex> {
    this.#requireRunning(folder);
    const console = this.#consoles.get(folder.uid) ?? new SharedConsole(async () => new PassThrough());
    this.#consoles.set(folder.uid, console);
    const stream = await console.open(options);
    if (stream === undefined) {
      throw new StreamRefused('Another user types into this console');
    }
    return stream;
  }

  /** Returns a screen that only sends the name of its protocol. */
  async connectScreen(folder: MachineFolder): Promise<Duplex> {
    this.#requireRunning(folder);
    const screen = new PassThrough();
    screen.write('RFB 003.008\n');
    return screen;
  }

  async screenshot(folder: MachineFolder): Promise<Buffer> {
    this.#requireRunning(folder);
    return Buffer.from('\u0089PNG\r\n\u001a\npicture', 'latin1');
  }

  /** Every port of a guest serves its page, which has the first and the last line of a real guest's page. */
  async forwardPort(folder: MachineFolder): Promise<PortForward> {
    this.#requireRunning(folder);
    if (this.#forwards.size >= FORWARDS) {
      throw new StreamRefused(`The machine has ${FORWARDS} forwarded ports`);
    }
    const server = createServer((_, response) => {
      const guest = this.guest(folder.uid);
      const page = { address: 'stand-in', ...guest, disk_sectors: IMAGE.virtualSizeBytes / SECTOR_BYTES };
      const lines = Object.entries(page);
      response.end(lines.map((line) => `${line.join('=')}\n`).join(''));
    });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    this.#forwards.add(server);
    const close = async (): Promise<void> => {
      server.close();
      this.#forwards.delete(server);
    };
    return { port: (server.address() as AddressInfo).port, close };
  }

  #requireRunning(folder: MachineFolder): void {
    if (this.machines.get(folder.uid)?.kind !== 'running') {
      throw new StreamRefused('The machine is not running');
    }
  }

  async close(): Promise<void> {
    this.#handlers = [];
    for (const console of this.#consoles.values()) {
      console.close();
    }
    for (const server of this.#forwards) {
      server.close();
    }
    this.#forwards.clear();
  }

  /** Ends the machine as a real machine ends by itself. */
  end(uid: string, reason: ExitReason, message: string): void {
    this.#consoles.get(uid)?.close();
    this.machines.set(uid, { kind: 'exited', reason, message });
    for (const handler of this.#handlers) {
      handler(uid);
    }
  }

  #set(verb: string, folder: MachineFolder, state: MachineState): void {
    this.calls.push(`${verb} ${folder.uid}`);
    this.#paths.set(folder.uid, folder.path);
    if (state.kind !== 'running') {
      this.#consoles.get(folder.uid)?.close();
    }
    this.machines.set(folder.uid, state);
  }
}

export class StandInImages implements ImageStore {
  /** Promise for which each download waits. */
  gate: Promise<void> = Promise.resolve();
  error: Error | undefined;
  /** Path of the needed file, by holder. */
  readonly holders = new Map<Holder, string>();
  #isTidying = false;

  async ensure(_: MachineImageSource, o: AskedImage): Promise<BaseImage> {
    this.holders.set(o.holder, IMAGE.path);
    o.onProgress(50);
    const given = new Promise<never>((_, reject) => {
      o.signal.addEventListener('abort', () => reject(o.signal.reason as Error));
    });
    await Promise.race([this.gate, given]);
    if (this.error !== undefined) {
      throw this.error;
    }
    return IMAGE;
  }

  heldBytes(): number {
    return 0;
  }

  images(): { names: string[]; sizeBytes: number }[] {
    return [{ names: ['stand-in@sha256:0'], sizeBytes: 1024 }];
  }

  adopt(holder: Holder, path: string): void {
    if (this.#isTidying) {
      throw new Error(`${holder} was adopted too late: ${path} can already be removed`);
    }
    this.holders.set(holder, path);
  }

  cloned(): void {
    // The store never removes anything.
  }

  release(holder: Holder): void {
    this.holders.delete(holder);
  }

  async remove(_holder: Holder): Promise<void> {
    // The store keeps nothing.
  }

  async relieve(): Promise<void> {
    // The store uses no space.
  }

  readonly freeBytes = async () => await Promise.resolve(Number.MAX_SAFE_INTEGER);

  withRoom<T>(_: object, signal: AbortSignal, work: (signal: AbortSignal) => Promise<T>): Promise<T> {
    return work(signal);
  }

  onChange(_handler: () => void): void {
    // The store never changes.
  }

  startTidying(signal: AbortSignal): void {
    // The agent can be stopped while it takes over its machines.
    this.#isTidying = !signal.aborted;
    signal.addEventListener('abort', () => (this.#isTidying = false), { once: true });
  }
}

export class StandInNetwork implements Network {
  readonly name: 'user' | 'nat';
  readonly attachments = new Map<string, AttachOptions>();
  /** Network namespaces, by the uid of the machine. Their addresses are on the loopback of this machine. */
  readonly namespaces = new Map<string, NamespaceOptions & { address: string }>();
  /** Fault that the network cannot repair. */
  fault: string | undefined;
  /** Number of checks so far. */
  checks = 0;

  constructor(name: 'user' | 'nat' = 'user') {
    this.name = name;
  }

  async setUp(): Promise<void> {
    // There is nothing to set up.
  }

  async attach(uid: string, options: AttachOptions): Promise<GuestNetwork> {
    this.attachments.set(uid, options);
    return {
      kind: 'user',
      macAddress: options.macAddress,
      address: undefined,
      hostAddress: '127.0.0.1',
      ports: [],
    };
  }

  async attachNamespace(uid: string, options: NamespaceOptions): Promise<NamespaceNetwork> {
    const address = this.namespaces.get(uid)?.address ?? loopbackAddress();
    this.namespaces.set(uid, { ...options, address });
    return { kind: 'namespace', path: `/stand-in/${uid}`, address, dnsServer: '127.0.0.1' };
  }

  async isUsable(): Promise<boolean> {
    return true;
  }

  async detach(uid: string): Promise<void> {
    this.attachments.delete(uid);
    this.namespaces.delete(uid);
  }

  async address(uid: string): Promise<string | undefined> {
    return this.namespaces.get(uid)?.address;
  }

  async check(): Promise<NetworkReport> {
    this.checks += 1;
    const faults = this.fault === undefined ? [] : [this.fault];
    const machines = (await this.attached()).map((uid) => [uid, { healthy: true, message: 'fine' }]);
    const nothing = { repaired: [], refusedConnections: {} };
    return { ...nothing, healthy: faults.length === 0, faults, machines: Object.fromEntries(machines) };
  }

  async attached(): Promise<string[]> {
    return [...this.attachments.keys(), ...this.namespaces.keys()];
  }

  async close(): Promise<void> {
    // The network holds no resources.
  }
}

let addresses = 0;

/**
 * Returns a loopback address that no other namespace has: of this process, and of most other processes, because the second and third part
 * come from the number of the process.
 */
function loopbackAddress(): string {
  addresses += 1;
  return `127.${1 + ((process.pid >> 8) & 0x7f)}.${process.pid & 0xff}.${1 + (addresses % 254)}`;
}
