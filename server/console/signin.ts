/**
 * Sign-in of people who use the console, at the identity provider of the cluster: by code with PKCE. The server asks the provider for the
 * token, because the page sends requests to no other server than its own. It keeps nothing of a sign-in.
 */
import { addAbortListener } from 'node:events';
import type { Socket } from 'node:net';
import PQueue from 'p-queue';
import * as z from 'zod';
import { openProvider, type OpenIDProvider } from '../../actions/identityprovider.ts';
import { messageOf } from '../../base/errors.ts';
import { type Fetch, fetchWithLimits } from '../../base/fetch.ts';
import { Proxies } from '../../base/proxy.ts';
import type { App } from '../http/app.ts';
import { StatusError } from '../http/errors.ts';
import { SourcePlaces } from '../http/places.ts';
import type { Services } from '../services.ts';

const SIGN_IN_PATH = '/console/sign-in';
/** Time in milliseconds after which the addresses of the provider are read again. */
const PROVIDER_MILLISECONDS = 600_000;
/** Time in milliseconds for which a provider that does not answer is not asked again. Anybody can ask for it. */
const FAILURE_MILLISECONDS = 10_000;
/** Time limit in milliseconds of one answer of the provider. */
const ANSWER_MILLISECONDS = 10_000;
/**
 * Largest number of codes per second for which the provider is asked. Others wait. Anybody can send a code that the provider never gave, and
 * the provider could otherwise refuse this server because of too many requests.
 */
const EXCHANGES_PER_SECOND = 5;
/** Largest number of codes that wait or are asked for at the same time. The last of them waits for about six seconds. */
const EXCHANGES = 32;
/** Time limit in milliseconds of one code, with its wait. The page waits 30 s. */
const EXCHANGE_MILLISECONDS = 20_000;
/** Largest number of characters of the provider's text in a message. */
const MESSAGE_CHARACTERS = 300;

/** A secret that the page has made for one sign-in. */
const secret = z.string().regex(/^[\w.~-]{43,128}$/, 'must be 43 to 128 letters, digits or signs');
const exchangeBody = z.strictObject({
  /** Address of the page to which the provider has sent the browser, with the answer of the provider. */
  address: z.url({ protocol: /^https?$/ }).max(4_096),
  verifier: secret,
  state: secret,
  nonce: secret,
});

/** `hide` keeps the routes out of the OpenAPI document: they serve only the page of the same release. */
const open = { hide: true, security: [], response: { 200: z.any() } };

/** Adds the routes. Everybody can use them, because people have no token yet. */
export function addSignIn(app: App, { config: { cluster } }: Pick<Services, 'config'>): void {
  const { issuer, clientID } = cluster;
  const scope = [...new Set(['openid', ...cluster.scopes])].join(' ');
  const provider = issuer === undefined ? undefined : new KnownProvider(issuer, clientID);
  const exchanges = new Exchanges();
  app.get(SIGN_IN_PATH, { exposeHeadRoute: false, schema: open }, async () => {
    if (provider === undefined) {
      return {};
    }
    const { configuration } = await provider.get();
    return { address: configuration.serverMetadata().authorization_endpoint, clientID, scope };
  });
  app.post(
    SIGN_IN_PATH,
    { schema: { ...open, body: exchangeBody }, config: { right: 'none' } },
    async ({ socket, end, body: { address, verifier, state, nonce } }) => {
      if (provider === undefined) {
        throw new StatusError(404, 'This cluster has no identity provider');
      }
      return await exchanges.run({ socket, gone: end?.signal }, async () => {
        const { oidc, configuration } = await provider.get();
        const { id_token: token } = await oidc.authorizationCodeGrant(configuration, new URL(address), {
          pkceCodeVerifier: verifier,
          expectedState: state,
          expectedNonce: nonce,
          idTokenExpected: true,
        });
        return { token };
      });
    },
  );
}

