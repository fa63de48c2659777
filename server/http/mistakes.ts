/** Turns the mistakes that zod found in a request into a Status. */
import * as z from 'zod';
import { failure, type Status } from '../../api/http/status.ts';

/** Largest number of mistakes in an answer. There is a limit, because a hostile client can send thousands of wrong fields. */
const MISTAKES = 20;

interface Mistake {
  /** Code with which zod names the type of the mistake. */
  keyword: string;
  /** Path of the field, with `/` before each part. */
  instancePath: string;
  message?: string | undefined;
  /** Other fields of the issue that zod reported. */
  params: Record<string, unknown>;
}

/** Mistakes in a value for which the schema allows several forms. Each inner list has the mistakes for one form. */
const formsSchema = z.array(z.array(z.object({ code: z.string(), message: z.string() })));

/**
 * Returns an error that lists the mistakes. The code is 400 if a value has the wrong type. Otherwise it is 422: a value is missing or out
 * of its bounds. `given` is the part of the request that contains the values.
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

/** Reports whether the value of the field has the wrong type. */
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

/**
 * Returns `, not VALUE` if the refused value is a number, and otherwise an empty text. The function never returns a refused text, because
 * the text might be a password.
 */
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

/** Reports whether the field is missing. zod has no code for this, so its message is checked. */
function isMissing(keyword: string, message: string): boolean {
  return keyword === 'invalid_type' && message.endsWith('received undefined');
}
