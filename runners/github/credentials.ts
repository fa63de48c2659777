/** Reads the credentials for GitHub from a Secret, and signs the proof of a GitHub App. */
import { createPrivateKey, type KeyObject, sign } from 'node:crypto';
import { GITHUB_SECRET_TYPE } from '../../api/v1alpha1/names.ts';
import type { Secret } from '../../kube/core.ts';
import { GitHubError } from './error.ts';

/** Server that gets the credentials of a Secret without the key `host`. */
const USUAL_HOST = 'github.com';
/** Longest token and longest name of an App, in characters. */
const TEXT_LENGTH = 1_024;
/** Time in seconds by which the proof of an App begins before it is made, because the clock of the server can be late. */
const PROOF_BEFORE_SECONDS = 60;
/** Validity of the proof of an App in seconds. GitHub accepts ten minutes at most. */
const PROOF_SECONDS = 540;

export interface AppCredentials {
  readonly issuer: string;
  readonly installationID: string;
  readonly key: KeyObject;
}

/** A personal access token, or a GitHub App with its installation. */
export type GitHubCredentials = { readonly token: string } | AppCredentials;

/**
 * Returns the credentials in a Secret for a server.
 * @throws GitHubError with `CredentialSecretRefused` when the Secret is not usable for this server. The message has no value of the Secret
 * but the name of its server.
 */
export function readCredentials(secret: Secret | undefined, name: string, host: string): GitHubCredentials {
  if (secret === undefined) {
    throw refused(name, 'does not exist');
  }
  if (secret.type !== GITHUB_SECRET_TYPE) {
    throw refused(name, `has not the type ${GITHUB_SECRET_TYPE}`);
  }
  const values = (key: string): string | undefined => decode(secret.data?.[key]);
  // A user who may create RunnerSets must not be able to send the credentials to a server of the user's choice.
  const wanted = values('host')?.toLowerCase() ?? USUAL_HOST;
  if (wanted !== host) {
    throw refused(name, `is for another server. Its key host must be ${host}`);
  }
  const token = values('token');
  return token === undefined ? readApp(name, values) : { token };
}

function readApp(name: string, values: (key: string) => string | undefined): AppCredentials {
  const issuer = values('clientId') ?? values('appId');
  const installationID = values('installationId');
  const pem = values('privateKey');
  if (issuer === undefined || installationID === undefined || pem === undefined) {
    throw refused(
      name,
      'needs the key token, or the keys clientId (or appId), installationId and privateKey',
    );
  }
  if (!/^\d{1,20}$/.test(installationID)) {
    throw refused(name, 'has an installationId that is no number');
  }
  return { issuer, installationID, key: readKey(name, pem) };
}

function readKey(name: string, pem: string): KeyObject {
  let key: KeyObject;
  try {
    key = createPrivateKey(pem);
  } catch {
    // The error of OpenSSL is not passed on, because it can show a part of the key.
    throw refused(name, 'has a privateKey that is no RSA key as PEM text');
  }
  if (key.asymmetricKeyType !== 'rsa') {
    throw refused(name, 'has a privateKey that is no RSA key');
  }
  return key;
}

/** Returns the text of a value. It is undefined if it is missing, empty, or no token: a header cannot carry it. */
function decode(value: string | undefined): string | undefined {
  const text = Buffer.from(value ?? '', 'base64')
    .toString('utf8')
    .trim();
  const isPem = text.startsWith('-----BEGIN ');
  return text === '' || (!isPem && (text.length > TEXT_LENGTH || /[^\x21-\x7e]/.test(text)))
    ? undefined
    : text;
}

function refused(name: string, why: string): GitHubError {
  return new GitHubError('CredentialSecretRefused', `Secret ${name} ${why}`);
}

/**
 * Returns the certificates in a Secret as PEM text.
 * @throws GitHubError with `CredentialSecretRefused` when the Secret has none
 */
export function readAuthorities(secret: Secret | undefined, name: string): string {
  const text = Buffer.from(secret?.data?.['ca.crt'] ?? '', 'base64').toString('utf8');
  if (!text.includes('-----BEGIN CERTIFICATE-----')) {
    throw refused(name, 'does not exist, or has no certificate in its key ca.crt');
  }
  return text;
}

/** Returns the proof of an App: a JWT. `now` is in milliseconds since the epoch. */
export function signProof({ issuer, key }: AppCredentials, now: number): string {
  const iat = Math.floor(now / 1000) - PROOF_BEFORE_SECONDS;
  const claims = { iat, exp: iat + PROOF_SECONDS, iss: issuer };
  const text = [{ alg: 'RS256', typ: 'JWT' }, claims]
    .map((part) => Buffer.from(JSON.stringify(part)).toString('base64url'))
    .join('.');
  return `${text}.${sign('RSA-SHA256', Buffer.from(text), key).toString('base64url')}`;
}
