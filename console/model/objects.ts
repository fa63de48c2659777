/** Reads the facts about pools, cached images, runner sets and servers that their pages show. */
import type { ImageCacheEntry } from '../../api/v1alpha1/imagecacheentry.ts';
import type { RunnerSet } from '../../api/v1alpha1/runnerset.ts';
import type { Server } from '../../api/v1alpha1/server.ts';
import type { VMPool } from '../../api/v1alpha1/vmpool.ts';
import { compareTexts } from './texts.ts';

/** Returns how far the VMs of a pool are renewed after a change of its template or image. */
export function rolloutOf(pool: VMPool): string {
  const { staleReplicas = 0, revision, readyRevision, failures = { count: 0 } } = pool.status ?? {};
  if (failures.count > 0) {
    return `${failures.count} failed in a row`;
  }
  if (staleReplicas > 0) {
    return renewalOf(pool, staleReplicas);
  }
  return revision === undefined || revision === readyRevision ? 'current' : 'first VM not ready yet';
}

function renewalOf({ spec, status = {} }: VMPool, stale: number): string {
  const { replicas = 0 } = status;
  const how = spec.update?.type === 'Replace' ? 'replacing' : 'as VMs are claimed';
  return `${replicas - stale} of ${replicas} new, ${how}`;
}

/** Numbers of the jobs and runners of a set. */
export interface RunnerCounts {
  readonly queued: number;
  readonly running: number;
  readonly idle: number;
}

/** Returns the last numbers that GitHub sent. They are undefined before. */
export function runnerCounts({ status }: RunnerSet): RunnerCounts | undefined {
  const { statistics } = status ?? {};
  return (
    statistics && {
      queued: Math.max(0, statistics.totalAssignedJobs - statistics.totalRunningJobs),
      running: statistics.totalRunningJobs,
      idle: statistics.totalIdleRunners,
    }
  );
}

/** Returns the last power action of a server with its result, or the one that waits. */
export function lastActionOf({ spec, status = {} }: Server): string {
  const { lastAction } = status;
  const requestedAt = spec.powerAction?.requestedAt ?? '';
  if (requestedAt > (status.lastRequestedAt ?? '')) {
    return `${spec.powerAction?.action}: requested`;
  }
  return lastAction === undefined ? '' : `${lastAction.action}: ${lastAction.result} (${lastAction.by})`;
}

/** A cached image on a host, and its state there. */
interface CachedImage {
  readonly image: string;
  readonly state: string;
  readonly message: string | undefined;
}

/** The cached images of one host. */
export interface HostCache {
  readonly host: string;
  readonly cached: number;
  /** Images that are not there yet, or failed. */
  readonly others: readonly CachedImage[];
}

/** Returns the hosts of all entries with their images, in the order of their names. */
export function hostCaches(entries: readonly ImageCacheEntry[]): HostCache[] {
  const hosts = new Map<string, CachedImage[]>();
  for (const entry of entries) {
    for (const [host, image] of imagesByHost(entry)) {
      hosts.set(host, [...(hosts.get(host) ?? []), image]);
    }
  }
  return [...hosts]
    .map(([host, images]) => ({
      host,
      cached: images.filter(({ state }) => state === CACHED).length,
      others: images.filter(({ state }) => state !== CACHED),
    }))
    .toSorted((one, other) => compareTexts(one.host, other.host));
}

const CACHED = 'Cached';

/** Returns the hosts of one entry, each with the state of the image there. */
function imagesByHost(entry: ImageCacheEntry): [host: string, image: CachedImage][] {
  const { holders = [], nodes = [] } = entry.status ?? {};
  const image = cachedImageOf(entry);
  const states = new Map(nodes.map((state) => [state.node, state]));
  return [...new Set([...holders, ...states.keys()])].map((host) => {
    const { state = CACHED, message } = states.get(host) ?? {};
    return [host, { image, state, message }];
  });
}

/** Returns the name of the image of an entry. */
export function cachedImageOf({ metadata, spec, status }: ImageCacheEntry): string {
  return status?.normalizedReference ?? spec.reference ?? spec.imageRef?.name ?? metadata.name;
}
