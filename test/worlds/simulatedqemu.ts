/**
 * Hypervisors without processes. A simulated hypervisor serves the sockets of a machine like QEMU: QMP, the
 * guest agent and migrations. Its guest counts what is done to it, and writes each count to its disk. So each start shows whether memory and disk
 * are of one moment, and whether a guest has a network that is not itself yet.
 */
import { rmSync, truncateSync, writeFileSync } from 'node:fs';
import { createConnection, createServer, type Server, type Socket } from 'node:net';
import { join } from 'node:path';
import type { ProcessIdentity } from '../../agent/processes/process.ts';
import { afterSync, type PeerCommand } from '../wires/scriptedpeer.ts';
import { Died, type Life } from './lives.ts';
import { commitOverlay, type Content, contentOf, isWritable, readJson } from './simulateddisk.ts';

/** Error that QEMU answers with. */
class Refusal extends Error {}

interface BlockNode {
  'node-name': string;
  file: { filename: string };
  backing?: BlockNode | null;
}

interface Commit {
  top: string;
  base: string;
  /** Number of questions until it is done. */
  questions: number;
  isDone: boolean;
}

interface Guest extends Content {
  /** Name of the machine as which the guest appears. */
  identity: string;
  isFrozen: boolean;
  /** Whether the guest continues from saved memory, and was not renewed yet. */
  isOld?: boolean;
}

class Hypervisor {
  readonly pid: number;
  readonly folder: string;
  readonly uid: string;
  status: string;
  hasLink = true;
  guest: Guest | undefined;
  snapshot: Content | undefined;
  /** Whether the guest agent refuses to freeze the file systems. */
  refusesFreeze = false;
  /** Whether a guest agent uses its port. */
  hasAgent = true;
  /** Whether each program that the guest agent runs fails. */
  failsPrograms = false;
  /** Number of times that the guest was paused. */
  pauses = 0;
  readonly exited = Promise.withResolvers<{ code: number; signal: null }>();
  readonly #host: SimulatedHost;
  readonly #ram: { path: string; isShared: boolean } | undefined;
  #disk: string;
  readonly #files = new Map<string, string>();
  readonly #servers: Server[] = [];
  readonly #sockets = new Set<Socket>();
  #node = 'disk';
  #nodes = new Set(['disk']);
  /** Nodes of the disk, the uppermost first. */
  #chain: string[] = [];
  #commit: Commit | undefined;
  /** Node below the disk that is not read-only. */
  #writable: string | undefined;
  #exports = new Set<string>();
  #ignoresShared = false;
  #isMigrated = false;
  #output = '';

  constructor(host: SimulatedHost, pid: number, folder: string, command: readonly string[]) {
    this.#host = host;
    this.pid = pid;
    this.folder = folder;
    this.uid = valueAfter(command, '-name').replace('guest=berth-', '');
    const memory = command.find((one) => one.startsWith('memory-backend-file'));
    const path = memory && /mem-path=([^,]*)/.exec(memory)?.[1];
    this.#ram = path === undefined ? undefined : { path, isShared: memory?.includes('share=on') === true };
    const node = command.find((one) => one.includes('"node-name":"disk"')) ?? '{}';
    const disk = JSON.parse(node) as BlockNode;
    this.#disk = join(folder, disk.file.filename);
    for (let one: BlockNode | null | undefined = disk; one?.['node-name'] !== undefined; one = one.backing) {
      this.#nodes.add(one['node-name']);
      this.#chain.push(one['node-name']);
      this.#files.set(one['node-name'], one.file.filename);
    }
    const isIncoming = command.includes('-incoming');
    this.status = isIncoming ? 'inmigrate' : 'running';
    if (!isIncoming) {
      this.guest = { ...contentOf(this.#disk), identity: this.uid, isFrozen: false };
    }
    this.#serve('qmp.sock', (socket, one) => this.#execute(socket, one), '{"QMP":{}}\n');
    const play = afterSync((socket, one) => this.#ask(socket, one));
    this.#serve('ga.sock', play);
    if (isIncoming) {
      this.#receive();
    }
  }

  end(): void {
    for (const socket of this.#sockets) {
      socket.destroy();
    }
    for (const server of this.#servers) {
      server.close();
    }
    this.#host.processes.delete(this.pid);
    this.exited.resolve({ code: 0, signal: null });
  }

  #serve(name: string, play: (socket: Socket, command: PeerCommand) => void, greeting = ''): void {
    const path = join(this.folder, name);
    rmSync(path, { force: true });
    const server = createServer((socket) => {
      this.#sockets.add(socket);
      const life = this.#host.life;
      life?.owns(socket);
      socket.on('error', () => undefined).write(greeting);
      let text = '';
      socket.on('data', (data: Buffer) => {
        text += Buffer.from(data.filter((byte) => byte !== 0xff)).toString();
        const lines = text.split('\n');
        text = lines.pop() ?? '';
        for (const line of lines) {
          this.#during(life, () => play(socket, JSON.parse(line) as PeerCommand));
        }
      });
    });
    server.listen(path);
    this.#servers.push(server);
  }

  /** Does what the agent asks for, unless it dies before. It can also die behind it, before it gets the answer. */
  #during(life: Life | undefined, work: () => void): void {
    try {
      life?.step();
      work();
      life?.step();
    } catch (error) {
      if (!(error instanceof Died)) {
        throw error;
      }
    }
  }

  #receive(): void {
    const path = join(this.folder, 'migration.sock');
    rmSync(path, { force: true });
    const server = createServer((socket) => {
      const pieces: Buffer[] = [];
      socket.on('error', () => undefined);
      socket.on('data', (piece: Buffer) => pieces.push(piece));
      socket.on('end', () => {
        socket.destroy();
        this.#load(Buffer.concat(pieces).toString());
      });
    });
    server.listen(path);
    this.#servers.push(server);
  }

