/** Translates the scheduler's reasons for a Pending VM into short texts for people. */
import { amountOf } from '../../api/v1alpha1/hostspace.ts';
import {
  CORDONED_FOR_ANNOTATION,
  DEDICATED_KEY,
  MACOS_GUEST_RESOURCE,
  NAT_TAINT,
  SHARED_DISK_RESOURCE,
  SLOT_RESOURCE,
} from '../../api/v1alpha1/names.ts';
import {
  ALL_REFUSED,
  NO_MATCHING_HOST,
  NONE_ABLE,
  NONE_FREE,
  OBSTACLES,
  requirementText,
} from '../../api/v1alpha1/obstacles.ts';
import type { Node, Pod, Taint } from '../../kube/core.ts';
import { CORDON_TAINT, isPassing, keepsOff, suits } from '../../kube/scheduling.ts';
import { conditionIn } from '../objects/conditions.ts';
import { machineContainer, podPorts } from '../podbacked/pod.ts';

/** Pattern of the scheduler's reason about a resource of which a node has too little left. */
const INSUFFICIENT = /^Insufficient (\S+)$/;
/**
 * Texts for people about each resource: of hosts whose resource is used up, and of hosts that never have as much. In a text, `%` stands for
 * the number of hosts.
 */
const RESOURCES: Readonly<Record<string, { readonly used: string; readonly lacking: string }>> = {
  [SLOT_RESOURCE]: { used: OBSTACLES.slot, lacking: OBSTACLES.noSlots },
  [MACOS_GUEST_RESOURCE]: { used: OBSTACLES.macosGuests, lacking: OBSTACLES.noMacOS },
  [SHARED_DISK_RESOURCE]: { used: OBSTACLES.sharedDisk, lacking: OBSTACLES.noSharedDisk },
  cpu: { used: OBSTACLES.cpu, lacking: OBSTACLES.smallCPU },
  memory: { used: OBSTACLES.memory, lacking: OBSTACLES.smallMemory },
  'ephemeral-storage': { used: OBSTACLES.disk, lacking: OBSTACLES.smallDisk },
};
const PORTS = /free ports/;
/**
 * Pattern of reasons about nodes that are not Berth hosts, or do not match the VM. The text for people omits these reasons. If there are
 * only such reasons, the text says that no host matches.
 */
const NO_MATCH = /node affinity|node selector|plugin\(s\) \[NodeAffinity\]/;
/**
 * Pattern of reasons about taints and cordons. The number of nodes in such a reason includes nodes that are not Berth hosts, for example
 * the tainted nodes of the control plane. Since Kubernetes 1.36, the reason does not name the taint. Therefore the operator reads taints
 * and cordons from the Nodes of the hosts.
 */
const KEPT_OFF = /untolerated taint|were unschedulable/;
/** Beginning of the scheduler's text about claims and preemption. The text is cut off there, because Berth uses neither. */
const AFTER_REASONS = /\.?\s+(?:no new claims to deallocate|preemption: )/;
const HEADER = /^(\d+)\/(\d+) nodes are available: (.*)$/s;

export interface SchedulingReason {
  readonly reason: 'Unschedulable' | 'HostStarting' | 'WaitingForScheduler';
  readonly message: string;
}

/** Facts that the scheduler's message does not contain. */
export interface SchedulingHints {
  /** Returns a description of the VM that holds a host port. `port` has the form `8822/TCP`. */
  readonly portHolder: (port: string) => string | undefined;
  /** Returns the Nodes of all Berth hosts. The message for people names their taints. */
  readonly hosts: () => readonly Node[];
  /** Returns the Nodes of the hosts that have been switched on and have not reported yet. */
  readonly startingHosts: () => readonly Node[];
  /** Names of the hosts that refused the VM. The Pod cannot run on them. */
  readonly avoidedNodes: readonly string[];
}

