/** The error with which an action ends. The HTTP API turns its kind into a status code, and the command turns it into an exit code. */

/**
 * Kind of the error: the request is `invalid`; an object that it needs is `missing`; the action is `refused` as things are; the object
 * `exists` already; the object is `gone`, because somebody deleted it during the action; no host has `room`; a machine or host `failed`; the
 * action was too `late`; the installation lacks a part that the action needs (`unsupported`); another program that the action needs did not do its part (`unanswered`); or others change the object too
 * often (`busy`).
 */
export type ErrorKind =
  | 'invalid'
  | 'missing'
  | 'refused'
  | 'exists'
  | 'gone'
  | 'room'
  | 'failed'
  | 'late'
  | 'unsupported'
  | 'unanswered'
  | 'busy';

/** Detail of an error for programs. */
export interface ErrorCause {
  readonly reason: string;
  readonly message: string;
}

/** Error of an action, with a message for people. Errors of the API server pass through actions unchanged. */
export class ActionError extends Error {
  override readonly name = 'ActionError';
  readonly kind: ErrorKind;
  /** Field of the request that is wrong, if the message is about one field. */
  readonly field: string | undefined;
  readonly causes: readonly ErrorCause[] | undefined;

  constructor(
    kind: ErrorKind,
    message: string,
    more: { field?: string | undefined; causes?: readonly ErrorCause[] | undefined } = {},
  ) {
    super(message);
    this.kind = kind;
    this.field = more.field;
    this.causes = more.causes;
  }
}
