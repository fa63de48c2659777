/**
 * Interface to the controllers of servers, each of whose drivers speaks one protocol. A controller is not trusted: its texts are bounded in
 * messages, stay on one line and never repeat a password.
 */
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import type { PowerAction } from '../../../api/v1alpha1/server.ts';

/** Time in milliseconds in which a controller must answer one call. Slow controllers of real servers need a few seconds. */
export const CALL_MILLISECONDS = 10_000;

/** User name and password of a controller. They never appear in logs, messages or arguments of programs. */
export interface Credentials {
  readonly username: string;
  readonly password: string;
}

/** Power of a server as its controller tells it. */
export type Power = 'On' | 'Off';

/** Reasons why a call of a controller failed. */
type PowerErrorReason =
  | 'ControllerUnreachable'
  | 'ControllerFailed'
  | 'CertificateRefused'
  | 'CredentialsRefused'
  | 'CredentialsMissing'
  | 'ControllerInvalid';

/** Failure of a call, with the words of the controller on one line. */
export class PowerError extends ReasonedError<PowerErrorReason> {
  override readonly name = 'PowerError';
  /**
   * Whether the controller has certainly not carried out the command, because it refused the command or never got it. After a time limit or
   * a lost connection this is false.
   */
  readonly isRefusal: boolean;

  constructor(reason: PowerErrorReason, message: string, o: { isRefusal: boolean; cause?: unknown }) {
    super(reason, message, { cause: o.cause });
    this.isRefusal = o.isRefusal;
  }
}

export interface PowerDriver {
  /** Whether the controller has one command for a reboot. If not, Berth switches the server off, and on again. */
  readonly canReboot: boolean;
  /**
   * Reads the power.
   * @throws PowerError when the controller does not answer within {@link CALL_MILLISECONDS}, or its answer is not valid
   */
  read(): Promise<Power>;
  /**
   * Sends one command, once. Resolves when the controller has accepted it, which does not mean that the power has changed. `Reboot` is sent
   * only if {@link canReboot} is true.
   * @throws PowerError
   */
  send(command: PowerAction): Promise<void>;
}

/** Largest number of characters of a controller's text. A status has room for a sentence, not for a page. */
const MESSAGE_CHARACTERS = 300;
/** Control characters, characters that change the direction of text, and white space. */
const BREAKING = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\s]+/gu;

/** Returns a text of a controller on one line of at most 300 characters, without the password and its forms in requests. */
export function quoteController(text: string, credentials: Credentials | undefined): string {
  let safe = text;
  for (const secret of credentials === undefined ? [] : [basicToken(credentials), credentials.password]) {
    safe = secret === '' ? safe : safe.replaceAll(secret, '***');
  }
  return safe.replaceAll(BREAKING, ' ').trim().slice(0, MESSAGE_CHARACTERS).toWellFormed();
}

/** Characters that a header cannot carry, and the colon, which ends the user name. */
const NOT_IN_NAME = /[\p{Cc}:]/u;
const NOT_IN_PASSWORD = /\p{Cc}/u;

function basicToken({ username, password }: Credentials): string {
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
