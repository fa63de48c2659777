/** Errors of GitHub, and the text of a foreign server in messages. */
import { type Reason, ReasonedError, type ReasonedErrorOptions } from '../../api/v1alpha1/reasons.ts';

/** Longest text of the server in a message, in characters. */
const QUOTED_CHARACTERS = 200;
/** Characters that would break a line or a terminal. */
const BREAKING = /[\p{Cc}\p{Cf}\u2028\u2029]+/gu;
/** Text that can be a token. No word of a message for people is so long. */
const TOKEN = /[\w.+/=-]{24,}/g;

export interface GitHubErrorOptions extends ReasonedErrorOptions {
  readonly status?: number | undefined;
  /** Type of the exception at the server, without its namespace, for example `AgentExistsException`. */
  readonly typeName?: string | undefined;
  /** Clock of the server in milliseconds since the epoch. */
  readonly serverDate?: number | undefined;
}

/** A failed request to GitHub. The message can be shown to people. */
export class GitHubError extends ReasonedError {
  override readonly name = 'GitHubError';
  /** Status of the answer. It is undefined if no answer came. */
  readonly status: number | undefined;
  readonly typeName: string;
  readonly serverDate: number | undefined;

  constructor(reason: Reason, message: string, options: GitHubErrorOptions = {}) {
    super(reason, message, options);
    this.status = options.status;
    this.typeName = options.typeName ?? '';
    this.serverDate = options.serverDate;
  }
}

/** Returns a text of the server on one line, cut, and without anything that can be a token. */
export function quote(text: string): string {
  return text
    .replaceAll(BREAKING, ' ')
    .replaceAll(TOKEN, '…')
    .trim()
    .slice(0, QUOTED_CHARACTERS)
    .toWellFormed();
}

/** Returns whether GitHub answered with this status or this type of exception. */
export function isAnswer(error: unknown, ...what: readonly (number | string)[]): error is GitHubError {
  return error instanceof GitHubError && what.some((one) => one === error.status || one === error.typeName);
}
