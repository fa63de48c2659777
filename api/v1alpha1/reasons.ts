/**
 * The catalogue of reasons: the words with which the operator and the agent describe states to each other and to people. Reasons that are
 * not in the catalogue come only from Kubernetes or from a host of another release. `docs/reference/reasons.md` is generated from this
 * file.
 */
import { reasonOf } from '../../base/errors.ts';
import { CACHE_REASONS, FETCH_REASONS, IMAGE_REASONS } from './reasons/image.ts';
import { EMULATOR_REASONS, STATES } from './reasons/states.ts';
import { FAILURES, FAULTS, REFUSALS } from './reasons/failures.ts';
import { HOST_REASONS, ROLE_REASONS, SERVER_REASONS } from './reasons/host.ts';
import { POOL_REASONS } from './reasons/pool.ts';
import { RUNNER_REASONS } from './reasons/runners.ts';
import { SNAPSHOT_REASONS } from './reasons/snapshot.ts';

/** Kinds whose objects have reasons. ISOs are not listed, because an ISO has the reasons of an Image. */
export type ReasonKind =
  | 'VM'
  | 'Image'
  | 'ImageCacheEntry'
  | 'Emulator'
  | 'VMSnapshot'
  | 'VMPool'
  | 'Server'
  | 'RunnerSet'
  | 'Pod'
  | 'Node'
  | 'CertificateSigningRequest'
  | 'RoleBinding';

/**
 * Class of a reason. It tells what happens next, and which person or program can change the state. `REASON_CLASSES` describes each class
 * for people.
 */
export type ReasonClass = keyof typeof REASON_CLASSES;

export const REASON_CLASSES = {
  state: 'The reason describes a normal state of the object. It is not a fault',
  final:
    'The same work would fail again, so Berth does not try it again. Change the object or create it again',
  passing:
    'The fault can pass by itself, so Berth tries the work again. If a VM has not run yet, Berth tries only a few times',
  mendable:
    'You can fix the fault without creating the object again. Berth tries the work again until you have fixed it',
  elsewhere:
    'Perhaps another host can run the VM. If the VM has not run yet and names no host, Berth places it again, up to three times',
} as const;

export interface ReasonEntry {
  /**
   * Places where the reason appears, for each kind: types of conditions, `Event`, the container states `waiting` and `terminated`, or the
   * name of a field.
   */
  readonly seen: Readonly<Partial<Record<ReasonKind, readonly string[]>>>;
  /** Class of the reason: one class for all kinds of objects, or one class for each kind. */
  readonly class: ReasonClass | Readonly<Partial<Record<ReasonKind, ReasonClass>>>;
  /**
   * Whether the reason is a fault of the host and not of the machine. If a machine has already run, Berth never declares the machine failed
   * because of such a reason.
   */
  readonly ofHost?: boolean;
  readonly by: 'operator' | 'agent' | 'agent and operator' | 'runners' | 'Kubernetes';
  /** Meaning of the reason, as text for people, without a final full stop. */
  readonly says: string;
  /** Next step for people, in the imperative. If absent, nothing has to be done. */
  readonly todo?: string;
  /** Texts for kinds for which `says` and `todo` are not true. */
  readonly texts?: Readonly<Partial<Record<ReasonKind, ReasonTexts>>>;
}

/** Meaning of a reason, and the next step, if any. */
export type ReasonTexts = Pick<ReasonEntry, 'says' | 'todo'>;

/** All reasons with their properties. */
export const REASONS = {
  ...STATES,
  ...SNAPSHOT_REASONS,
  ...FAULTS,
  ...REFUSALS,
  ...FAILURES,
  ...FETCH_REASONS,
  ...IMAGE_REASONS,
  ...CACHE_REASONS,
  ...HOST_REASONS,
  ...EMULATOR_REASONS,
  ...ROLE_REASONS,
  ...SERVER_REASONS,
  ...POOL_REASONS,
  ...RUNNER_REASONS,
} satisfies Readonly<Record<string, ReasonEntry>>;

/** Message of the condition Ready of a VM whose guest nobody checks. */
export const UNCHECKED_GUEST = 'The machine runs. Its guest is not checked';

/** A reason in the catalogue. */
export type Reason = keyof typeof REASONS;
/**
 * Reason with which a host refuses a machine that another host might accept. If kubelets have a word for the same case, Berth uses that
 * word.
 */
export type RefusalReason = keyof typeof REFUSALS;

declare const unknownReason: unique symbol;
/** A reason from a host or from Kubernetes. It can be missing in the catalogue of this release. */
export type UnknownReason = string & { readonly [unknownReason]: true };
/** Reason that Berth can write into a condition or an Event: one of the catalogue, or one that a host or Kubernetes reported. */
export type SaidReason = Reason | UnknownReason;

