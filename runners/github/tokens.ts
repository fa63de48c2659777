/** Gets the tokens for GitHub: of the App's installation, for the registration of runners, and for the service of scale sets. */
import { Serial } from '../../base/concurrency.ts';
import { parseJson } from '../../base/json.ts';
import { pause } from '../../base/time.ts';
import type { GitHubAddress } from './address.ts';
import { restTokenSchema, tenantSchema } from './answers.ts';
import { type AppCredentials, type GitHubCredentials, signProof } from './credentials.ts';
import { GitHubError, isAnswer } from './error.ts';
import type { Exchange } from './exchange.ts';

/** Time in milliseconds before its end at which a token is renewed. */
const RENEWAL_MILLISECONDS = 60_000;
/** Number of times that the service of scale sets is asked for its token, because it knows a new registration token only after a moment. */
const TENANT_TRIES = 4;
/** First wait between these tries in milliseconds. Each further wait is twice as long. */
const TENANT_WAIT_MILLISECONDS = 500;
/** Validity of a token whose end cannot be read, in milliseconds. */
const UNKNOWN_MILLISECONDS = 300_000;
/** Largest difference in milliseconds between the two clocks that is corrected: a day. */
const SKEW_MILLISECONDS = 86_400_000;
const JWT_LIMITS = { bytes: 16_384, items: 1_000 };

interface Expiring<T> {
  readonly value: T;
  /** End of the token in milliseconds since the epoch. */
  readonly until: number;
}

/** Access to the service of scale sets of one organization. */
export interface Tenant {
  readonly url: URL;
  readonly token: string;
}

export interface TokensOptions {
  readonly exchange: Exchange;
  readonly address: GitHubAddress;
  readonly credentials: GitHubCredentials;
  /** Returns the current time in milliseconds since the epoch. */
  readonly clock: () => number;
}

export class Tokens {
  readonly #options: TokensOptions;
  /** Callers that come at the same time share one renewal. */
  readonly #serial = new Serial();
  #installation: Expiring<string> | undefined;
  #tenant: Expiring<Tenant> | undefined;

  constructor(options: TokensOptions) {
    this.#options = options;
  }

  /** Returns a token for the REST API. @throws GitHubError */
  async rest(signal: AbortSignal): Promise<string> {
    return await this.#serial.run(async () => await this.#rest(signal));
  }

  /** Returns the address of the service of scale sets, and a token for it. @throws GitHubError */
  async tenant(signal: AbortSignal): Promise<Tenant> {
    return await this.#serial.run(async () => {
      if (this.#tenant === undefined || this.#isOver(this.#tenant)) {
        this.#tenant = await this.#fetchTenant(signal);
      }
      return this.#tenant.value;
    });
  }

  /** Forgets all tokens, after GitHub refused one of them. */
  forget(): void {
    this.#installation = undefined;
    this.#tenant = undefined;
  }

  #isOver({ until }: Expiring<unknown>): boolean {
    return until - this.#options.clock() < RENEWAL_MILLISECONDS;
  }

  async #rest(signal: AbortSignal): Promise<string> {
    const { credentials } = this.#options;
    if ('token' in credentials) {
      return credentials.token;
    }
    if (this.#installation === undefined || this.#isOver(this.#installation)) {
      this.#installation = await this.#fetchInstallation(credentials, signal);
    }
    return this.#installation.value;
  }

  async #fetchInstallation(app: AppCredentials, signal: AbortSignal): Promise<Expiring<string>> {
    const { exchange, address, clock } = this.#options;
    const ask = async (now: number): Promise<Expiring<string>> => {
      const { token, expires_at } = await exchange.fetch(
        {
          method: 'POST',
          url: new URL(`${address.api}/app/installations/${app.installationID}/access_tokens`),
          headers: {
            authorization: `Bearer ${signProof(app, now)}`,
            'content-type': 'application/vnd.github+json',
          },
          what: 'The token of the App’s installation',
        },
        restTokenSchema,
        signal,
      );
      return { value: token, until: Date.parse(expires_at) || clock() + UNKNOWN_MILLISECONDS };
    };
    try {
      return await ask(clock());
    } catch (error) {
      const there = error instanceof GitHubError && error.status === 401 ? error.serverDate : undefined;
      const isApart = there !== undefined && Math.abs(there - clock()) < SKEW_MILLISECONDS;
      if (!isApart) {
        throw error;
      }
      // GitHub refuses a proof that begins in its future. The second proof has the time of GitHub.
      return await ask(there);
    }
  }

  async #fetchTenant(signal: AbortSignal): Promise<Expiring<Tenant>> {
    const { exchange, address } = this.#options;
    const rest = await this.#rest(signal);
    const { token: registration } = await exchange.fetch(
      {
        method: 'POST',
        url: new URL(`${address.api}/${address.scope}/actions/runners/registration-token`),
        headers: { authorization: `Bearer ${rest}`, 'content-type': 'application/vnd.github.v3+json' },
        what: 'The registration token',
      },
      restTokenSchema,
      signal,
    );
    const tenant = await this.#askTenant(registration, signal);
    return { value: tenant, until: endOf(tenant.token) ?? this.#options.clock() + UNKNOWN_MILLISECONDS };
  }

  async #askTenant(registration: string, signal: AbortSignal): Promise<Tenant> {
    const { exchange, address } = this.#options;
    for (let attempt = 1; ; attempt += 1) {
      try {
        return await exchange.fetch(
          {
            method: 'POST',
            url: new URL(`${address.api}/actions/runner-registration`),
            headers: { authorization: `RemoteAuth ${registration}`, 'content-type': 'application/json' },
            body: { url: address.url, runner_event: 'register' },
            what: 'The registration at the service of scale sets',
          },
          tenantSchema,
          signal,
        );
      } catch (error) {
        if (attempt === TENANT_TRIES || !isAnswer(error, 401, 403)) {
          throw error;
        }
        await pause(TENANT_WAIT_MILLISECONDS * 2 ** (attempt - 1), signal);
      }
    }
  }
}

/** Returns the end of a JWT in milliseconds since the epoch. Its signature is not checked, because only GitHub trusts the token. */
function endOf(jwt: string): number | undefined {
  try {
    const claims = parseJson(Buffer.from(jwt.split('.')[1] ?? '', 'base64url'), JWT_LIMITS);
    const end = (claims as { exp?: unknown } | null)?.exp;
    return typeof end === 'number' && Number.isFinite(end) ? end * 1000 : undefined;
  } catch {
    return undefined;
  }
}
