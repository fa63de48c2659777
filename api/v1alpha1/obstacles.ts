/**
 * Texts for the reasons why hosts cannot take a VM. The operator writes these texts, each with a number of hosts, into the message of the
 * condition Scheduled. The `berth` command finds the texts in this message.
 */
import { TAG_LABEL_PREFIX } from './names.ts';

/** Text for each obstacle. `%` stands for the number of hosts. */
export const OBSTACLES = {
  noSlots: '% with no slots at all',
  noMacOS: '% that run no macOS guests',
  noSharedDisk: '% with no shared disk',
  smallCPU: '% with too few processors for it',
  smallMemory: '% with too little memory for it',
  smallDisk: '% with too small a disk for it',
  slot: '% without a free slot',
  macosGuests: '% with two macOS guests already',
  sharedDisk: '% whose shared disk is in use',
  cpu: '% short of CPU',
  memory: '% short of memory',
  disk: '% short of disk (ephemeral-storage)',
  port: '% with a reserved port in use',
  nat: '% with broken NAT',
  dedicated: '% dedicated to another namespace',
  fullDisk: '% whose disk is nearly full',
  unreachable: '% not reachable',
  cordoned: '% cordoned',
  off: '% switched off',
} as const;
export type Obstacle = keyof typeof OBSTACLES;

/** Beginning of the message of the condition Scheduled if hosts match the VM. They could take it later, or they never can. */
export const NONE_FREE = 'No host is free';
export const NONE_ABLE = 'No host can take it';
/** Message of the condition Scheduled if no host matches the VM. */
export const NO_MATCHING_HOST = 'No host has the architecture, name or tag that the VM requests';
/** Beginning of the message of the condition Scheduled if every host that matches the VM has refused the VM. */
export const ALL_REFUSED = 'All hosts that match the VM have refused it';
/** Message of the scheduler if the cluster has no Node. */
const NO_NODES = 'no nodes available';

/**
 * Finds the obstacles in a message of the scheduler. Returns the number of hosts for each obstacle. The result is undefined if no host
 * matches the VM.
 */
export function obstaclesIn(message: string): ReadonlyMap<Obstacle, number> | undefined {
  if (message.startsWith(NO_MATCHING_HOST) || message.startsWith(NO_NODES)) {
    return undefined;
  }
  const found = new Map<Obstacle, number>();
  for (const obstacle of Object.keys(OBSTACLES) as Obstacle[]) {
    const pattern = OBSTACLES[obstacle].replaceAll(/[()]/g, String.raw`\$&`).replace('%', String.raw`(\d+)`);
    const [, count] = new RegExp(pattern).exec(message) ?? [];
    if (count !== undefined) {
      found.set(obstacle, Number(count));
    }
  }
  return found;
}

/** Requirement that a Pod has for the labels or the fields of its Node, in the form of Kubernetes. */
interface HostRequirement {
  readonly key: string;
  readonly values?: readonly string[];
}

/** Returns the words for a requirement that a user has set on the VM, for example `the tag gpu`. The result is undefined for all others. */
export function requirementText({ key, values = [] }: HostRequirement): string | undefined {
  if (key.startsWith(TAG_LABEL_PREFIX)) {
    return `the tag ${key.slice(TAG_LABEL_PREFIX.length)}`;
  }
  const property = { 'kubernetes.io/arch': 'architecture', 'metadata.name': 'name' }[key];
  return property === undefined ? undefined : `the ${property} ${values.join(' or ')}`;
}
