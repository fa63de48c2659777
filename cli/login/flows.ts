/** The two ways to sign in at an identity provider. */
import { CommandError, EXIT } from '../errors.ts';
import { printable } from '../text.ts';
import type { OpenBrowser } from './browser.ts';
import { Loopback } from './loopback.ts';
import { type OpenIDProvider, tokensOf } from './provider.ts';
import type { Tokens } from './session.ts';

/**
 * Time limit for a sign-in. The limit is long, because people might have to find a password and a second factor. The code for a device can
 * expire before this limit.
 */
const SIGN_IN_MILLISECONDS = 600_000;

export interface Prompt {
  /** Scopes, separated by spaces. */
  readonly scope: string;
  /** Writes a text for the person who signs in. */
  readonly say: (text: string) => void;
  readonly signal: AbortSignal;
}

/**
 * Signs in with a browser on this computer. Uses the authorization code flow of OAuth with PKCE. Resolves with the tokens.
 *
 * @throws CommandError; errors of the library.
 */
export async function signInByBrowser(
  { oidc, configuration }: OpenIDProvider,
  { scope, say, signal }: Prompt,
  openBrowser: OpenBrowser,
): Promise<Tokens> {
  const [verifier, state, nonce] = [oidc.randomPKCECodeVerifier(), oidc.randomState(), oidc.randomNonce()];
  await using loopback = await Loopback.open(state);
  const { href } = oidc.buildAuthorizationUrl(configuration, {
    redirect_uri: loopback.address,
    scope,
    state,
    nonce,
    code_challenge: await oidc.calculatePKCECodeChallenge(verifier),
    code_challenge_method: 'S256',
    // Providers give refresh tokens only if the person consents (OpenID Connect Core, section 11). Therefore the provider must ask for
    // consent.
    prompt: 'consent',
  });
  say(`Sign in with a browser on this computer. If no browser opens, open this address:\n\n  ${href}\n\n`);
  openBrowser(href);
  const { url, end } = await loopback.arrival(withLimit(signal));
  let isDone = false;
  try {
    const answer = await oidc.authorizationCodeGrant(configuration, url, {
      pkceCodeVerifier: verifier,
      expectedState: state,
      expectedNonce: nonce,
      idTokenExpected: true,
    });
    isDone = true;
    return tokensOf(answer);
  } finally {
    end(isDone);
  }
}

/**
 * Signs in with a browser on any computer. The person enters a code in the browser. Resolves with the tokens.
 *
 * @throws CommandError; errors of the library.
 */
export async function signInByDevice(
  { oidc, configuration }: OpenIDProvider,
  { scope, say, signal }: Prompt,
): Promise<Tokens> {
  const device = await oidc.initiateDeviceAuthorization(configuration, { scope });
  const address = device.verification_uri_complete ?? device.verification_uri;
  if (URL.parse(address)?.protocol !== 'https:') {
    throw new CommandError('The identity provider gave a sign-in address that is not https');
  }
  const code = printable(device.user_code);
  say(
    `Sign in with a browser on any computer. Enter the code ${code}, or check that the page shows this code. Open this address:\n\n  ${printable(address)}\n\n`,
  );
  const limited = withLimit(signal);
  try {
    const options = { signal: limited };
    return tokensOf(await oidc.pollDeviceAuthorizationGrant(configuration, device, undefined, options));
  } catch (error) {
    throw limited.aborted ? limited.reason : error;
  }
}

/** Returns a signal that aborts when `signal` aborts, or when the time limit for a sign-in is over. */
function withLimit(signal: AbortSignal): AbortSignal {
  const late = new AbortController();
  const minutes = SIGN_IN_MILLISECONDS / 60_000;
  const error = new CommandError(`Nobody signed in within ${minutes} minutes. Sign in again`, EXIT.noAnswer);
  setTimeout(() => late.abort(error), SIGN_IN_MILLISECONDS).unref();
  return AbortSignal.any([signal, late.signal]);
}
