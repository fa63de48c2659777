/** Turns the mistakes of a request, which zod found, into a Status. */
import * as z from 'zod';
import { failure, type Status } from '../../api/http/status.ts';

/** Largest number of mistakes in an answer. A hostile body has a mistake in each of its thousands of fields. */
const MISTAKES = 20;

interface Mistake {
  /** Code of zod for the mistake. */
  keyword: string;
  /** Path of the field, with `/` before each part. */
  instancePath: string;
  message?: string | undefined;
  /** Further fields of the issue of zod. */
  params: Record<string, unknown>;
}

/** Mistakes of a value, one list for each form that the schema allows. */
const formsSchema = z.array(z.array(z.object({ code: z.string(), message: z.string() })));

/**
 * Returns 400 when a value has the wrong type, and 422 when it is missing or outside its bounds. `given` is the part of the request with
 * the values.
 */
export function invalid(mistakes: readonly Mistake[], given: unknown): Status {
  const causes = mistakes.slice(0, MISTAKES).map(({ instancePath, keyword, message = 'is not valid' }) => ({
    reason: isMissing(keyword, message) ? 'FieldValueRequired' : 'FieldValueInvalid',
    field: instancePath.slice(1).replaceAll('/', '.'),
    message: isMissing(keyword, message) ? 'is required' : `${message}${numberAt(instancePath, given)}`,
  }));
  const text = causes
    .map(({ field, message }) => (field === '' ? message : `${field}: ${message}`))
    .join('; ');
  const isMalformed = mistakes.some((mistake) => hasWrongType(mistake, given));
  return failure(isMalformed ? 400 : 422, text, { details: { causes } });
}

/** Reports whether the type of the field's value is wrong, so that no other value of this type would be right. */
function hasWrongType({ keyword, instancePath, message = '', params }: Mistake, given: unknown): boolean {
  switch (keyword) {
    case 'invalid_type':
      return !isMissing(keyword, message);
    case 'invalid_value': {
      const { values } = params;
      const type = typeof valueAt(instancePath, given);
      return type !== 'undefined' && Array.isArray(values) && values.every((value) => typeof value !== type);
    }
    case 'invalid_union': {
      const forms = formsSchema.safeParse(params['errors']).data ?? [];
      return forms.every((form) =>
        form.some(({ code, message: cause }) => code === 'invalid_type' && !isMissing(code, cause)),
      );
    }
    default:
      return false;
  }
}

/** Returns the refused number for a message. Texts are not repeated, because some of them are passwords. */
function numberAt(instancePath: string, given: unknown): string {
  const value = valueAt(instancePath, given);
  return typeof value === 'number' ? `, not ${value}` : '';
}

function valueAt(instancePath: string, given: unknown): unknown {
  const parts = instancePath.split('/').slice(1);
  let value = given;
  for (const part of parts) {
    const isObject = typeof value === 'object' && value !== null;
    value =
      isObject && Object.hasOwn(value as object, part) ? (value as Record<string, unknown>)[part] : undefined;
  }
  return value;
}

/** Reports whether the field is missing. Zod says so only in its message. */
function isMissing(keyword: string, message: string): boolean {
  return keyword === 'invalid_type' && message.endsWith('received undefined');
}
