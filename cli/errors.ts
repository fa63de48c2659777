/** Errors of the command, in words for people, and its exit codes. */
import { codeOf, messageOf } from '../base/errors.ts';
import { ApiError, CredentialError, isRefused, isUnreachable } from '../kube/errors.ts';
import { printable } from './text.ts';

/** Exit codes. docs/how-to/command.md describes them. */
export const EXIT = {
  done: 0,
  failed: 1,
  usage: 2,
  denied: 3,
  notFound: 4,
  noAnswer: 5,
  interrupted: 130,
} as const;
export type ExitCode = (typeof EXIT)[keyof typeof EXIT];

/** Error whose message is for the user as it is. */
export class CommandError extends Error {
  override readonly name = 'CommandError';
  readonly exitCode: ExitCode;

  constructor(message: string, exitCode: ExitCode = EXIT.failed) {
    super(message);
    this.exitCode = exitCode;
  }
}

/** End of a command that ran in a VM or for it. This command ends with the same code, without a message. */
export class ProgramEnded extends Error {
  override readonly name = 'ProgramEnded';
  readonly exitCode: number;

  constructor(exitCode: number) {
    super(`The command ended with exit code ${exitCode}`);
    this.exitCode = exitCode;
  }
}

/** Reason of a signal that aborts because the user ends the command. */
export class Interrupted extends CommandError {
  constructor() {
    super('Interrupted', EXIT.interrupted);
  }
}

/** The words of the API server for a path that it does not serve, for example because a CustomResourceDefinition is missing. */
const NO_SUCH_PATH = /could not find the requested resource|page not found/;
const EXIT_BY_STATUS: Readonly<Record<number, ExitCode>> = {
  401: EXIT.denied,
  403: EXIT.denied,
  404: EXIT.notFound,
  429: EXIT.noAnswer,
  500: EXIT.noAnswer,
  503: EXIT.noAnswer,
  504: EXIT.noAnswer,
};

/** Codes of errors of a certificate, by OpenSSL and Node.js. */
const CERTIFICATE_ERRORS = /CERT|UNABLE_TO_(GET|VERIFY)/;

/** Returns the mistake in the certificate of a server; undefined for other errors. */
export function certificateMistake(error: unknown): string | undefined {
  // Node.js adds advice about its own flags, which this command does not take.
  return CERTIFICATE_ERRORS.test(codeOf(error) ?? '') ? messageOf(error).split('; ', 1)[0] : undefined;
}

/** Returns the exit code and the message for an error. The message may have several lines. */
export function described(error: unknown): { exitCode: ExitCode; message: string } {
  if (error instanceof AggregateError) {
    const all = error.errors.map(described);
    return {
      exitCode: all[0]?.exitCode ?? EXIT.failed,
      message: all.map(({ message }) => message).join('\n'),
    };
  }
  if (error instanceof ApiError) {
    return { exitCode: exitCodeOf(error), message: printable(wordsOf(error)) };
  }
  return { exitCode: exitCodeFor(error), message: messageOf(error).split('\n').map(printable).join('\n') };
}

function exitCodeFor(error: unknown): ExitCode {
  if (error instanceof CommandError) {
    return error.exitCode;
  }
  if (error instanceof CredentialError) {
    // The command's own plug-in ends with this code when the identity provider does not answer. A new sign-in would not help.
    return error.exitCode === EXIT.noAnswer ? EXIT.noAnswer : EXIT.denied;
  }
  return isUnreachable(error) ? EXIT.noAnswer : EXIT.failed;
}

function exitCodeOf(error: ApiError): ExitCode {
  const { status } = error;
  // Admission also refuses with 403, for example for a quota. The user has the right then.
  return isRefused(error) ? EXIT.failed : (EXIT_BY_STATUS[status] ?? EXIT.failed);
}

function wordsOf(error: ApiError): string {
  const { status, message } = error;
  if (status === 403 && !isRefused(error)) {
    return message.endsWith('at the cluster scope')
      ? `${message}. Only cluster admins have this right`
      : `${message}. Ask an admin of the namespace for a role, or choose another namespace with --namespace`;
  }
  if (status === 401) {
    return 'Unauthorized: the cluster does not accept the credentials of the kubeconfig. Sign in again: berth login';
  }
  if (status === 404 && NO_SUCH_PATH.test(message)) {
    return 'The cluster does not have this kind. Berth is not installed there, or its release is older than this command';
  }
  return message;
}
