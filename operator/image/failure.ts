/** Writes and reads the text of a failure in the status of an Image or ISO: `REASON: MESSAGE`. All functions are pure. */
import { FAILURE_TEXT_LENGTH } from '../../api/v1alpha1/source.ts';
import { keepEnd } from '../../api/v1alpha1/status.ts';

interface Failure {
  readonly reason: string;
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
