/** The identity provider of the user. The library for OpenID Connect is loaded only here. */
import type * as OpenIDClient from 'openid-client';
import type {
  Configuration,
  CustomFetch,
  TokenEndpointResponse,
  TokenEndpointResponseHelpers,
} from 'openid-client';
import { messageOf } from '../../base/errors.ts';
import { CommandError, EXIT, Interrupted } from '../errors.ts';
import { ANSWER_MILLISECONDS, fetchFrom } from './https.ts';
import type { Session, Tokens } from './session.ts';

/** Longest text of a provider in a message. */
const WORDS_CHARACTERS = 300;
/** Scope with which a provider gives refresh tokens. */
const OFFLINE = 'offline_access';

/** Errors of OAuth that need another action than a look at the provider's words. */
const ACTIONS: Readonly<Record<string, string>> = {
  access_denied: 'The sign-in was refused. Sign in again and agree, or ask an admin of the identity provider',
  expired_token: 'The code expired before you signed in. Sign in again',
  invalid_grant: 'The session has ended. Sign in again: berth login',
  invalid_client: 'The identity provider does not know this client. Check the client ID',
  invalid_scope: 'The identity provider does not offer these scopes. Check server.config.cluster.scopes',
  unauthorized_client: 'The identity provider does not allow this way of sign-in for the client',
  unsupported_grant_type: 'The identity provider does not offer this way of sign-in',
};
/** Errors after which only another sign-in helps. */
const DENIED: readonly unknown[] = ['access_denied', 'expired_token', 'invalid_grant'];

export type Address = Pick<Session, 'issuer' | 'clientID' | 'authority'>;

export interface OpenIDProvider {
  readonly oidc: typeof OpenIDClient;
  readonly configuration: Configuration;
}

/** Runs `work` with a client of the provider. @throws CommandError that names what to do; the signal's reason. */
export async function withProvider<T>(
  { issuer, clientID, authority }: Address,
  signal: AbortSignal,
  work: (provider: OpenIDProvider) => Promise<T>,
): Promise<T> {
  if (URL.parse(issuer)?.protocol !== 'https:') {
    throw new CommandError(`The issuer ${issuer} must be an https address`, EXIT.usage);
  }
  const oidc = await import('openid-client');
  try {
    const configuration = await oidc.discovery(new URL(issuer), clientID, undefined, oidc.None(), {
      [oidc.customFetch]: fetchFrom({ who: 'identity provider', authority, signal }) as CustomFetch,
      timeout: ANSWER_MILLISECONDS / 1000,
    });
    return await work({ oidc, configuration });
  } catch (error) {
    signal.throwIfAborted();
    throw explained(error, issuer);
  }
}

/** Returns the scopes to ask for, with the one for refresh tokens unless the provider says that it does not have it. */
export function scopesFor({ configuration }: OpenIDProvider, scopes: readonly string[]): string {
  const { scopes_supported: supported = [OFFLINE] } = configuration.serverMetadata();
  const offline = supported.includes(OFFLINE) ? [OFFLINE] : [];
  return [...new Set(['openid', ...scopes, ...offline])].join(' ');
}

/** @throws CommandError when the provider gave no ID token with a life. */
export function tokensOf(answer: TokenEndpointResponse & TokenEndpointResponseHelpers): Tokens {
  const { id_token: idToken, refresh_token: refreshToken } = answer;
  const { iat, exp } = answer.claims() ?? {};
  if (idToken === undefined || iat === undefined || exp === undefined) {
    throw new CommandError('The identity provider gave no ID token. Sign in again: berth login', EXIT.denied);
  }
  return { idToken, refreshToken, life: exp - iat };
}

/** Returns an error in words. The words of the provider are in it, and no answer as a whole, which could have a token. */
function explained(error: unknown, issuer: string): unknown {
  const causes = causesOf(error);
  const own = causes.find((cause) => cause instanceof CommandError || cause instanceof Interrupted);
  if (own !== undefined) {
    return own;
  }
  const { error: code, error_description: description } = error as {
    error?: unknown;
    error_description?: unknown;
  };
  if (typeof code === 'string') {
    const words = [code, description].filter((text) => typeof text === 'string').join(': ');
    const action = ACTIONS[code] ?? 'Check the client at the identity provider';
    const exitCode = DENIED.includes(code) ? EXIT.denied : EXIT.failed;
    return new CommandError(`${action}. ${issuer} says ${words.slice(0, WORDS_CHARACTERS)}`, exitCode);
  }
  const words = causes.map(messageOf).join(': ').slice(0, WORDS_CHARACTERS);
  return new CommandError(
    `The identity provider ${issuer} gave an answer that cannot be used: ${words}. Check the issuer and the client ID, and compare the clocks`,
  );
}

/** Returns the error and its causes, of which the library has at most three. */
function causesOf(error: unknown): Error[] {
  const causes: Error[] = [];
  for (let next = error; next instanceof Error && causes.length < 4; next = next.cause) {
    causes.push(next);
  }
  return causes;
}
