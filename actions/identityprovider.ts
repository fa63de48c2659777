/** Client of an identity provider. The library for OpenID Connect is imported only when it is needed. */
import type * as OpenIDClient from 'openid-client';
import type { Configuration, CustomFetch } from 'openid-client';
import { EMPTY, type Fetch } from '../base/fetch.ts';
import { JsonError, type JsonLimits, parseJson } from '../base/json.ts';

export interface OpenIDProvider {
  readonly oidc: typeof OpenIDClient;
  readonly configuration: Configuration;
}

interface ProviderAddress {
  readonly issuer: string;
  readonly clientID: string;
}

/**
 * Reads the addresses of the provider, and returns a client of it. `answerSeconds` is the time limit of each answer. @throws errors of the
 * library and of `fetch`.
 */
export async function openProvider(
  { issuer, clientID }: ProviderAddress,
  fetch: Fetch,
  answerSeconds: number,
): Promise<OpenIDProvider> {
  const oidc = await import('openid-client');
  const configuration = await oidc.discovery(new URL(issuer), clientID, undefined, oidc.None(), {
    [oidc.customFetch]: withoutEmptyFields(fetch) as CustomFetch,
    timeout: answerSeconds,
  });
  return { oidc, configuration };
}

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
  const document = parseDocument(text);
  if (typeof document !== 'object' || document === null || Array.isArray(document)) {
    return text;
  }
  const fields = Object.entries(document).filter(([, value]) => value !== null && value !== '');
  return JSON.stringify(Object.fromEntries(fields.map(([name, value]) => [name, parseSeconds(name, value)])));
}

function parseDocument(text: string): unknown {
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

function parseSeconds(name: string, value: unknown): unknown {
  return SECONDS.has(name) && typeof value === 'string' && /^\d+(\.\d+)?$/.test(value)
    ? Number(value)
    : value;
}
