/** Reads the facts about VMs that the console shows. */
import { CREATED_BY_ANNOTATION, CLAIMED_BY_ANNOTATION } from '../../api/v1alpha1/names.ts';
import { phasesIn } from '../../api/v1alpha1/phases.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { diagnose, phaseOf } from '../../actions/diagnosis.ts';
import { compareTexts } from './texts.ts';

/** Kinds of phases. Each has one colour and one sign. */
export type Tone = 'runs' | 'waits' | 'moves' | 'off' | 'failed';

const TONES: ReadonlyMap<string, Tone> = new Map([
  ['Running', 'runs'],
  ['Pending', 'waits'],
  ['Stopped', 'off'],
  ['Suspended', 'off'],
  ['Failed', 'failed'],
]);

/** Returns the kind of a phase. A phase of another release counts as one that changes. */
export function toneOf(phase: string): Tone {
  return TONES.get(phase) ?? 'moves';
}

/** Returns the short name of the image or ISO. Before a host has reported, it is the text in the spec. */
export function imageOf({ spec, status }: VM): string {
  return status?.image?.name ?? spec.image ?? spec.iso ?? '';
}

const SERVICE_ACCOUNT = /^system:serviceaccount:(.+):(.+)$/;

/** Returns the user who claimed or created the VM. The name of a service account is shown as `namespace:name`. */
export function ownerOf({ metadata: { annotations = {} } }: VM): string {
  const user = annotations[CLAIMED_BY_ANNOTATION] ?? annotations[CREATED_BY_ANNOTATION] ?? '';
  return user.replace(SERVICE_ACCOUNT, '$1:$2');
}

/** Reports whether the VM holds a slot of its host. A failed VM has given its slot back. */
export function holdsSlot(vm: VM): boolean {
  return vm.status?.nodeName !== undefined && phaseOf(vm) !== 'Failed';
}

/** Phases before the first run. */
const DEPLOYMENT = phasesIn('deployment');

/** VM that waits, and the sentence that says why. */
export interface Waiting {
  readonly vm: VM;
  readonly reason: string | undefined;
  readonly sentence: string;
}

/** Returns the VMs that were not running yet, with their reasons, the oldest first. At most `limit` VMs are explained. */
export function waitingVMs(vms: readonly VM[], limit: number): { total: number; first: Waiting[] } {
  const waiting = vms
    .filter((vm) => DEPLOYMENT.has(phaseOf(vm)))
    .toSorted((one, other) => compareTexts(createdAt(one), createdAt(other)));
  const first = waiting.slice(0, limit).map((vm) => {
    const { reason, message } = diagnose({ vm });
    return { vm, reason, sentence: message };
  });
  return { total: waiting.length, first };
}

function createdAt({ metadata }: VM): string {
  return metadata.creationTimestamp ?? '';
}

/** Columns by which VMs can be sorted. */
export const SORT_KEYS = ['name', 'phase', 'host', 'image', 'owner', 'age'] as const;
export type SortKey = (typeof SORT_KEYS)[number];

const SORT_TEXTS: Readonly<Record<SortKey, (vm: VM) => string>> = {
  name: ({ metadata }) => metadata.name,
  phase: phaseOf,
  host: ({ status }) => status?.nodeName ?? '',
  image: imageOf,
  owner: ownerOf,
  age: createdAt,
};

/** Returns the VMs in the order of the column. VMs with equal texts are in the order of their names. */
export function sortedVMs(vms: readonly VM[], key: SortKey): VM[] {
  const text = SORT_TEXTS[key];
  return vms.toSorted(
    (one, other) => compareTexts(text(one), text(other)) || compareTexts(fullName(one), fullName(other)),
  );
}

function fullName({ metadata }: VM): string {
  return `${metadata.name}/${metadata.namespace ?? ''}`;
}

/** Returns the number of VMs in each phase, the most frequent phase first. */
export function phaseCounts(vms: readonly VM[]): [phase: string, count: number][] {
  const counts = new Map<string, number>();
  for (const vm of vms) {
    const phase = phaseOf(vm);
    counts.set(phase, (counts.get(phase) ?? 0) + 1);
  }
  return [...counts].toSorted(([one, a], [other, b]) => b - a || compareTexts(one, other));
}

/** Slots that the VMs of a namespace hold, and VMs that wait for one. */
export interface Share {
  readonly namespace: string;
  readonly slots: number;
  readonly waiting: number;
}

/** Returns the share of each namespace, the largest first. */
export function namespaceShares(vms: readonly VM[]): Share[] {
  const shares = new Map<string, { slots: number; waiting: number }>();
  for (const vm of vms) {
    const { namespace = '' } = vm.metadata;
    const share = shares.get(namespace) ?? { slots: 0, waiting: 0 };
    shares.set(namespace, share);
    share.slots += holdsSlot(vm) ? 1 : 0;
    share.waiting += phaseOf(vm) === 'Pending' ? 1 : 0;
  }
  return [...shares]
    .map(([namespace, share]) => ({ namespace, ...share }))
    .toSorted((one, other) => other.slots - one.slots || compareTexts(one.namespace, other.namespace));
}
