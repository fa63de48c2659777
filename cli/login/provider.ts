/** Talks to the identity provider of the user, and tells the user what goes wrong. */
import type { TokenEndpointResponse, TokenEndpointResponseHelpers } from 'openid-client';
import { type OpenIDProvider, openProvider } from '../../actions/identityprovider.ts';
import { messageOf } from '../../base/errors.ts';
import { CommandError, EXIT, Interrupted } from '../errors.ts';
import { ANSWER_MILLISECONDS, fetchFrom } from './https.ts';
import type { Terminal } from '../terminal.ts';
import type { LoginSession, LoginTokens } from './session.ts';

/** Largest number of characters of a provider's text in a message. Longer texts are cut. */
const MESSAGE_CHARACTERS = 300;
/** Scope that a client must request to get refresh tokens. */
const OFFLINE = 'offline_access';

/**
 * Messages for the user. Each key is an error code of OAuth, and its message tells the cause or the next step. For other error codes, the
 * user has to read the text of the provider.
 */
const ACTIONS: Readonly<Record<string, string>> = {
  access_denied: 'The sign-in was refused. Sign in again and agree, or ask an admin of the identity provider',
  expired_token: 'The code expired before you signed in. Sign in again',
  invalid_grant: 'The session has ended. Sign in again',
  invalid_client: 'The identity provider does not know this client. Check the client ID',
  invalid_scope:
    'The identity provider does not offer these scopes. Check the chart value server.config.cluster.scopes',
  unauthorized_client: 'The identity provider does not allow this client to sign in this way',
  unsupported_grant_type: 'The identity provider does not offer this way to sign in',
};
/** Errors after which only a new sign-in helps. */
const DENIED: readonly unknown[] = ['access_denied', 'expired_token', 'invalid_grant'];

export type Address = Pick<LoginSession, 'issuer' | 'clientID' | 'authority'>;

/**
 * Runs `work` with a client of the provider, and resolves with the result of `work`.
 *
 * @throws CommandError that names the next step; the signal's reason when the signal aborts.
 */
export async function withProvider<T>(
  { issuer, clientID, authority }: Address,
  { signal, environment }: Pick<Terminal, 'signal' | 'environment'>,
  work: (provider: OpenIDProvider) => Promise<T>,
): Promise<T> {
  if (URL.parse(issuer)?.protocol !== 'https:') {
    throw new CommandError(`The issuer ${issuer} must be an https address`, EXIT.usage);
  }
  try {
    const fetch = fetchFrom({ who: 'identity provider', authority, signal, environment });
    return await work(await openProvider({ issuer, clientID }, fetch, ANSWER_MILLISECONDS / 1000));
  } catch (error) {
    signal.throwIfAborted();
    throw explained(error, issuer);
  }
}

/**
 * Returns the scopes for a sign-in, separated by spaces. The result contains the scope for refresh tokens, except when the provider
 * publishes a list of its scopes and this scope is not in the list.
 */
export function scopesFor({ configuration }: OpenIDProvider, scopes: readonly string[]): string {
  const { scopes_supported: supported = [OFFLINE] } = configuration.serverMetadata();
  const offline = supported.includes(OFFLINE) ? [OFFLINE] : [];
  return [...new Set(['openid', ...scopes, ...offline])].join(' ');
}

/**
 * Returns the tokens in an answer of the provider.
 *
 * @throws CommandError when the answer has no ID token, or when the lifetime of the ID token is unknown.
 */
export function tokensOf(answer: TokenEndpointResponse & TokenEndpointResponseHelpers): LoginTokens {
  const { id_token: idToken, refresh_token: refreshToken } = answer;
  const { iat, exp } = answer.claims() ?? {};
  if (idToken === undefined || iat === undefined || exp === undefined) {
    throw new CommandError('The identity provider gave no ID token. Sign in again', EXIT.denied);
  }
  return { idToken, refreshToken, life: exp - iat };
}

/**
 * Returns the error for the user. Its message contains the text of the provider's error. The message never contains a whole answer of the
 * provider, because an answer could contain a token.
 */
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
    const message = [code, description].filter((text) => typeof text === 'string').join(': ');
    const action = ACTIONS[code] ?? 'Check the client at the identity provider';
    const exitCode = DENIED.includes(code) ? EXIT.denied : EXIT.failed;
    return new CommandError(`${action}. ${issuer} says ${message.slice(0, MESSAGE_CHARACTERS)}`, exitCode);
  }
  const message = causes.map(messageOf).join(': ').slice(0, MESSAGE_CHARACTERS);
  return new CommandError(
    `The identity provider ${issuer} gave an answer that cannot be used: ${message}. Check the issuer and the client ID, and compare the clocks of this computer and the identity provider`,
  );
}

/** Returns the error and its causes. The library nests at most three causes. */
function causesOf(error: unknown): Error[] {
  const causes: Error[] = [];
  for (let next = error; next instanceof Error && causes.length < 4; next = next.cause) {
    causes.push(next);
  }
  return causes;
}
