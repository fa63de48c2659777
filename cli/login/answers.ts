/** Reads answers of identity providers as leniently as other clients do. */
import { JsonError, type JsonLimits, parseJson } from '../../base/json.ts';
import { EMPTY, type Fetch } from './https.ts';

/** Limits of an answer that is read. Metadata and keys of an identity provider have about 10 KiB and some hundred values. */
const LIMITS: JsonLimits = { bytes: 1024 * 1024, items: 16_384 };
/** Fields with a number of seconds, which some providers write as a text. */
const SECONDS: ReadonlySet<string> = new Set(['expires_in', 'interval']);

/**
 * Returns a function that sends requests with `fetch`, and leaves out fields of the answer that are null or an empty text. Providers write
 * them in place of fields that they do not use, and the library for OpenID Connect refuses them.
 */
export function withoutEmptyFields(fetch: Fetch): Fetch {
  return async (url, options) => {
    const answer = await fetch(url, options);
    const { status, headers } = answer;
    return EMPTY.includes(status) ? answer : new Response(tidy(await answer.text()), { status, headers });
  };
}

function tidy(text: string): string {
  const document = documentIn(text);
  if (typeof document !== 'object' || document === null || Array.isArray(document)) {
    return text;
  }
  const fields = Object.entries(document).filter(([, value]) => value !== null && value !== '');
  return JSON.stringify(Object.fromEntries(fields.map(([name, value]) => [name, secondsIn(name, value)])));
}

function documentIn(text: string): unknown {
  try {
    return parseJson(text, LIMITS);
  } catch (error) {
    if (error instanceof JsonError) {
      // The library tells the user what is wrong with the answer.
      return undefined;
    }
    throw error;
  }
}

function secondsIn(name: string, value: unknown): unknown {
  return SECONDS.has(name) && typeof value === 'string' && /^\d+(\.\d+)?$/.test(value)
    ? Number(value)
    : value;
}
