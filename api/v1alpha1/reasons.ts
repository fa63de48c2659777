/**
 * The catalogue of reasons: the words by which operator and agent tell each other, and people, why something is as it is.
 * A word that is not here cannot be written. `docs/reference/reasons.md` is made from it.
 */
import { reasonOf } from '../../base/errors.ts';
import { CACHE_REASONS } from './reasons/cache.ts';
import { FAILURES } from './reasons/failures.ts';
import { FAULTS, REFUSALS } from './reasons/faults.ts';
import { HOST_REASONS } from './reasons/host.ts';
import { IMAGE_REASONS } from './reasons/image.ts';
import { STATES } from './reasons/states.ts';

/** Kinds whose objects carry reasons. An ISO has those of an Image. */
export type ReasonKind = 'VM' | 'Image' | 'ImageCacheEntry' | 'Pod' | 'Node' | 'CertificateSigningRequest';

/** What a reason means for the object; `REASON_CLASSES` says it to people. */
export type ReasonClass = keyof typeof REASON_CLASSES;

export const REASON_CLASSES = {
  state: 'No fault: it says how the object stands',
  final: 'The same work would fail again, so nothing is tried again; change or remake the object',
  passing: 'The fault may pass by itself; the work is tried again, for a VM before its first run a few times',
  mendable: 'Somebody can fix it without remaking the object; the work is tried again until then',
  elsewhere: 'Another host may take the VM; before its first run the VM is placed again up to three times',
} as const;

export interface ReasonEntry {
  /** Condition types, `Event`, or the state of a container or field, by kind. */
  readonly seen: Readonly<Partial<Record<ReasonKind, readonly string[]>>>;
  /** One for every kind, or one for each. */
  readonly class: ReasonClass | Readonly<Partial<Record<ReasonKind, ReasonClass>>>;
  /** The host is at fault and not the machine: a machine that has run is never given up for it. */
  readonly ofHost?: boolean;
  readonly by: 'operator' | 'agent' | 'agent and operator' | 'Kubernetes';
  /** One sentence for people, without a final full stop. */
  readonly says: string;
  /** The way out, in the imperative. Absent: there is nothing to do. */
  readonly todo?: string;
}

/** Every reason with what is known of it. */
export const REASONS = {
  ...STATES,
  ...FAULTS,
  ...REFUSALS,
  ...FAILURES,
  ...IMAGE_REASONS,
  ...CACHE_REASONS,
  ...HOST_REASONS,
} satisfies Readonly<Record<string, ReasonEntry>>;

/** A word of the catalogue. */
export type Reason = keyof typeof REASONS;
/** A word by which a host refuses a machine that another one may take: a kubelet's own, where it has one. */
export type RefusalReason = keyof typeof REFUSALS;

declare const unknownReason: unique symbol;
/** A word that a host or Kubernetes said, and that this version does not know. */
export type UnknownReason = string & { readonly [unknownReason]: true };
/** What a condition or an Event may say. */
export type SaidReason = Reason | UnknownReason;

/** As `metav1.Condition` has it, and no longer than Kubernetes takes it in an Event. The API server would refuse others at each write. */
const WORD = /^[A-Za-z]([A-Za-z0-9_,:]{0,126}[A-Za-z0-9_])?$/;

export function isReason(word: string | undefined): word is Reason {
  return word !== undefined && Object.hasOwn(REASONS, word);
}

/**
 * A word of a host or of Kubernetes, which may be of another version and then know words that are not in the catalogue.
 * `otherwise` for a text that no condition may have as its reason.
 */
export function saidReason(word: string | undefined, otherwise: Reason): SaidReason {
  return word !== undefined && WORD.test(word) ? (word as UnknownReason) : otherwise;
}

/** Undefined for a word that the catalogue does not have. */
export function classOf(word: string | undefined, kind: ReasonKind): ReasonClass | undefined {
  if (!isReason(word)) {
    return undefined;
  }
  const { class: known }: ReasonEntry = REASONS[word];
  return typeof known === 'string' ? known : known[kind];
}

/** Whether the word is one that an object of the kind says there: in a condition of that type, or as an `Event`. */
export function isSeen(word: string | undefined, kind: ReasonKind, where: string): boolean {
  const { seen }: Pick<ReasonEntry, 'seen'> = isReason(word) ? REASONS[word] : { seen: {} };
  return seen[kind]?.includes(where) ?? false;
}

/** Whether the host is at fault and not the machine. */
export function isOfHost(word: Reason): boolean {
  const { ofHost, class: known }: ReasonEntry = REASONS[word];
  return ofHost === true || known === 'elsewhere';
}

/** The catalogued reason that an error carries; undefined for one that carries none, or another system's word. */
export function reasonIn(error: unknown): Reason | undefined {
  const word = reasonOf(error);
  return isReason(word) ? word : undefined;
}

/** An error that reaches a person: its reason is for machines, its message for people. */
export class ReasonedError<Word extends Reason = Reason> extends Error {
  override readonly name: string = 'ReasonedError';
  readonly reason: Word;

  constructor(reason: Word, message: string, options?: ErrorOptions) {
    super(message, options);
    this.reason = reason;
  }
}