/**
 * Pattern of a reason that the API server accepts in a condition and in an Event. It is the pattern of `metav1.Condition` with the length
 * limit of an Event.
 */
const WORD = /^[A-Za-z]([A-Za-z0-9_,:]{0,126}[A-Za-z0-9_])?$/;

export function isReason(word: string | undefined): word is Reason {
  return word !== undefined && Object.hasOwn(REASONS, word);
}

/**
 * Returns `word` if the API server accepts it as the reason of a condition, and `otherwise` if not. The word can be missing in the
 * catalogue, because it comes from a host or from Kubernetes of any version.
 */
export function saidReason(word: string | undefined, otherwise: Reason): SaidReason {
  return word !== undefined && WORD.test(word) ? (word as UnknownReason) : otherwise;
}

/** Returns the class of a reason for objects of a kind. The result is undefined if the catalogue does not have this reason for the kind. */
export function classOf(word: string | undefined, kind: ReasonKind): ReasonClass | undefined {
  if (!isReason(word)) {
    return undefined;
  }
  const { class: known, seen }: ReasonEntry = REASONS[word];
  if (seen[kind] === undefined) {
    return undefined;
  }
  return typeof known === 'string' ? known : known[kind];
}

/** Returns the texts about a reason for objects of one kind. The words "VM or Emulator" stand for the kind. */
export function textsFor(word: Reason, kind: ReasonKind): ReasonTexts {
  const entry: ReasonEntry = REASONS[word];
  const { says, todo } = entry.texts?.[kind] ?? entry;
  const named = (text: string) =>
    kind === 'VM' || kind === 'Emulator' ? text.replaceAll(/VM(s?) or Emulators?/g, `${kind}$1`) : text;
  return { says: named(says), ...(todo !== undefined && { todo: named(todo) }) };
}

/** Returns a sentence about the meaning of a reason, for a condition without a message. */
export function meaningOf(word: string): string {
  return isReason(word) ? REASONS[word].says : `The host reported ${word} and no message`;
}

/** Reports whether the catalogue lists a reason for this kind and place. The place is a condition type or `Event`. */
export function isSeen(word: string | undefined, kind: ReasonKind, where: string): boolean {
  const { seen }: Pick<ReasonEntry, 'seen'> = isReason(word) ? REASONS[word] : { seen: {} };
  return seen[kind]?.includes(where) ?? false;
}

/** Reports whether a reason names a fault of the host and not of the machine. */
export function isOfHost(word: Reason): boolean {
  const { ofHost, class: known }: ReasonEntry = REASONS[word];
  return ofHost === true || known === 'elsewhere';
}

/**
 * Returns the reason of an error if it is in the catalogue. The result is undefined if the error has no reason, or a reason of another
 * system.
 */
export function reasonIn(error: unknown): Reason | undefined {
  const word = reasonOf(error);
  return isReason(word) ? word : undefined;
}

export interface ReasonedErrorOptions extends ErrorOptions {
  /** Wait in milliseconds that a server asks for before the next request. The default is that of the cause. */
  retryAfterMilliseconds?: number | undefined;
}

/** An error that people see. Its reason is for programs, and its message is for people. */
export class ReasonedError<Word extends Reason = Reason> extends Error {
  override readonly name: string = 'ReasonedError';
  readonly reason: Word;
  /** Wait in milliseconds that a server asks for before the next request. Undefined if no server asked for a wait. */
  readonly retryAfterMilliseconds: number | undefined;

  constructor(reason: Word, message: string, options: ReasonedErrorOptions = {}) {
    super(message, options);
    this.reason = reason;
    const { cause, retryAfterMilliseconds: asked } = options;
    this.retryAfterMilliseconds = asked ?? retryAfterOf(cause);
  }
}

/**
 * Longest wait in milliseconds that Berth keeps when a server asks for it with `Retry-After`. Registries limit requests per minute or per
 * hour, and a wrong value must not stop an image for days.
 */
const RETRY_AFTER_CAP_MILLISECONDS = 3_600_000;

/** Returns the wait in milliseconds that a server asked for with its refusal. Returns undefined if the error has no such wait. */
export function retryAfterOf(error: unknown): number | undefined {
  return error instanceof ReasonedError ? error.retryAfterMilliseconds : undefined;
}

/**
 * Returns the wait in milliseconds before the next attempt: `ownMilliseconds`, or the wait that a server asked for if it is longer. The
 * server's wait counts up to {@link RETRY_AFTER_CAP_MILLISECONDS}.
 */
export function waitAsked(ownMilliseconds: number, askedMilliseconds = 0): number {
  return Math.max(ownMilliseconds, Math.min(askedMilliseconds, RETRY_AFTER_CAP_MILLISECONDS));
}