  #load(stream: string): void {
    try {
      const { guest } = JSON.parse(stream) as { guest: Guest };
      if (this.#host.breaksMemory && this.#ram?.isShared === true) {
        throw new Error('The stream is not accepted');
      }
      const isApart = this.#ram !== undefined && this.#ignoresShared;
      const saved = isApart ? (readJson(this.#ram?.path ?? '') as Guest) : guest;
      this.guest = { ...saved, isOld: isApart };
      if (this.guest.count !== guest.count) {
        this.#host.faults.push(`${this.uid}: memory and devices are of two moments`);
      }
      this.#keep();
      this.status = 'paused';
    } catch {
      // The stream was cut short, because its agent has died.
      this.end();
    }
  }

  /** Writes the memory to its file, if the file is shared. */
  #keep(): void {
    if (this.#ram?.isShared === true) {
      writeFileSync(this.#ram.path, JSON.stringify(this.guest));
      truncateSync(this.#ram.path, this.#host.memoryBytes);
    }
  }

  /** The guest does something, and writes it to its disk. */
  #live(): void {
    const { guest } = this;
    if (this.status !== 'running' || guest === undefined) {
      return;
    }
    if (this.hasLink && guest.identity !== this.uid) {
      this.#host.faults.push(`${this.uid}: a guest named ${guest.identity} is connected to the network`);
    }
    if (this.hasLink && guest.isOld === true) {
      this.#host.faults.push(`${this.uid}: a guest that was not renewed is connected to the network`);
    }
    if (!guest.isFrozen) {
      guest.count += 1;
      const { count, prepared } = guest;
      const own = { count, prepared };
      const isOverlay = this.#disk.endsWith('.qcow2');
      const base = isOverlay ? (readJson(this.#disk) as { base?: string }).base : undefined;
      writeFileSync(this.#disk, JSON.stringify({ base, own }));
    }
    this.#keep();
  }

  #execute(socket: Socket, { execute, id, arguments: given = {} }: PeerCommand): void {
    this.#live();
    try {
      const answer = this.#answer(execute, given);
      socket.write(`${JSON.stringify({ id, return: answer ?? {} })}\n`);
    } catch (error) {
      const { message: desc } = error as Refusal;
      socket.write(`${JSON.stringify({ id, error: { class: 'GenericError', desc } })}\n`);
    }
    if (execute === 'quit') {
      this.end();
    }
  }

  #answer(command: string, given: Record<string, unknown>): unknown {
    switch (command) {
      case 'query-status':
        return { status: this.status };
      case 'stop':
        this.pauses += 1;
        this.status = this.status === 'running' ? 'paused' : this.status;
        return undefined;
      case 'cont':
        return this.#continue();
      case 'set_link':
        this.hasLink = given['up'] === true;
        return undefined;
      case 'migrate-set-capabilities':
        this.#ignoresShared = (given['capabilities'] as { state: boolean }[])[0]?.state === true;
        return undefined;
      case 'migrate':
        return this.#send();
      case 'query-migrate':
        return { status: this.#isMigrated ? 'completed' : 'active' };
      case 'query-chardev':
        return [{ label: 'agent', 'frontend-open': this.hasAgent }];
      default:
        return this.#block(command, given);
    }
  }

  #continue(): void {
    this.status = 'running';
    if (this.guest?.count !== contentOf(this.#disk).count) {
      this.#host.faults.push(`${this.uid}: memory and disk are of two moments`);
    }
  }

  #send(): void {
    const socket = createConnection(join(this.folder, 'migration.sock'));
    socket.on('error', () => undefined);
    socket.end(JSON.stringify({ guest: this.guest }), () => {
      this.#isMigrated = true;
      this.status = 'postmigrate';
    });
  }

  #block(command: string, given: Record<string, unknown>): unknown {
    switch (command) {
      case 'query-block': {
        const inserted = { 'node-name': this.#node, image: { 'virtual-size': 512 } };
        return [{ qdev: '/disk', inserted }];
      }
      case 'query-named-block-nodes':
        return this.#host.hidesNodes ? [] : [...this.#nodes].map((name) => this.#describe(name));
      case 'query-block-exports':
        return [...this.#exports].map((id) => ({ id }));
      case 'blockdev-add':
        this.#nodes.add(String(given['node-name']));
        this.#files.set(String(given['node-name']), fileOf(given));
        return undefined;
      case 'blockdev-snapshot':
        this.#node = String(given['overlay']);
        this.#chain.unshift(this.#node);
        this.#disk = join(this.folder, this.#files.get(this.#node) ?? '');
        return undefined;
      case 'blockdev-del':
        return this.#remove(String(given['node-name']));
      case 'block-export-add':
        this.#exports.add(String(given['id']));
        return undefined;
      case 'block-export-del':
        this.#exports.delete(String(given['id']));
        return undefined;
      case 'qom-set':
        this.#node = String(given['value']);
        this.snapshot = contentOf(this.#disk);
        return undefined;
      default:
        return this.#job(command, given);
    }
  }

  #describe(name: string): Record<string, unknown> {
    const ro = name !== this.#chain[0] && name !== this.#writable;
    return { 'node-name': name, file: this.#files.get(name), ro };
  }

  #remove(node: string): void {
    if (this.#chain.includes(node)) {
      throw new Refusal(`Node '${node}' is in use`);
    }
    this.#nodes.delete(node);
  }

  #job(command: string, given: Record<string, unknown>): unknown {
    const commit = this.#commit;
    switch (command) {
      case 'block-commit': {
        const [top, base] = [String(given['top-node']), String(given['base-node'])];
        const at = this.#chain.indexOf(top);
        if (
          commit !== undefined ||
          at < 1 ||
          this.#chain[at + 1] !== base ||
          given['device'] !== this.#node
        ) {
          this.#host.faults.push(`${this.uid}: ${top} was to be merged with ${base}`);
        }
        for (const file of [base, this.#chain[at - 1]].map((node) => this.#files.get(node ?? '') ?? '')) {
          if (!isWritable(join(this.folder, file))) {
            this.#host.faults.push(`${this.uid}: QEMU crashes, because it cannot open ${file} for writing`);
          }
        }
        this.#writable = base;
        this.#commit = { top, base, questions: 2, isDone: false };
        return undefined;
      }
      case 'query-jobs':
        return commit === undefined ? [] : [{ id: 'merge', status: this.#proceed(commit) }];
      case 'job-cancel':
        Object.assign(commit ?? {}, { isDone: true });
        return undefined;
      case 'job-dismiss':
        this.#commit = undefined;
        this.#writable = this.#host.keepsWritable ? this.#writable : undefined;
        return undefined;
      default:
        return undefined;
    }
  }

  /** Goes on with the merge of two layers. Its overlay is the only file whose header changes with it. */
  #proceed(commit: Commit): string {
    commit.questions -= 1;
    if (!commit.isDone && commit.questions === 0) {
      const [top, base] = [commit.top, commit.base].map((node) => this.#files.get(node) ?? '') as [
        string,
        string,
      ];
      commitOverlay(this.folder, top, base);
      this.#chain = this.#chain.filter((node) => node !== commit.top);
      if (commit.top.startsWith('layer-')) {
        this.#nodes.delete(commit.top);
      }
      commit.isDone = true;
    }
    return commit.isDone ? 'concluded' : 'running';
  }

  #ask(socket: Socket, { execute, arguments: given = {} }: PeerCommand): void {
    if (this.status !== 'running' || this.guest === undefined) {
      return;
    }
    this.#live();
    if (execute === 'guest-fsfreeze-freeze' && this.refusesFreeze) {
      socket.write(`${JSON.stringify({ error: { class: 'GenericError', desc: 'freeze is disabled' } })}\n`);
      return;
    }
    if (execute === 'guest-fsfreeze-freeze' || execute === 'guest-fsfreeze-thaw') {
      this.guest.isFrozen = execute === 'guest-fsfreeze-freeze';
      this.#keep();
    }
    if (execute === 'guest-exec') {
      this.#run(Buffer.from(String(given['input-data']), 'base64').toString());
    }
    const answers: Record<string, unknown> = {
      'guest-fsfreeze-status': this.guest.isFrozen ? 'frozen' : 'thawed',
      'guest-fsfreeze-freeze': 1,
      'guest-exec': { pid: 1 },
      'guest-exec-status': {
        exited: true,
        exitcode: this.failsPrograms ? 1 : 0,
        'out-data': Buffer.from(this.#output).toString('base64'),
      },
    };
    socket.write(`${JSON.stringify({ return: answers[execute] ?? {} })}\n`);
  }

  /** Runs the script that prepares or renews the guest. */
  #run(script: string): void {
    const value = (name: string): string => new RegExp(`^${name}='(.*)'$`, 'm').exec(script)?.[1] ?? '';
    const guest = this.guest as Guest;
    if (script.includes('/etc/berth/save.d')) {
      guest.prepared += 1;
      this.#output = 'prepared\n';
    } else {
      // A guest that continues from a snapshot of itself keeps its names.
      guest.identity = value('HOST_NAME') || guest.identity;
      guest.isOld = false;
      this.#output = `${value('HOST_NAME')}\n${value('MACHINE_ID')}\n${value('MAC')}\n`;
    }
    this.#live();
  }
}

/** All simulated hypervisors of a host, and the agent that runs there. */
export class SimulatedHost {
  readonly processes = new Map<number, Hypervisor>();
  /** Broken rules, as texts. */
  readonly faults: string[] = [];
  /** Whether no process accepts the stream of a memory that is to be kept. */
  breaksMemory = false;
  /** Whether no process makes a layer read-only again after a merge. */
  keepsWritable = false;
  /** Whether no process tells of its block nodes. */
  hidesNodes = false;
  readonly memoryBytes: number;
  life: Life | undefined;
  #pid = 0;

  constructor(memoryBytes: number) {
    this.memoryBytes = memoryBytes;
  }

  start(folder: string, command: readonly string[]): Hypervisor {
    this.#pid += 1;
    const hypervisor = new Hypervisor(this, this.#pid, folder, command);
    this.processes.set(this.#pid, hypervisor);
    return hypervisor;
  }

  /** Returns the hypervisor of the machine, or undefined. */
  of(uid: string): Hypervisor | undefined {
    return [...this.processes.values()].find((one) => one.uid === uid);
  }

  /** Returns the hypervisor with this folder, or undefined. */
  in(folder: string): Hypervisor | undefined {
    return [...this.processes.values()].find((one) => one.folder === folder);
  }

  identify(pid: number): ProcessIdentity | undefined {
    return this.processes.has(pid) ? { pid, startTime: '1', bootId: '1' } : undefined;
  }
}

/** Returns the name of the file of a block node. */
function fileOf(given: Record<string, unknown>): string {
  const { file } = given as { file?: { filename?: string } | string };
  return typeof file === 'object' ? (file.filename ?? '') : '';
}

function valueAfter(command: readonly string[], option: string): string {
  return command[command.indexOf(option) + 1] ?? '';
}
