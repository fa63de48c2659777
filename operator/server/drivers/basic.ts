/** Basic authentication of HTTP (RFC 7617). */
import { type Credentials, PowerError } from './driver.ts';

/** Characters that a header cannot carry, and the colon, which ends the user name. */
const NOT_IN_NAME = /[\p{Cc}:]/u;
const NOT_IN_PASSWORD = /\p{Cc}/u;

export function basicToken({ username, password }: Credentials): string {
  return Buffer.from(`${username}:${password}`, 'utf8').toString('base64');
}

/**
 * Returns the value of the header `Authorization`.
 * @throws PowerError with `CredentialsMissing` when the header cannot carry the user name or the password
 */
export function basicAuthorization(credentials: Credentials): string {
  requireKey('username', credentials.username, NOT_IN_NAME, 'a colon or a control character');
  requireKey(
    'password',
    credentials.password,
    NOT_IN_PASSWORD,
    'a control character, for example a line end',
  );
  return `Basic ${basicToken(credentials)}`;
}

function requireKey(key: string, value: string, refused: RegExp, what: string): void {
  if (refused.test(value)) {
    throw new PowerError('CredentialsMissing', `The key ${key} of the Secret must not contain ${what}`, {
      isRefusal: true,
    });
  }
}