const LATE = new StatusError(
  503,
  `The sign-in took longer than ${EXCHANGE_MILLISECONDS / 1_000} s. The identity provider is slow, or too many people sign in. Sign in again`,
);
const DISPLACED = new StatusError(503, 'Too many people sign in at the same time. Sign in again');

/** Who waits for an exchange. */
interface ExchangeCaller {
  readonly socket: Pick<Socket, 'remoteAddress'>;
  /** Signal that aborts when the client has closed the connection. */
  readonly gone: AbortSignal | undefined;
}

/** Exchanges of codes for tokens. A code that waits too long, or whose place another source needs, gets a refusal at once. */
export class Exchanges {
  readonly #queue = new PQueue({ intervalCap: EXCHANGES_PER_SECOND, interval: 1_000 });
  readonly #places = new SourcePlaces(EXCHANGES);

  /**
   * Runs the exchange when it is its turn. @throws StatusError 503 when it takes too long or its place is needed, 400 or 502 when the
   * provider refuses or gives no answer, 408 when the client is gone.
   */
  async run<T>({ socket, gone }: ExchangeCaller, exchange: () => Promise<T>): Promise<T> {
    const end = new AbortController();
    const late = setTimeout(() => end.abort(LATE), EXCHANGE_MILLISECONDS);
    using _listener = gone && addAbortListener(gone, () => end.abort(gone.reason));
    const release = this.#places.take(socket, () => end.abort(DISPLACED));
    try {
      return await this.#queue.add(exchange, { signal: end.signal });
    } catch (error) {
      throw error instanceof StatusError ? error : refusalOf(error);
    } finally {
      clearTimeout(late);
      release();
    }
  }
}

/** The provider with its addresses, which are read when somebody needs them, and again from time to time. */
class KnownProvider {
  readonly #issuer: string;
  readonly #clientID: string;
  #reading: Promise<OpenIDProvider> | undefined;

  constructor(issuer: string, clientID: string) {
    this.#issuer = issuer;
    this.#clientID = clientID;
  }

  /** @throws StatusError 502 when the provider does not answer. */
  async get(): Promise<OpenIDProvider> {
    this.#reading ??= this.#read();
    return await this.#reading;
  }

  async #read(): Promise<OpenIDProvider> {
    const forgetAfter = (milliseconds: number) =>
      setTimeout(() => (this.#reading = undefined), milliseconds).unref();
    try {
      const address = { issuer: this.#issuer, clientID: this.#clientID };
      const found = await openProvider(address, fetchFromProvider, ANSWER_MILLISECONDS / 1_000);
      forgetAfter(PROVIDER_MILLISECONDS);
      return found;
    } catch (error) {
      forgetAfter(FAILURE_MILLISECONDS);
      throw refusalOf(error);
    }
  }
}

/** Sends a request to the provider, through the proxy that the environment names. */
const fetchFromProvider: Fetch = async (url, options) =>
  await fetchWithLimits(url, options, {
    proxy: new Proxies(process.env).proxyFor(new URL(url)),
    signal: AbortSignal.timeout(ANSWER_MILLISECONDS),
  });

/**
 * Returns the refusal for the page. It has the error code of the provider and its text, and never a whole answer, because that could contain a
 * token.
 */
function refusalOf(error: unknown): StatusError {
  const { error: code, error_description: description } = error as {
    error?: unknown;
    error_description?: unknown;
  };
  if (typeof code !== 'string') {
    const { cause } = error as { cause?: unknown };
    const why = messageOf(cause instanceof Error ? cause : error).slice(0, MESSAGE_CHARACTERS);
    return new StatusError(502, `The identity provider gave no answer that can be used: ${why}`);
  }
  const text = [code, description].filter((part) => typeof part === 'string').join(': ');
  return new StatusError(
    400,
    `The identity provider refuses the sign-in: ${text.slice(0, MESSAGE_CHARACTERS)}`,
  );
}