/** Returns the reason why the Pod has no host yet. */
export function schedulingReason(pod: Pod, hints: SchedulingHints): SchedulingReason {
  const avoided = hints.avoidedNodes.join(', ');
  const tried = avoided === '' ? '' : `; the VM could not start on ${avoided}`;
  const condition = conditionIn(pod.status, 'PodScheduled');
  if (condition === undefined || condition.status !== 'False') {
    return { reason: 'WaitingForScheduler', message: `The VM is waiting for the scheduler${tried}` };
  }
  const message = explainPlacement(pod, condition.message ?? '', hints.hosts);
  const starting = hints.startingHosts().find((node) => suits(pod.spec, node));
  if (starting !== undefined) {
    return {
      reason: 'HostStarting',
      message: `${message}. Host ${starting.metadata.name} is starting${tried}`,
    };
  }
  if (message === NO_MATCHING_HOST && avoided !== '') {
    // The scheduler does not distinguish hosts that refused the VM from hosts that never matched it.
    const next = 'The Events of the VM give the causes. Add a host, or create the VM again';
    return { reason: 'Unschedulable', message: `${ALL_REFUSED}: ${avoided}. ${next}` };
  }
  const holders = message.includes('reserved port') ? heldPorts(pod, hints.portHolder) : '';
  const requests = message === NO_MATCHING_HOST ? requestedOf(pod) : '';
  return { reason: 'Unschedulable', message: `${message}${requests}${holders}${tried}` };
}

/** Returns what the VM requests of its host, after a colon, or an empty text. */
function requestedOf({ spec }: Pod): string {
  const required = spec.affinity?.nodeAffinity?.requiredDuringSchedulingIgnoredDuringExecution;
  const [{ matchExpressions = [], matchFields = [] } = {}] = required?.nodeSelectorTerms ?? [];
  const wanted = [...matchExpressions, ...matchFields].filter(({ operator }) => operator !== 'NotIn');
  const texts = wanted.map(requirementText).filter((text) => text !== undefined);
  return texts.length === 0 ? '' : `: ${texts.join(', ')}`;
}

/**
 * Translates a message of the scheduler about this Pod for people. `hosts` returns the Nodes of all hosts. If no host that suits a guest with
 * macOS runs such guests, the text says only this. The scheduler would name what these hosts lack besides, as if the guest had to wait for it.
 */
export function explainPlacement(pod: Pod, message: string, hosts: () => readonly Node[]): string {
  if (HEADER.test(message) && requestOf(pod, MACOS_GUEST_RESOURCE) !== undefined) {
    const suitable = hosts().filter((node) => suits(pod.spec, node));
    if (suitable.length > 0 && suitable.every((node) => isShort(pod, node, MACOS_GUEST_RESOURCE))) {
      return `${NONE_ABLE}: ${OBSTACLES.noMacOS.replace('%', String(suitable.length))}`;
    }
  }
  return condense(message, {
    taints: () => describeTaints(pod, hosts()),
    lacking: (resource) => hosts().filter((node) => lacks(pod, node, resource)).length,
  });
}

/**
 * Translates a message of the scheduler for people. The message has the form `0/3 nodes are available: 1 Insufficient
 * berth.dev/slot, 2 node(s) didn't match …. preemption: …`.
 */
export function condense(message: string, { taints, lacking }: Fleet): string {
  const [head = ''] = message.split(AFTER_REASONS);
  const match = HEADER.exec(head.trim().replace(/\.$/, ''));
  if (match === null) {
    return head.trim() || 'No host was found';
  }
  const items = splitReasons(match[3] ?? '').map(parseReason);
  const others = items.filter(({ text }) => !NO_MATCH.test(text) && !KEPT_OFF.test(text));
  const keptOff = items.some(({ text }) => KEPT_OFF.test(text)) ? taints() : [];
  const described = others.map((item) => describe(item, lacking));
  const hosts = [...keptOff, ...described.flatMap(({ used, unable }) => [...used, ...unable])];
  if (hosts.length === 0) {
    return NO_MATCHING_HOST;
  }
  const isAble = keptOff.length > 0 || described.some(({ used }) => used.length > 0);
  return `${isAble ? NONE_FREE : NONE_ABLE}: ${hosts.join(', ')}`;
}

/** Facts about the hosts of a Pod. */
interface Fleet {
  /** Returns the texts about hosts that taints or cordons keep off. */
  readonly taints: () => string[];
  /** Returns the number of hosts that never have as much of a resource as the Pod requests. */
  readonly lacking: (resource: string) => number;
}

/**
 * Returns true if the host suits the Pod, but does not have as much of the resource as the Pod requests, even when it is empty. A host that a
 * taint or cordon keeps off is none of them, because the scheduler names the taint and not the resource.
 */
function lacks(pod: Pod, node: Node, resource: string): boolean {
  return suits(pod.spec, node) && keptOffBy(pod, node) === undefined && isShort(pod, node, resource);
}

