/**
 * Determines the value of the header `Authorization`. When a registry refuses a request, it states the authorization that it requires in
 * the header `WWW-Authenticate` (RFC 9110, 11.6.1): Basic, or a token from a token server. The registry names the URL (realm) of the token
 * server.
 *
 * The token server receives only the credentials for this registry, and only over https with a verified certificate. The token server can
 * be on any host, because large registries have token servers on other hosts. A hostile registry gains nothing when it names another host,
 * because it could request the same credentials itself. The agent refuses a realm with http, because others on the network could read
 * credentials or tokens. Registries that are configured for plain http are the exception. Like every connection, a request to a realm must
 * not go to an address of this host or to a link-local address. The agent does not follow redirects of a token server.
 */
import { LRUCache } from 'lru-cache';
import * as z from 'zod';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { SingleFlight } from '../../../base/concurrency.ts';
import { JsonError, type JsonLimits } from '../../../base/json.ts';
import { retrying } from './failures.ts';
import { optionalText } from './manifests.ts';
import { readBody, refusal } from './refusals.ts';
import { type Credential, fingerprint } from './credentials.ts';
import {
  checkNoDowngrade,
  type RegistryExchange,
  type Response,
  type RegistryTransport,
} from './transport.ts';

interface Challenge {
  /** Name of the scheme in lower case: `basic`, `bearer`. */
  scheme: string;
  /**
   * Values of the parameters. The keys are the names of the parameters in lower case. If a name occurs twice, the map contains the first
   * value.
   */
  parameters: Map<string, string>;
}

const TOKEN = String.raw`[\w!#$%&'*+.^\`|~-]+`;
const PARAMETER = String.raw`(?<name>${TOKEN})[ \t]*=[ \t]*(?:"(?<quoted>(?:[^"\\]|\\.)*)"|(?<plain>${TOKEN}))`;
/** Single value that some schemes, such as Negotiate, have in place of parameters. */
const TOKEN68 = String.raw`[\w.~+/-]+=*(?=[ \t]*(?:,|$))`;
const SCHEME = String.raw`(?<scheme>${TOKEN})(?=[ \t,]|$)(?:[ \t]+${TOKEN68})?`;
/** Next part of a header: a parameter, or the beginning of a challenge. A name without a value is the scheme of the next challenge. */
const PART = new RegExp(String.raw`[ \t,]*(?:${PARAMETER}|${SCHEME})`, 'gy');

/**
 * Returns the challenges of all headers. One header can contain several challenges. If a part of a header cannot be read, the function
 * ignores the rest of this header.
 */
export function parseChallenges(header: string | string[] = []): Challenge[] {
  return [header].flat().flatMap(challengesIn);
}

function challengesIn(header: string): Challenge[] {
  const challenges: Challenge[] = [];
  for (const { groups = {} } of header.matchAll(PART)) {
    const { scheme } = groups;
    if (scheme === undefined) {
      addParameter(groups, challenges.at(-1)?.parameters);
    } else {
      challenges.push({ scheme: scheme.toLowerCase(), parameters: new Map() });
    }
  }
  return challenges;
}

function addParameter(
  { name = '', quoted, plain = '' }: Readonly<Record<string, string>>,
  parameters: Map<string, string> | undefined,
): void {
  const key = name.toLowerCase();
  if (parameters?.has(key) === false) {
    parameters.set(key, quoted?.replace(/\\(.)/g, '$1') ?? plain);
  }
}

/** Lifetime of a token in seconds if the token server states no lifetime. The distribution specification defines this value. */
const EXPIRES_SECONDS = 60;
/**
 * A token is used only during this part of its lifetime. The rest is a margin, because the token must still be valid when it reaches the
 * server.
 */
const MARGIN = 0.9;
/**
 * Limits of a token server's answer. Some tokens are larger than the usual limit of a header, but no token is larger than this limit. An
 * answer has a few fields.
 */
const TOKEN_LIMITS: JsonLimits = { bytes: 256 * 1024, items: 256 };
const CLIENT_ID = 'berth';
/** Largest number of tokens in the cache. Each token is for one registry, credential and scope. */
const CACHE_LIMIT = 1024;
/** Total length of the tokens in the cache, in characters. All tokens fit if they have the usual length, which is at most 4 KiB. */
const CACHE_CHARACTERS = 4 * 1024 * 1024;

/**
 * Answer of a token server. Either of the first two fields has the token, and servers also write an empty text or null into the other one. A
 * lifetime that cannot be read counts as absent. Other fields are not read: `issued_at` would depend on the clock of the server.
 */
