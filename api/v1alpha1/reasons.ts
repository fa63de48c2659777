/** Reasons: the words by which parts of Berth, and people, tell why something is as it is. */

/** An error that reaches a person: its reason is for machines, its message for people. */
export class ReasonedError extends Error {
  override readonly name: string = 'ReasonedError';
  readonly reason: string;

  constructor(reason: string, message: string, options?: ErrorOptions) {
    super(message, options);
    this.reason = reason;
  }
}
