/**
 * Stand-in for the program `tart`, without a hypervisor: its machines sleep, or are guests in QEMU. It follows the table of flags, codes and words
 * in docs/develop/apple-hosts.md, which is from the source of the real program. Its state is in the same files. Whoever uses it brings the processes.
 */
import { randomUUID } from 'node:crypto';
import {
  appendFileSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { type Answer, FAILED, NOT_SUSPENDED, SHUT_DOWN, STOPPED, SUSPENDED } from './answers.ts';
import { CODES, parse, Refused, type Values } from './arguments.ts';
import { type Guest, readGuest, writeGuest } from './disk.ts';
import { type GuestMachine, loopbackAddress } from './qemuguest.ts';
import { softnetCommand } from './softnet.ts';

/** The processes of this computer. */
export interface Processes {
  isAlive: (pid: number) => boolean;
  send: (pid: number, signal: Signal) => void;
  /** Finds a program in PATH. */
  find: (name: string) => string | undefined;
}

export type Signal = 'SIGINT' | 'SIGUSR1' | 'SIGUSR2';

/** Behaviour that a test asks for, as empty files in `cues/` of the program's folder. */
export type Cue =
  /** The hypervisor has kept the place of a guest that has ended. */
  | 'leaked'
  /** No guest has an address. */
  | 'no-address'
  /** The memory of a guest cannot be written. */
  | 'suspend-fails'
  /** Guests with macOS shut down when they are asked to, and show no dialog. */
  | 'macos-shuts-down'
  /** The hypervisor of the next machines fails after their start. */
  | 'fails'
  /** The guests of the next machines have a guest agent. */
  | 'guest-agent'
  /** An installation of macOS goes on after it has made its files. */
  | 'install-lasts'
  /** The machines are real guests in QEMU, and do not sleep. */
  | 'qemu';

/** Largest number of guests with macOS that the hypervisor runs. */
const MACOS_GUESTS = 2;
const MEBIBYTE = 1024 ** 2;
const GIGABYTE = 1000 ** 3;

interface Config {
  os: 'darwin' | 'linux';
  cpuCountMin: number;
  cpuCount: number;
  memorySizeMin: number;
  memorySize: number;
  macAddress: string;
  ecid?: string;
  display: { width: number; height: number };
}

/** A machine that runs: what its process does when it gets a signal. */
export interface RunningMachine {
  name: string;
  os: Config['os'];
  /** What the process prints when the machine has started. */
  greeting: string;
  /** Returns how the process ends when it gets the signal. Undefined if it goes on. */
  onSignal: (signal: Signal) => Answer | undefined;
  /** How the process ends by itself, soon after its start. Undefined if it does not. */
  end: Answer | undefined;
  /** Whether the guest can be suspended. */
  isSuspendable: boolean;
  /** The machine as QEMU runs it. Undefined if the machine sleeps. */
  guest: GuestMachine | undefined;
  /** The program that filters the packets of the guest, with its parameters. Undefined if nothing is filtered. */
  softnet: readonly [string, ...string[]] | undefined;
}

export class TartStandIn {
  readonly home: string;
  readonly #processes: Processes;

  /** `home` is the value of `TART_HOME`. */
  constructor(home: string, processes: Processes) {
    this.home = home;
    this.#processes = processes;
  }

  /** Answers any command but `run`. */
  call(parameters: readonly string[]): Answer {
    return this.#answering(parameters, () => {
      const [command = '', ...rest] = parameters;
      if (command === '--version') {
        return '2.32.1-stand-in\n';
      }
      const { values, names } = parse(command, rest);
      const [name = ''] = names;
      const commands: Readonly<Record<string, () => string>> = {
        create: () => this.#create(name, values),
        clone: () => this.#clone(name, names[1] ?? ''),
        list: () => this.#list(),
        get: () => JSON.stringify(this.#describe(name)),
        ip: () => this.#address(name),
        set: () => this.#set(name, values),
        stop: () => this.#stop(name),
        suspend: () => this.#suspend(name),
        delete: () => this.#delete(name),
      };
      const work = commands[command];
      if (work === undefined) {
        throw new Refused(CODES.usage, `Error: Unexpected argument '${command}'`);
      }
      return work();
    });
  }

  /** Begins `run` in the process `pid`. Returns the machine, or how the process ends at once. */
  begin(parameters: readonly string[], pid: number): RunningMachine | Answer {
    let machine: RunningMachine | undefined;
    const answer = this.#answering(parameters, () => {
      machine = this.#run(parameters.slice(1), pid);
      return '';
    });
    return machine ?? answer;
  }

  /** Number of guests with macOS that run. */
  get runningMacOS(): number {
    return this.#names().filter((name) => this.#isRunning(name) && this.#config(name).os === 'darwin').length;
  }

  give(cue: Cue): void {
    mkdirSync(join(this.home, 'cues'), { recursive: true });
    writeFileSync(join(this.home, 'cues', cue), '');
  }

  take(cue: Cue): void {
    rmSync(join(this.home, 'cues', cue), { force: true });
  }

  /** Whether a test asks for this behaviour. */
  has(cue: Cue): boolean {
    return existsSync(join(this.home, 'cues', cue));
  }

  /** Path of the file with the memory of a suspended machine. */
  memory(name: string): string {
    return this.#path(name, 'state.vzvmsave');
  }

  /** Path of the socket at which the process of a machine leads to its guest agent. */
  controlSocket(name: string): string {
    return this.#path(name, 'control.sock');
  }

  /** Home folder of the user in the guest of a machine. */
  guestHome(name: string): string {
    return join(this.home, 'guests', name);
  }

  /** Command lines of all calls so far. */
  get calls(): string[][] {
    return this.#lines('calls').map((line) => JSON.parse(line) as string[]);
  }

  /** What no guest may ever see, in words. */
  get faults(): string[] {
    return this.#lines('faults');
  }

  #lines(file: string): string[] {
    const path = join(this.home, file);
    const text = existsSync(path) ? readFileSync(path, 'utf8') : '';
    return text.split('\n').filter((line) => line !== '');
  }

  #answering(parameters: readonly string[], work: () => string): Answer {
    mkdirSync(this.home, { recursive: true });
    appendFileSync(join(this.home, 'calls'), `${JSON.stringify(parameters)}\n`);
    try {
      return { code: CODES.done, stdout: work(), stderr: '' };
    } catch (error) {
      if (!(error instanceof Refused)) {
        throw error;
      }
      return { code: error.code, stdout: '', stderr: `${error.message}\n` };
    }
  }

  #names(): string[] {
    const folder = join(this.home, 'vms');
    const names = existsSync(folder) ? readdirSync(folder) : [];
    return names.filter((name) => existsSync(this.#path(name, 'config.json')));
  }

  #path(name: string, file: string): string {
    return join(this.home, 'vms', name, file);
  }

  #require(name: string): void {
    if (!this.#names().includes(name)) {
      throw new Refused(CODES.wrongState, `the specified VM "${name}" does not exist`);
    }
  }

  #config(name: string): Config {
    return JSON.parse(readFileSync(this.#path(name, 'config.json'), 'utf8')) as Config;
  }

  /** Process that runs the machine. In the real program it holds a lock on the configuration. */
  #pid(name: string): number | undefined {
    const path = this.#path(name, 'lock');
    const pid = existsSync(path) ? Number(readFileSync(path, 'utf8')) : undefined;
    return pid !== undefined && this.#processes.isAlive(pid) ? pid : undefined;
  }

  #isRunning(name: string): boolean {
    return this.#pid(name) !== undefined;
  }

  #requireRunning(name: string): number {
    this.#require(name);
    const pid = this.#pid(name);
    if (pid === undefined) {
      throw new Refused(CODES.wrongState, `VM "${name}" is not running`);
    }
    return pid;
  }

  #requireOff(name: string, code: number): void {
    this.#require(name);
    if (this.#isRunning(name)) {
      throw new Refused(code, `VM "${name}" is already running!`);
    }
  }

  #stateOf(name: string): 'running' | 'suspended' | 'stopped' {
    if (this.#isRunning(name)) {
      return 'running';
    }
    return existsSync(this.memory(name)) ? 'suspended' : 'stopped';
  }

  #describe(name: string): object {
    this.#require(name);
    const { os, cpuCount, memorySize, display } = this.#config(name);
    const { size } = statSync(this.#path(name, 'disk.img'));
    return {
      OS: os,
      CPU: cpuCount,
      Memory: memorySize / MEBIBYTE,
      Disk: Math.round(size / GIGABYTE),
      DiskFormat: 'raw',
      Size: '0.0',
      Display: `${display.width}x${display.height}`,
      Running: this.#isRunning(name),
      State: this.#stateOf(name),
    };
  }

  #list(): string {
    const machines = this.#names().map((name) => ({
      Source: 'local',
      Name: name,
      Disk: Math.round(statSync(this.#path(name, 'disk.img')).size / GIGABYTE),
      Size: 0,
      Running: this.#isRunning(name),
      State: this.#stateOf(name),
    }));
    return JSON.stringify(machines);
  }

  /** Installs macOS. The stand-in only makes the files, and takes any file that begins as a zip archive. */
  #create(name: string, values: Values): string {
    const path = String(values['from-ipsw'] ?? '');
    if (!existsSync(path) || !readFileSync(path).toString('latin1').startsWith('PK')) {
      throw new Refused(CODES.other, 'the restore image cannot be loaded');
    }
    this.#requireMacOSPlace(name);
    mkdirSync(join(this.home, 'vms', name), { recursive: true });
    const config = {
      version: 1,
      os: 'darwin',
      arch: 'arm64',
      cpuCountMin: 4,
      cpuCount: 4,
      memorySizeMin: 64 * MEBIBYTE,
      memorySize: 4096 * MEBIBYTE,
      macAddress: '7a:65:e4:3f:b6:03',
      display: { width: 1024, height: 768 },
      ecid: Buffer.from(randomUUID()).toString('base64'),
      hardwareModel: 'bW9kZWw=',
    };
    writeFileSync(this.#path(name, 'disk.img'), '');
    truncateSync(this.#path(name, 'disk.img'), Number(values['disk-size'] ?? 50) * GIGABYTE);
    writeFileSync(this.#path(name, 'nvram.bin'), 'nvram');
    writeFileSync(this.#path(name, 'config.json'), JSON.stringify(config));
    return '';
  }

  /** Refuses a third guest with macOS. */
  #requireMacOSPlace(name: string): void {
    const places = MACOS_GUESTS - (this.has('leaked') ? 1 : 0);
    if (this.runningMacOS < places) {
      return;
    }
    if (!this.has('leaked')) {
      appendFileSync(join(this.home, 'faults'), `${name}: a third guest with macOS was to run\n`);
    }
    throw new Refused(CODES.other, 'The number of VMs exceeds the system limit');
  }

  #clone(from: string, to: string): string {
    this.#require(from);
    mkdirSync(join(this.home, 'vms', to), { recursive: true });
    for (const file of ['disk.img', 'nvram.bin', 'config.json']) {
      copyFileSync(this.#path(from, file), this.#path(to, file));
    }
    return '';
  }

  #address(name: string): string {
    this.#requireRunning(name);
    if (this.has('no-address')) {
      throw new Refused(CODES.other, `no IP address found for VM "${name}"`);
    }
    return `${this.has('qemu') ? loopbackAddress(name) : '127.0.0.1'}\n`;
  }

  #set(name: string, values: Values): string {
    this.#require(name);
    const config = this.#config(name);
    const { cpu, memory, display } = values;
    if (cpu !== undefined) {
      config.cpuCount = atLeast('CPU count', Number(cpu), config.os === 'darwin' ? config.cpuCountMin : 1);
    }
    if (memory !== undefined) {
      const least = config.os === 'darwin' ? config.memorySizeMin : 0;
      config.memorySize = atLeast('memory size', Number(memory) * MEBIBYTE, least);
    }
    if (display !== undefined) {
      config.display = displayOf(String(display));
    }
    if (values['random-serial'] === true && config.os === 'darwin') {
      config.ecid = Buffer.from(randomUUID()).toString('base64');
    }
    if (values['disk-size'] !== undefined) {
      this.#grow(name, Number(values['disk-size']) * GIGABYTE);
    }
    writeFileSync(this.#path(name, 'config.json'), JSON.stringify(config));
    return '';
  }

  #grow(name: string, size: number): void {
    const disk = this.#path(name, 'disk.img');
    if (size < statSync(disk).size) {
      throw new Refused(CODES.other, 'new disk size should be larger than the current one');
    }
    truncateSync(disk, size);
  }

  #stop(name: string): string {
    this.#require(name);
    if (this.#stateOf(name) === 'suspended') {
      rmSync(this.memory(name));
      return '';
    }
    this.#processes.send(this.#requireRunning(name), 'SIGINT');
    return '';
  }

  #suspend(name: string): string {
    const pid = this.#requireRunning(name);
    if (this.#config(name).os !== 'darwin') {
      throw new Refused(CODES.usage, 'Error: only macOS VMs can be suspended');
    }
    this.#processes.send(pid, 'SIGUSR1');
    return '';
  }

  #delete(name: string): string {
    this.#requireOff(name, CODES.other);
    rmSync(join(this.home, 'vms', name), { recursive: true });
    return '';
  }

  #run(parameters: readonly string[], pid: number): RunningMachine {
    const { values, names } = parse('run', parameters);
    const [name = ''] = names;
    this.#requireOff(name, CODES.wrongState);
    const { os, ...config } = this.#config(name);
    const drives = ((values['disk'] ?? []) as string[]).map((disk) => disk.replace(/:ro$/, ''));
    const absent = drives.find((drive) => !existsSync(drive));
    if (absent !== undefined) {
      throw new Refused(CODES.other, `the disk ${absent} does not exist`);
    }
    const softnet = softnetCommand(values, config.macAddress, this.#processes.find);
    if (os === 'darwin') {
      this.#requireMacOSPlace(name);
    }
    writeFileSync(this.#path(name, 'lock'), String(pid));
    const isSuspendable = values['suspendable'] === true;
    const memory = this.memory(name);
    const isResumed = this.has('qemu') ? existsSync(memory) : this.#boot(name);
    const guest = {
      ...config,
      disk: this.#path(name, 'disk.img'),
      drives,
      address: loopbackAddress(name),
      memory: isResumed ? memory : undefined,
    };
    return {
      name,
      os,
      isSuspendable,
      guest: this.has('qemu') ? guest : undefined,
      greeting: isResumed ? 'restoring VM state from a snapshot...\nresuming VM...\n' : 'running\n',
      onSignal: (signal) => this.#signalled(signal, { name, os, isSuspendable }),
      end: this.has('fails') ? FAILED : undefined,
      softnet,
    };
  }

  /** Boots the guest, or continues it from its memory. Returns whether it continues. */
  #boot(name: string): boolean {
    const [disk, memory] = [this.#path(name, 'disk.img'), this.memory(name)];
    const guest = readGuest(disk);
    if (!existsSync(memory)) {
      writeGuest(disk, { ...guest, boots: guest.boots + 1, boot_id: randomUUID() });
      return false;
    }
    const saved = JSON.parse(readFileSync(memory, 'utf8')) as Guest;
    if (saved.boot_id !== guest.boot_id) {
      appendFileSync(join(this.home, 'faults'), `${name}: the memory is of another boot than the disk\n`);
    }
    rmSync(memory);
    return true;
  }

  #signalled(
    signal: Signal,
    { name, os, isSuspendable }: { name: string; os: Config['os']; isSuspendable: boolean },
  ): Answer | undefined {
    if (signal === 'SIGINT') {
      return STOPPED;
    }
    if (signal === 'SIGUSR2') {
      const obeys = os === 'linux' || this.has('macos-shuts-down');
      return obeys ? SHUT_DOWN : undefined;
    }
    if (!isSuspendable || this.has('suspend-fails')) {
      return NOT_SUSPENDED;
    }
    const memory = JSON.stringify(readGuest(this.#path(name, 'disk.img')));
    writeFileSync(this.memory(name), memory);
    return SUSPENDED;
  }
}

function atLeast(what: string, value: number, least: number): number {
  if (!Number.isInteger(value) || value < least) {
    throw new Refused(CODES.other, `${what} should be at least ${least}`);
  }
  return value;
}

function displayOf(text: string): Config['display'] {
  const [, width, height] = /^(\d+)x(\d+)(?:pt|px)?$/.exec(text) ?? [];
  if (width === undefined || height === undefined) {
    throw new Refused(CODES.usage, `Error: the value '${text}' is invalid for '--display <display>'`);
  }
  return { width: Number(width), height: Number(height) };
}