const replySchema = z.object({
  token: optionalText,
  access_token: optionalText,
  expires_in: z
    .union([
      z.number(),
      z
        .string()
        .regex(/^\d+(\.\d+)?$/)
        .transform(Number),
    ])
    .refine((seconds) => Number.isFinite(seconds) && seconds >= 0)
    .catch(EXPIRES_SECONDS),
});

interface Need {
  /** URL of the registry's API. */
  registry: URL;
  /** Scope of the request: `repository:team/image:pull`. */
  scope: string;
  credential: Credential | undefined;
  /**
   * Prefix of the key under which the token is stored. The prefix is empty if the registry proves its identity. It keeps tokens from
   * insecure connections apart, because a token is reused only for requests with the same prefix.
   */
  trust: string;
  /** Text at the beginning of error messages. */
  what: string;
}

interface Entry {
  header: string;
  /** Time until which the header is used, in milliseconds on the clock of `performance.now()`. */
  expiresAt: number;
  challenge: Challenge;
}

export class RegistryTokens {
  readonly #transport: RegistryTransport;
  readonly #entries = new LRUCache<string, Entry>({
    max: CACHE_LIMIT,
    maxSize: CACHE_CHARACTERS,
    sizeCalculation: ({ header }) => header.length,
  });
  readonly #flights = new SingleFlight<string>();

  constructor(transport: RegistryTransport) {
    this.#transport = transport;
  }

  /**
   * Returns the value of `Authorization` for the first try of a request. Returns undefined if the registry's requirement is not known yet,
   * or if the token server gives no new token. In this case, the client sends the first try without the header, and the registry's answer
   * states the requirement.
   */
  async current(need: Need, signal: AbortSignal): Promise<string | undefined> {
    if (need.credential?.type === 'registryToken') {
      return bearer(need.credential.token, `The registry token for ${need.what}`);
    }
    const entry = this.#entries.get(keyOf(need));
    if (entry === undefined) {
      return undefined;
    }
    if (performance.now() < entry.expiresAt) {
      return entry.header;
    }
    try {
      return await this.#fetch(need, entry.challenge, signal);
    } catch (error) {
      if (signal.aborted || !(error instanceof ReasonedError)) {
        throw error;
      }
      // The registry might use another token server now. Only its answer to a request without a token names the present token server.
      this.#entries.delete(keyOf(need));
      return undefined;
    }
  }

  /**
   * Returns the value of `Authorization` for another try after the status 401. `sent` is the value of the failed try. Returns undefined if
   * there is no better value.
   */
  async answer(
    need: Need,
    response: Response,
    sent: string | undefined,
    signal: AbortSignal,
  ): Promise<string | undefined> {
    if (need.credential?.type === 'registryToken') {
      return undefined;
    }
    const known = this.#entries.get(keyOf(need))?.header;
    // If another request has stored a new header in the meantime, this header is used.
    if (known !== undefined && known !== sent) {
      return known;
    }
    this.#entries.delete(keyOf(need));
    const challenges = parseChallenges(response.headers['www-authenticate']);
    const token = challenges.find(({ scheme, parameters }) => scheme === 'bearer' && parameters.has('realm'));
    if (token !== undefined) {
      return await this.#fetch(need, token, signal);
    }
    const basic = challenges.find(({ scheme }) => scheme === 'basic');
    return basic === undefined || sent !== undefined ? undefined : this.#basic(need, basic);
  }

  #basic(need: Need, challenge: Challenge): string | undefined {
    if (need.credential?.type !== 'password') {
      return undefined;
    }
    const header = basicOf(need.credential);
    this.#entries.set(keyOf(need), { header, expiresAt: Infinity, challenge });
    return header;
  }

  /** Fetches a token. Callers that need the same token at the same time share one request. */
  async #fetch(need: Need, challenge: Challenge, signal: AbortSignal): Promise<string> {
    const waiting = { signal, onProgress: () => undefined };
    const { result } = await this.#flights.join(keyOf(need), waiting, async (shared) => {
      return await retrying(() => this.#ask(need, challenge, shared), shared);
    });
    return result;
  }

  async #ask(need: Need, challenge: Challenge, signal: AbortSignal): Promise<string> {
    const realm = realmOf(need, challenge);
    const what = `${need.what}: the token of ${realm.host}`;
    // A token server on another host must prove its identity, even if the registry itself need not.
    const unverified = need.trust !== '' && realm.origin === need.registry.origin;
    const request = { ...tokenRequest(need, challenge, realm, what), unverified };
    const response = await this.#transport.send(request, signal);
    if (response.status !== 200) {
      const error = await refusal(response, {
        what,
        registry: realm,
        hasCredential: need.credential !== undefined,
        isPush: need.scope.endsWith(',push'),
      });
      // With this status, OAuth 2 refuses an identity token that has expired. Another credential can still fit.
      const isExpired = response.status === 400 && need.credential?.type === 'identityToken';
      throw isExpired ? new ReasonedError('ImageAccessDenied', error.message, { cause: error }) : error;
    }
    const { token, seconds } = await readReply(response, what, signal);
    const header = bearer(token, what);
    const expiresAt = performance.now() + seconds * 1000 * MARGIN;
    this.#entries.set(keyOf(need), { header, expiresAt, challenge });
    return header;
  }
}

