/** Turns errors of the API server about fields into messages about flags. */
import { ApiError } from '../../kube/errors.ts';
import { CommandError } from '../errors.ts';
import { printable } from '../text.ts';

interface Refused {
  readonly field: string;
  readonly message: string;
}

/**
 * Returns the error for the user. If the API server refused fields, the message names the flags for these fields. Returns other errors
 * unchanged.
 */
export function inFlags(error: unknown, flagByField: Readonly<Record<string, string>>): unknown {
  const lines = refusedIn(error).map(({ field, message }) => {
    const flag = flagByField[field.replace(/\[.*$/, '')] ?? field;
    return printable(`${flag}: ${message.replaceAll(`${field} in body `, '')}`);
  });
  return lines.length === 0 ? error : new CommandError(lines.join('\n'));
}

function refusedIn(error: unknown): Refused[] {
  if (!(error instanceof ApiError)) {
    return [];
  }
  const { status, details } = error;
  if (status !== 422) {
    return status === 400 ? unknownIn(error.message) : [];
  }
  const { causes = [] } = (details ?? {}) as { causes?: Partial<Refused>[] };
  return causes.map(({ field = '', message = '' }) => ({ field, message }));
}

/**
 * Returns the fields that the API server does not know. The API server names these fields only in the text of the message, and not in its
 * list of causes.
 */
function unknownIn(text: string): Refused[] {
  const message =
    'the cluster does not have this field, because its release of Berth is older than this command';
  return [...text.matchAll(/unknown field "([^"]+)"/g)].map(([, field = '']) => ({ field, message }));
}
