/** Writes and reads the text of a failure in the status of an Image or ISO: `REASON: MESSAGE`. All functions are pure. */
import { classOf, isReason, type Reason } from '../../api/v1alpha1/reasons.ts';
import { FAILURE_TEXT_LENGTH } from '../../api/v1alpha1/source.ts';
import { keepEnd } from '../../api/v1alpha1/status.ts';

interface Failure<Word extends string = string> {
  readonly reason: Word;
  readonly message: string;
}

/**
 * Returns the text of a failure. If the message is too long for the status, its end is kept. The reason is never cut, because the operator
 * and the HTTP API read it from the text later.
 */
export function failureText({ reason, message }: Failure): string {
  const start = `${reason}: `;
  return `${start}${keepEnd(message, FAILURE_TEXT_LENGTH - start.length)}`;
}

/** Returns the reason and the message in the text of a failure. Both are empty if there is no text. */
export function readFailure(text = ''): Failure {
  const [reason = '', ...rest] = text.split(': ');
  return { reason, message: rest.join(': ') };
}

/**
 * Returns the reason and the message in the text of a final failure, after which there is no further attempt. The result is undefined if
 * there is no text. It is also undefined if this release does not know the reason, or does not treat the reason as final.
 */
export function finalFailure(text: string | undefined): Failure<Reason> | undefined {
  const { reason, message } = readFailure(text);
  return isReason(reason) && classOf(reason, 'Image') === 'final' ? { reason, message } : undefined;
}
