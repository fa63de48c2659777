/**
 * Finds the probable reason why an API server refused a token. The API server writes the reason only to its log, and does not send it to
 * the client. Therefore this code looks for the reason in the token.
 */
import { type JsonLimits, parseJson } from '../../base/json.ts';

/** The identity provider with which users sign in. */
export interface SignInProvider {
  readonly issuer?: string | undefined;
  readonly clientID: string;
}

/** Longest lifetime of a token in seconds. The authentication configuration of the API server has the same value. */
const LIFE_SECONDS = 3600;
/**
 * Tolerance in seconds for the claim `nbf`, the time at which a token becomes valid. The API server accepts a token up to this number of
 * seconds earlier, because clocks differ.
 */
const BEGIN_LEEWAY_SECONDS = 60;
/** Latest time that a Date can hold, in seconds. */
const LAST_SECOND = 8.64e12;

/** Limits of the claims. A header of a request has at most 16 KiB. Tokens with many groups have a few hundred items. */
const CLAIMS_LIMITS: JsonLimits = { bytes: 16 * 1024, items: 4_096 };

type Claims = Readonly<Record<string, unknown>>;

/** Returns the claims of an ID token, without a check of its signature. For other tokens, the result is empty. */
function claimsOf(token: string): Claims {
  const [, payload = ''] = token.split('.');
  try {
    const claims = parseJson(Buffer.from(payload, 'base64url'), CLAIMS_LIMITS);
    return typeof claims === 'object' && claims !== null ? (claims as Claims) : {};
  } catch {
    return {};
  }
}

/**
 * Returns the reason why the API server refuses the token. `now` is in seconds since 1970. The result is undefined if the token does not
 * show a reason. The result contains no quotation marks and no backslashes, because an HTTP header would have to escape them. It contains
 * no part of the token.
 */
export function causeOfRefusal(
  token: string,
  signIn: SignInProvider,
  now = Date.now() / 1000,
): string | undefined {
  const claims = claimsOf(token);
  const [expiry, begin] = [timeOf(claims['exp']), timeOf(claims['nbf'])];
  if (expiry !== undefined && expiry <= now) {
    return `The token expired at ${written(expiry)}. Sign in again`;
  }
  if (begin !== undefined && begin > now + BEGIN_LEEWAY_SECONDS) {
    return `The token is valid from ${written(begin)} on. Compare the clocks of the API server and the identity provider`;
  }
  return signIn.issuer !== undefined && claims['iss'] === signIn.issuer
    ? causeForProvider(claims, signIn.clientID, expiry)
    : undefined;
}

/**
 * Checks a token of the identity provider against the rules of the API server's authentication configuration. Returns the rule that the
 * token breaks, or undefined if it breaks none.
 */
function causeForProvider(claims: Claims, clientID: string, expiry: number | undefined): string | undefined {
  const audience = claims['aud'];
  if (audience !== clientID && !(Array.isArray(audience) && audience.includes(clientID))) {
    return 'The token is for another client of the identity provider';
  }
  const issued = timeOf(claims['iat']);
  if (expiry === undefined || issued === undefined) {
    return 'The token does not tell its lifetime. Configure the identity provider so that it writes the claims exp and iat as numbers';
  }
  if (expiry - issued > LIFE_SECONDS) {
    return 'The token is valid for longer than one hour. Shorten the lifetime of ID tokens at the identity provider';
  }
  return claims['email_verified'] === true ? undefined : 'The email address in the token is not verified';
}

function timeOf(claim: unknown): number | undefined {
  return typeof claim === 'number' && Math.abs(claim) <= LAST_SECOND ? claim : undefined;
}

function written(seconds: number): string {
  return new Date(seconds * 1000).toISOString();
}
