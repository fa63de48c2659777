/** Measures processes, and counts writes to the API server. */
import { readFileSync } from 'node:fs';
import type { KubeClient } from '../../kube/client.ts';

/** Unit of CPU times on Linux (sysconf(_SC_CLK_TCK)), whatever the tick of the kernel is. */
const TICKS_A_SECOND = 100;
/** Fields of /proc/PID/stat with CPU time: utime and stime. They are counted after the name, which may contain any character. */
const USER_TIME = 11;
const SYSTEM_TIME = 12;
/** The same for children that have ended: cutime and cstime. */
const CHILDREN_USER_TIME = 13;
const CHILDREN_SYSTEM_TIME = 14;
const WRITES = new Set(['POST', 'PUT', 'PATCH', 'APPLY', 'DELETE']);

/** Number of writes until now, by verb and resource, for example `PATCH vms/status`. */
export type WriteCounts = ReadonlyMap<string, number>;

/** Returns the CPU seconds of a process until now. */
export function cpuSeconds(pid: number): number {
  const fields = statOf(pid);
  return (Number(fields[USER_TIME]) + Number(fields[SYSTEM_TIME])) / TICKS_A_SECOND;
}

/** Returns the CPU seconds of all ended child processes. */
export function cpuSecondsOfChildren(): number {
  const fields = statOf(process.pid);
  return (Number(fields[CHILDREN_USER_TIME]) + Number(fields[CHILDREN_SYSTEM_TIME])) / TICKS_A_SECOND;
}

function statOf(pid: number): string[] {
  return readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ').at(-1)?.split(' ') ?? [];
}

/** Returns the largest memory that a process has had, in MB of 1024². */
export function peakMegabytes(pid: number): number {
  return megabytesOf(pid, 'VmHWM');
}

/** Returns the memory that a process has now, in MB of 1024². */
export function residentMegabytes(pid: number): number {
  return megabytesOf(pid, 'VmRSS');
}

/** Returns the proportional memory (PSS) of a process in MB of 1024²: a page that several processes share counts in parts. */
export function proportionalMegabytes(pid: number): number {
  const match = /^Pss:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/smaps_rollup`, 'utf8'));
  return Number(match?.[1] ?? Number.NaN) / 1024;
}

function megabytesOf(pid: number, field: 'VmHWM' | 'VmRSS'): number {
  const match = new RegExp(`^${field}:\\s+(\\d+) kB$`, 'm').exec(readFileSync(`/proc/${pid}/status`, 'utf8'));
  return Number(match?.[1] ?? Number.NaN) / 1024;
}

/** Returns the counts of the API server. */
export async function countWrites(client: KubeClient): Promise<WriteCounts> {
  const { body } = await client.raw('GET', '/metrics');
  const counts = new Map<string, number>();
  for (const [, labels = '', value] of String(body).matchAll(/^apiserver_request_total\{(.*)\} (\S+)$/gm)) {
    const verb = label(labels, 'verb');
    if (!WRITES.has(verb)) {
      continue;
    }
    const subresource = label(labels, 'subresource');
    const key = `${verb} ${label(labels, 'resource')}${subresource === '' ? '' : `/${subresource}`}`;
    counts.set(key, (counts.get(key) ?? 0) + Number(value));
  }
  return counts;
}

function label(labels: string, name: string): string {
  return new RegExp(`(?:^|,)${name}="([^"]*)"`).exec(labels)?.[1] ?? '';
}

/** Returns the difference between two counts, without zeros. */
export function difference(before: WriteCounts, after: WriteCounts): Record<string, number> {
  const changes = [...after].map(([key, count]) => [key, count - (before.get(key) ?? 0)] as const);
  return Object.fromEntries(changes.filter(([, count]) => count > 0));
}
