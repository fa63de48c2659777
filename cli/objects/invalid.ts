/** Turns refusals of fields into messages about flags. */
import { ApiError } from '../../kube/errors.ts';
import { CommandError } from '../errors.ts';
import { printable } from '../text.ts';

/**
 * Returns the error for the user. If the API server refused fields, the message names the flags for these fields. Returns other errors
 * unchanged.
 */
export function inFlags(error: unknown, flagByField: Readonly<Record<string, string>>): unknown {
  if (!(error instanceof ApiError) || error.status !== 422) {
    return error;
  }
  const { causes = [] } = (error.details ?? {}) as { causes?: { field?: string; message?: string }[] };
  const lines = causes.map(({ field = '', message = '' }) => {
    const flag = flagByField[field.replace(/\[.*$/, '')] ?? field;
    return printable(`${flag}: ${message.replaceAll(`${field} in body `, '')}`);
  });
  return lines.length === 0 ? error : new CommandError(lines.join('\n'));
}
