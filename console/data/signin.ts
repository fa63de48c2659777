/**
 * Sign-in at the identity provider of the cluster: by code with PKCE. The browser goes to the provider and comes back. Meanwhile, the secrets of
 * the sign-in are in the session storage of this window. They are useless without the code of the provider. The token is never stored.
 */
import { base64url } from './api.ts';
import { refusalOf, RefusedRequestError } from './refusal.ts';

const SIGN_IN_PATH = '/console/sign-in';
/** Name of the secrets in the session storage. */
const ITEM = 'berth-sign-in';
/** Time limit in milliseconds of a request. The server asks the provider meanwhile. */
const REQUEST_MILLISECONDS = 30_000;
const SECRET_BYTES = 32;

/** Where people sign in. */
export interface SignInOffer {
  readonly address: string;
  readonly clientID: string;
  readonly scope: string;
}

interface BegunSignIn {
  readonly state: string;
  readonly nonce: string;
  readonly verifier: string;
  /** Part of the address after `#` that the person wanted to see. */
  readonly hash: string;
}

/** Returns where people sign in, or undefined if the cluster has no provider. @throws RefusedRequestError, TypeError or DOMException. */
export async function readOffer(): Promise<SignInOffer | undefined> {
  const offer = (await ask({ method: 'GET' })) as Partial<SignInOffer>;
  return offer.address === undefined ? undefined : (offer as SignInOffer);
}

/** Goes to the page of the provider. */
export async function goToProvider({ address, clientID, scope }: SignInOffer): Promise<void> {
  const [state, nonce, verifier] = [makeSecret(), makeSecret(), makeSecret()];
  const begun: BegunSignIn = { state, nonce, verifier, hash: location.hash };
  sessionStorage.setItem(ITEM, JSON.stringify(begun));
  const digest = await crypto.subtle.digest('SHA-256', new TextEncoder().encode(verifier));
  const url = new URL(address);
  const parameters = {
    response_type: 'code',
    client_id: clientID,
    redirect_uri: redirectAddress(),
    scope,
    state,
    nonce,
    code_challenge: base64url(new Uint8Array(digest)),
    code_challenge_method: 'S256',
  };
  for (const [name, value] of Object.entries(parameters)) {
    url.searchParams.set(name, value);
  }
  location.assign(url);
}

/**
 * Returns the token if the provider has just sent the browser back, and else undefined. The answer of the provider is removed from the address,
 * because it works only once. @throws RefusedRequestError, TypeError or DOMException.
 */
export async function takeToken(): Promise<string | undefined> {
  const { state } = Object.fromEntries(new URLSearchParams(location.search));
  const stored = sessionStorage.getItem(ITEM);
  sessionStorage.removeItem(ITEM);
  if (state === undefined) {
    return undefined;
  }
  const address = redirectAddress() + location.search;
  const begun = stored === null ? undefined : (JSON.parse(stored) as BegunSignIn);
  history.replaceState(null, '', redirectAddress() + (begun?.hash ?? ''));
  if (begun?.state !== state) {
    // Another page can lead here, with an answer for another person.
    throw new RefusedRequestError(400, 'This sign-in was not begun in this window. Sign in again');
  }
  const { verifier, nonce } = begun;
  const { token } = (await ask({
    method: 'POST',
    body: JSON.stringify({ address, verifier, state, nonce }),
    headers: { 'content-type': 'application/json' },
  })) as { token: string };
  return token;
}

/** Address of this page, to which the provider sends the browser. It must be registered at the provider. */
function redirectAddress(): string {
  return `${location.origin}/console/`;
}

async function ask(request: RequestInit): Promise<unknown> {
  const response = await fetch(SIGN_IN_PATH, {
    ...request,
    cache: 'no-store',
    credentials: 'omit',
    redirect: 'error',
    signal: AbortSignal.timeout(REQUEST_MILLISECONDS),
  });
  if (!response.ok) {
    throw await refusalOf(response);
  }
  return await response.json();
}

function makeSecret(): string {
  return base64url(crypto.getRandomValues(new Uint8Array(SECRET_BYTES)));
}
