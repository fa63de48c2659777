/** Measures the processor time and the memory that the host and its machines use. */
import { readFile } from 'node:fs/promises';
import { cpus, freemem, totalmem } from 'node:os';
import { join } from 'node:path';
import { run } from '../../base/exec.ts';
import { findHierarchies, type Hierarchy, machineGroup, ROOTS, readText } from './cgroup.ts';
import { parseFields, processFiles, PS_ENVIRONMENT } from './process.ts';

export interface Usage {
  /** Processor time since the start, in seconds. It counts each processor by itself. */
  cpuSeconds: number;
  /** Memory that the kernel cannot take back without swapping, in bytes. Kubernetes calls it the working set. */
  workingSetBytes: number;
}

/** Ticks per second in /proc/stat and /proc/PID/stat. The value is the same on all Linux systems that Node.js supports. */
const TICKS_PER_SECOND = 100;
const KIBIBYTE = 1024;
const NANOSECONDS_PER_SECOND = 1e9;
const MICROSECONDS_PER_SECOND = 1e6;
const MILLISECONDS_PER_SECOND = 1e3;
/** Time limit of `ps`, which usually answers within milliseconds. */
const PS_MILLISECONDS = 5_000;

/** Machine with a live process. The process is the leader of a session and of a process group. */
export interface RunningMachine {
  uid: string;
  pid: number;
}

/** Reads the usage of machines from their control groups. Machines without a control group are measured by their processes. */
export class UsageReader {
  readonly #search: readonly string[];
  #hierarchies: Promise<Hierarchy[]> | undefined;

  /** `roots` are the possible paths of the host's tree of control groups. */
  constructor(roots: readonly string[] = ROOTS) {
    this.#search = roots;
  }

  /** Returns the usage of each machine by its uid. A machine that has just ended is left out. */
  async machines(running: readonly RunningMachine[]): Promise<Map<string, Usage>> {
    this.#hierarchies ??= this.#find();
    const hierarchies = await this.#hierarchies;
    const found = new Map<string, Usage>();
    const ungrouped: RunningMachine[] = [];
    for (const machine of running) {
      const usage = await groupUsage(hierarchies, machine.uid);
      if (usage.cpuSeconds > 0 && usage.workingSetBytes > 0) {
        found.set(machine.uid, usage);
      } else {
        ungrouped.push(machine);
      }
    }
    if (ungrouped.length > 0) {
      const byLeader = await processUsage(new Set(ungrouped.map(({ pid }) => pid)));
      for (const { uid, pid } of ungrouped) {
        const usage = byLeader.get(pid);
        if (usage !== undefined) {
          found.set(uid, usage);
        }
      }
    }
    return found;
  }

  async #find(): Promise<Hierarchy[]> {
    return process.platform === 'linux' ? await findHierarchies(this.#search) : [];
  }
}

/** Returns the usage of a machine's control groups. Each value is 0 if no control group measures it. */
async function groupUsage(hierarchies: readonly Hierarchy[], uid: string): Promise<Usage> {
  const total: Usage = { cpuSeconds: 0, workingSetBytes: 0 };
  for (const { path, version, controllers } of hierarchies) {
    const read = async (file: string): Promise<string> => await readText(join(machineGroup(path, uid), file));
    if (version === 2) {
      total.cpuSeconds = parseNumber(await read('cpu.stat'), /^usage_usec (\d+)$/m) / MICROSECONDS_PER_SECOND;
    } else if (controllers.includes('cpuacct')) {
      total.cpuSeconds = Number(await read('cpuacct.usage')) / NANOSECONDS_PER_SECOND;
    }
    if (controllers.includes('memory')) {
      const [used, unused] =
        version === 2
          ? ['memory.current', 'inactive_file']
          : ['memory.usage_in_bytes', 'total_inactive_file'];
      // A kubelet leaves out the same part of the page cache.
      const inactive = parseNumber(await read('memory.stat'), new RegExp(`^${unused} (\\d+)$`, 'm'));
      total.workingSetBytes = Math.max(0, Number(await read(used)) - inactive);
    }
  }
  return total;
}

