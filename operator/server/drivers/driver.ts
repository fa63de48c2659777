/** Interface to the controllers of servers. Each driver speaks one protocol. */
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