/** Returns true if the Pod requests more of the resource than the host ever has. */
function isShort(pod: Pod, node: Node, resource: string): boolean {
  const wanted = requestOf(pod, resource);
  const has = node.status?.allocatable?.[resource] ?? '0';
  return wanted !== undefined && amountOf(resource, has) < amountOf(resource, wanted);
}

function requestOf(pod: Pod, resource: string): string | undefined {
  return machineContainer(pod)?.resources?.requests?.[resource];
}

interface Reason {
  readonly count: number;
  readonly text: string;
}

function parseReason(item: string): Reason {
  const match = /^(\d+) (?:node\(s\) )?(.*)$/s.exec(item.trim());
  return match === null ? { count: 0, text: item.trim() } : { count: Number(match[1]), text: match[2] ?? '' };
}

/** Texts about hosts that could take the Pod later, and about hosts that never can. */
interface Described {
  readonly used: readonly string[];
  readonly unable: readonly string[];
}

function describe({ count, text }: Reason, lacking: Fleet['lacking']): Described {
  const [, resource = ''] = INSUFFICIENT.exec(text) ?? [];
  const texts = RESOURCES[resource];
  if (texts === undefined) {
    const other = PORTS.test(text) ? OBSTACLES.port.replace('%', String(count)) : `${count} ${text}`.trim();
    return { used: [other], unable: [] };
  }
  const unable = Math.min(count, lacking(resource));
  const counted = (template: string, hosts: number) =>
    hosts === 0 ? [] : [template.replace('%', String(hosts))];
  return { used: counted(texts.used, count - unable), unable: counted(texts.lacking, unable) };
}

/** Splits a message at each comma before a number. A taint has the form `{key: value}` and is not split. */
function splitReasons(text: string): string[] {
  return text.split(/,\s*(?=\d+ )/).filter((part) => part !== '');
}

function heldPorts(pod: Pod, portHolder: (port: string) => string | undefined): string {
  const held = podPorts(pod).flatMap((port) => {
    const holder = portHolder(port);
    return holder === undefined ? [] : [`${port} is held by ${holder}`];
  });
  return held.length === 0 ? '' : ` (${held.join(', ')})`;
}

/** Texts for people about taints, by the taint's key. In a text, `%` stands for the number of hosts. */
const TAINT_TEXTS: Readonly<Record<string, string>> = {
  [NAT_TAINT]: OBSTACLES.nat,
  [DEDICATED_KEY]: OBSTACLES.dedicated,
  'node.kubernetes.io/disk-pressure': OBSTACLES.fullDisk,
  'node.kubernetes.io/unreachable': OBSTACLES.unreachable,
  'node.kubernetes.io/not-ready': OBSTACLES.unreachable,
  [CORDON_TAINT.key]: OBSTACLES.cordoned,
};

/** Returns the first taint, or the cordon, that keeps the Pod off the host. */
function keptOffBy(pod: Pod, { spec }: Node): Taint | undefined {
  const taints = [...(spec?.taints ?? []), ...(spec?.unschedulable === true ? [CORDON_TAINT] : [])];
  return taints.find((taint) => keepsOff(taint, pod.spec));
}

/** Describes the taints and cordons of Berth's hosts that the Pod does not tolerate. */
export function describeTaints(pod: Pod, hosts: readonly Node[]): string[] {
  const counts = new Map<string, number>();
  for (const host of hosts.filter((candidate) => isAskedFor(pod, candidate))) {
    const taint = keptOffBy(pod, host);
    if (taint !== undefined) {
      const text = textAbout(taint, host);
      counts.set(text, (counts.get(text) ?? 0) + 1);
    }
  }
  return [...counts].map(([text, count]) => text.replace('%', String(count)));
}

function textAbout(taint: Taint, { metadata }: Node): string {
  const isOff = metadata.annotations?.[CORDONED_FOR_ANNOTATION] !== undefined && isPassing(taint);
  return isOff ? OBSTACLES.off : (TAINT_TEXTS[taint.key] ?? `% with the taint ${taint.key}`);
}

/**
 * Returns true if the Pod's affinity allows the name of the host. If the Pod requires one host by its name, the taints of all other hosts
 * do not matter.
 */
function isAskedFor(pod: Pod, host: Node): boolean {
  const required = pod.spec.affinity?.nodeAffinity?.requiredDuringSchedulingIgnoredDuringExecution;
  const fields = required?.nodeSelectorTerms[0]?.matchFields ?? [];
  return fields.every(
    ({ operator, values = [] }) => operator !== 'In' || values.includes(host.metadata.name),
  );
}
