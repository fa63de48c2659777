/**
 * Says in the header `WWW-Authenticate` of a 401 why a token was refused (RFC 6750). The API server writes the cause only to its own log.
 * An answer names only causes that the token itself shows. Nothing here decides about access.
 */
import type { App } from '../http/app.ts';

/** Where users sign in. */
export interface SignIn {
  readonly issuer?: string | undefined;
  readonly clientID: string;
}

/** Longest life of a token in seconds, as in the authentication configuration of the API server. */
const LIFE_SECONDS = 3600;
/** Seconds by which the begin of a token may be in the future. API servers allow the same, because clocks differ. */
const BEGIN_LEEWAY_SECONDS = 60;
/** Latest time that a Date can hold, in seconds. */
const LAST_SECOND = 8.64e12;
const CREDENTIALS = /^Bearer +(?:Bearer +)?([^ ].*)$/i;

type Claims = Readonly<Record<string, unknown>>;

/** Adds the header to every answer with 401. */
export function addChallenges(app: App, signIn: SignIn): void {
  app.addHook('onSend', (request, reply, _payload, next) => {
    if (reply.statusCode === 401) {
      void reply.header('www-authenticate', challengeOf(request.headers.authorization, signIn));
    }
    next();
  });
}

/** Returns the value of the header for a refused request with this header `Authorization`. `now` is in milliseconds. */
export function challengeOf(authorization: string | undefined, signIn: SignIn, now = Date.now()): string {
  const token = CREDENTIALS.exec(authorization ?? '')?.[1];
  if (token === undefined) {
    return 'Bearer';
  }
  const cause = causeIn(claimsOf(token), signIn, now / 1000);
  const description = cause === undefined ? '' : `, error_description="${cause}"`;
  return `Bearer error="invalid_token"${description}`;
}

function claimsOf(token: string): Claims {
  const [, payload = ''] = token.split('.');
  try {
    const claims: unknown = JSON.parse(Buffer.from(payload, 'base64url').toString());
    return typeof claims === 'object' && claims !== null ? (claims as Claims) : {};
  } catch {
    return {};
  }
}

/**
 * Returns the cause in words. They contain no quotation marks and no backslashes, which the header would have to escape. They repeat no
 * text of the token.
 */
function causeIn(claims: Claims, signIn: SignIn, now: number): string | undefined {
  const [expiry, begin] = [timeOf(claims['exp']), timeOf(claims['nbf'])];
  if (expiry !== undefined && expiry <= now) {
    return `The token expired at ${written(expiry)}. Sign in again`;
  }
  if (begin !== undefined && begin > now + BEGIN_LEEWAY_SECONDS) {
    return `The token is valid from ${written(begin)} on. Compare the clocks`;
  }
  return signIn.issuer !== undefined && claims['iss'] === signIn.issuer
    ? causeForProvider(claims, signIn.clientID, expiry)
    : undefined;
}

/** Returns which rule of the authentication configuration a token of the provider breaks. */
function causeForProvider(claims: Claims, clientID: string, expiry: number | undefined): string | undefined {
  const audience = claims['aud'];
  if (audience !== clientID && !(Array.isArray(audience) && audience.includes(clientID))) {
    return 'The token is for another client of the identity provider';
  }
  const issued = timeOf(claims['iat']);
  if (expiry === undefined || issued === undefined || expiry - issued > LIFE_SECONDS) {
    return 'The token lives longer than one hour. Shorten the life of ID tokens at the identity provider';
  }
  return claims['email_verified'] === true ? undefined : 'The email address in the token is not verified';
}

function timeOf(claim: unknown): number | undefined {
  return typeof claim === 'number' && Math.abs(claim) <= LAST_SECOND ? claim : undefined;
}

function written(seconds: number): string {
  return new Date(seconds * 1000).toISOString();
}
