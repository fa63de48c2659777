/** Says what to do about a VM that no host can take. All functions are pure. */
import { HOST_KEY } from '../api/v1alpha1/names.ts';
import { ALL_REFUSED, type Obstacle, obstaclesIn, requirementText } from '../api/v1alpha1/obstacles.ts';
import type { Node, NodeSelectorRequirement, Pod } from '../kube/core.ts';

interface Fleet {
  /** Pod of the VM. Its node affinity contains the requirements of the VM and of its VM config. */
  readonly pod?: Pod | undefined;
  readonly nodes?: readonly Node[] | undefined;
}

const ADVICE: Readonly<Record<Obstacle, string>> = {
  noSlots: 'No host has a slot: add hosts, or give hosts slots',
  noMacOS: 'No host runs macOS guests: create the VM again with another os, or add such a host',
  noSharedDisk: 'No host offers the shared disk: ask an admin for such a host',
  smallCPU: 'No host has as many processors: ask for fewer, or add a larger host',
  smallMemory: 'No host has as much memory: ask for less, or add a larger host',
  smallDisk: 'No host has as large a disk: create the VM again with a smaller disk, or add a larger host',
  slot: 'All slots are taken: delete VMs that nobody needs, or add hosts',
  macosGuests: 'A host may run at most two macOS guests: delete one of them, or add hosts',
  sharedDisk: 'Another VM uses the shared disk: delete that VM, or wait until it ends',
  cpu: 'Ask for fewer processors, delete VMs, or add hosts',
  memory: 'Ask for less memory, delete VMs, or add hosts',
  disk: 'Delete VMs, create the VM again with a smaller disk, or add hosts',
  port: 'Delete the VM that uses the requested port, or create the VM again with another port of the host',
  nat: 'The network of a host is broken: an admin has to repair the host, and its Node shows the fault',
  dedicated: 'At least one host is dedicated to another namespace: ask an admin for a host of this namespace',
  fullDisk: 'The disk of at least one host is nearly full: an admin has to free space on it',
  unreachable: 'At least one host does not report: an admin has to look at the host and its agent',
  off: 'At least one host is switched off: an admin can switch it on, or enable power by demand',
  cordoned: 'At least one host is cordoned: ask an admin whether it can take VMs again',
};

/** Returns the next steps for a VM that no host can take. `message` comes from the condition Scheduled of the VM. */
export function placementAdvice(message: string, { pod, nodes }: Fleet): string[] {
  const hosts = nodes?.filter(({ metadata }) => metadata.labels?.[HOST_KEY] !== undefined);
  if (hosts?.length === 0) {
    return ['The cluster has no hosts: add one as docs/operate/hosts.md describes'];
  }
  if (message.startsWith(ALL_REFUSED)) {
    return [
      'Each host refused the VM once: fix the causes and create the VM again, or add a host that matches the VM',
    ];
  }
  const obstacles = obstaclesIn(message);
  if (obstacles === undefined) {
    return matchAdvice(pod, hosts);
  }
  const steps = [...obstacles].sort(([, a], [, b]) => b - a).map(([obstacle]) => ADVICE[obstacle]);
  return steps.length === 0
    ? ['Read the message of the scheduler, and compare the VM with the hosts']
    : steps;
}

/**
 * Returns the next steps if no host matches the VM. The text names the requirements that no known host meets. If there are no such
 * requirements, the text names all requirements of the VM.
 */
function matchAdvice(pod: Pod | undefined, hosts: readonly Node[] | undefined): string[] {
  const requests = requestsOf(pod);
  const unmet = requests.filter(({ isMetBy }) => hosts !== undefined && !hosts.some(isMetBy));
  const named = (unmet.length > 0 ? unmet : requests).map(({ text }) => text).join(', ');
  const known = unmet.length > 0 ? 'No host has' : 'The VM requests';
  return named === ''
    ? ['No host can take this VM: ask an admin whether the cluster has hosts']
    : [`${known} ${named}: create the VM again without this request, or ask an admin for such a host`];
}

interface Request {
  readonly text: string;
  readonly isMetBy: (host: Node) => boolean;
}

function requestsOf(pod: Pod | undefined): Request[] {
  const required = pod?.spec.affinity?.nodeAffinity?.requiredDuringSchedulingIgnoredDuringExecution;
  const [term] = required?.nodeSelectorTerms ?? [];
  const byLabel = (term?.matchExpressions ?? []).flatMap((requirement) => labelRequest(requirement) ?? []);
  const byName = (term?.matchFields ?? [])
    .filter(({ operator }) => operator === 'In')
    .flatMap((requirement) => {
      const text = requirementText(requirement);
      const isMetBy = ({ metadata }: Node) => requirement.values?.includes(metadata.name) === true;
      return text === undefined ? [] : [{ text, isMetBy }];
    });
  return [...byLabel, ...byName];
}

function labelRequest(requirement: NodeSelectorRequirement): Request | undefined {
  const { key, operator, values = [] } = requirement;
  const text = requirementText(requirement);
  if (text === undefined) {
    return undefined;
  }
  const isMetBy = ({ metadata: { labels = {} } }: Node) =>
    operator === 'Exists' ? key in labels : values.includes(labels[key] ?? '');
  return { text, isMetBy };
}