function keyOf({ registry, scope, credential, trust }: Need): string {
  return [trust, registry.origin, fingerprint(credential), scope].join(' ');
}

function realmOf(need: Need, challenge: Challenge): URL {
  const text = challenge.parameters.get('realm') ?? '';
  if (!URL.canParse(text)) {
    throw new ReasonedError(
      'ImageFetchFailed',
      `${need.what}: the registry names no usable token server (realm)`,
    );
  }
  const realm = new URL(text);
  realm.username = '';
  realm.password = '';
  checkNoDowngrade(need.registry, realm, `${need.what}: the token server`);
  return realm;
}

/**
 * Returns the request for a token. The request sends an identity token as form data (OAuth 2), or a password in a header of type Basic.
 * Without a credential, the request asks for an anonymous token.
 */
function tokenRequest(need: Need, challenge: Challenge, realm: URL, what: string): RegistryExchange {
  const service = challenge.parameters.get('service');
  const asked = challenge.parameters.get('scope')?.split(' ').map(inOrder) ?? [];
  const scopes = [...new Set([need.scope, ...asked])].filter((scope) => scope !== '');
  const { credential } = need;
  const common = { what, followsRedirects: false };
  if (credential?.type === 'identityToken') {
    const form = new URLSearchParams({ grant_type: 'refresh_token', client_id: CLIENT_ID });
    if (service !== undefined) {
      form.set('service', service);
    }
    form.set('scope', scopes.join(' '));
    form.set('refresh_token', credential.token);
    const headers = { 'content-type': 'application/x-www-form-urlencoded' };
    return { ...common, method: 'POST', url: realm, headers, body: () => Buffer.from(form.toString()) };
  }
  const url = new URL(realm);
  if (service !== undefined) {
    url.searchParams.set('service', service);
  }
  for (const scope of scopes) {
    url.searchParams.append('scope', scope);
  }
  const authorization = credential?.type === 'password' ? basicOf(credential) : undefined;
  return { ...common, method: 'GET', url, headers: {}, authorization };
}

async function readReply(
  response: Response,
  what: string,
  signal: AbortSignal,
): Promise<{ token: string; seconds: number }> {
  const { data } = replySchema.safeParse(await readContent(response, what, signal));
  const token = data?.token ?? data?.access_token;
  if (token === undefined) {
    // The message does not show the answer, because the answer can contain a token in another format.
    throw new ReasonedError(
      'ImageFetchFailed',
      `${what} cannot be read: the answer has neither token nor access_token`,
    );
  }
  return { token, seconds: data?.expires_in ?? EXPIRES_SECONDS };
}

async function readContent(response: Response, what: string, signal: AbortSignal): Promise<unknown> {
  try {
    return (await readBody(response, TOKEN_LIMITS, what, signal)).parse();
  } catch (error) {
    throw error instanceof JsonError
      ? new ReasonedError('ImageFetchFailed', `${what} ${error.message}`)
      : error;
  }
}

function bearer(token: string, what: string): string {
  if (!/^[\x21-\x7e]+$/.test(token)) {
    throw new ReasonedError('ImageAccessDenied', `${what} contains characters that are not allowed`);
  }
  return `Bearer ${token}`;
}

function basicOf({ username, password }: { username: string; password: string }): string {
  return `Basic ${Buffer.from(`${username}:${password}`, 'utf8').toString('base64')}`;
}

/**
 * Sorts the actions of a scope (`repository:team/image:push,pull`). Registries list the actions in any order. After the sort, equal scopes
 * are equal texts.
 */
function inOrder(scope: string): string {
  const at = scope.lastIndexOf(':') + 1;
  return scope.slice(0, at) + scope.slice(at).split(',').toSorted().join(',');
}