/** Returns the usage of all processes of each leader's session (Linux) or process group (other systems). */
async function processUsage(leaders: ReadonlySet<number>): Promise<Map<number, Usage>> {
  const total = new Map<number, Usage>();
  for await (const { leader, cpuSeconds, workingSetBytes } of processes(leaders)) {
    const before = total.get(leader) ?? { cpuSeconds: 0, workingSetBytes: 0 };
    total.set(leader, {
      cpuSeconds: before.cpuSeconds + cpuSeconds,
      workingSetBytes: before.workingSetBytes + workingSetBytes,
    });
  }
  return total;
}

type ProcessUsage = Usage & { leader: number };

async function* processes(leaders: ReadonlySet<number>): AsyncGenerator<ProcessUsage> {
  if (process.platform !== 'linux') {
    const options = { timeoutMilliseconds: PS_MILLISECONDS, environment: PS_ENVIRONMENT };
    const text = await run('ps', ['-axo', 'pgid=,time=,rss='], options);
    yield* processesInPs(text).filter(({ leader }) => leaders.has(leader));
    return;
  }
  for await (const { pid, text } of processFiles('stat')) {
    // Field 6 is the session. Fields 14 to 17 are the times of the process and of its ended children.
    const fields = parseFields(text);
    const leader = Number(fields[3]);
    if (leaders.has(leader)) {
      const ticks = fields.slice(11, 15).reduce((sum, field) => sum + Number(field), 0);
      yield {
        leader,
        cpuSeconds: ticks / TICKS_PER_SECOND,
        workingSetBytes:
          parseNumber(await readText(`/proc/${pid}/status`), /^VmRSS:\s+(\d+) kB$/m) * KIBIBYTE,
      };
    }
  }
}

/** Reads lines of `ps`: the process group, the time as `HOURS:MINUTES:SECONDS` or `MINUTES:SECONDS`, and the memory in KiB. */
export function processesInPs(text: string): ProcessUsage[] {
  return text
    .split('\n')
    .map((line) => line.trim().split(/\s+/))
    .filter((columns) => columns.length === 3)
    .map(([leader, time = '', memory]) => ({
      leader: Number(leader),
      cpuSeconds: time.split(':').reduce((sum, part) => sum * 60 + Number(part), 0),
      workingSetBytes: Number(memory) * KIBIBYTE,
    }));
}

/** Returns the usage of the whole host. */
export async function hostUsage(): Promise<Usage> {
  if (process.platform !== 'linux') {
    const milliseconds = cpus().reduce(
      (sum, { times }) => sum + times.user + times.nice + times.sys + times.irq,
      0,
    );
    return { cpuSeconds: milliseconds / MILLISECONDS_PER_SECOND, workingSetBytes: totalmem() - freemem() };
  }
  const [stat, memory] = await Promise.all([
    readFile('/proc/stat', 'utf8'),
    readFile('/proc/meminfo', 'utf8'),
  ]);
  // The columns are user, nice, system, idle, iowait, irq and softirq. The time of guests is part of user and nice.
  const [, ...ticks] = stat.slice(0, stat.indexOf('\n')).split(/\s+/).map(Number);
  const [user = 0, nice = 0, system = 0, , , irq = 0, softirq = 0] = ticks;
  const kibibytes = (name: string): number => parseNumber(memory, new RegExp(`^${name}:\\s+(\\d+) kB$`, 'm'));
  return {
    cpuSeconds: (user + nice + system + irq + softirq) / TICKS_PER_SECOND,
    workingSetBytes:
      (kibibytes('MemTotal') - kibibytes('MemFree') - kibibytes('Inactive\\(file\\)')) * KIBIBYTE,
  };
}

/** Returns the number that the first group of the pattern matches; 0 if the pattern does not match. */
function parseNumber(text: string, pattern: RegExp): number {
  return Number(pattern.exec(text)?.[1] ?? 0);
}
