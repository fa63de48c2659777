/** Errors of the command with messages for people, and the exit codes of the command. */
import { ActionError, type ErrorKind } from '../actions/error.ts';
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
  hungUp: 129,
  interrupted: 130,
  terminated: 143,
} as const;
/** Exit codes after a signal: 128 and the number of the signal, as shells count it. */
const EXIT_BY_SIGNAL = {
  SIGHUP: EXIT.hungUp,
  SIGINT: EXIT.interrupted,
  SIGTERM: EXIT.terminated,
} as const satisfies Partial<Record<NodeJS.Signals, ExitCode>>;
export type EndingSignal = keyof typeof EXIT_BY_SIGNAL;
/**
 * Exit codes of `vm run` if Berth could not run the command, or could not copy its files. They are above 200, so that scripts can tell them
 * from the exit codes of most commands. docs/how-to/ci.md describes them.
 */
export const RUN_EXIT = {
  noVM: 201,
  notReady: 202,
  failed: 203,
  login: 204,
  lost: 205,
  copyIn: 206,
  copyOut: 207,
  secret: 208,
} as const;
export type ExitCode = (typeof EXIT)[keyof typeof EXIT] | (typeof RUN_EXIT)[keyof typeof RUN_EXIT];

/** Error with a message for the user. */
export class CommandError extends Error {
  override readonly name = 'CommandError';
  readonly exitCode: ExitCode;

  constructor(message: string, exitCode: ExitCode = EXIT.failed) {
    super(message);
    this.exitCode = exitCode;
  }
}

/** Error with the exit code of a program in a VM, or of `ssh`. This command ends with the same exit code and writes no message. */
export class ProgramEnded extends Error {
  override readonly name = 'ProgramEnded';
  readonly exitCode: number;

  constructor(exitCode: number) {
    super(`The command ended with exit code ${exitCode}`);
    this.exitCode = exitCode;
  }
}

/** Reason with which a signal aborts when the user interrupts the command. `cause` is the signal of the operating system. */
export class Interrupted extends CommandError {
  constructor(cause: EndingSignal = 'SIGINT') {
    super('Interrupted', EXIT_BY_SIGNAL[cause]);
  }
}

/**
 * Adds the sign-in command after the advice `Sign in again`, wherever a sentence of the message ends with this advice. `name` is the name
 * under which the user started this command.
 */
export function withLogin(message: string, name: string): string {
  return message.replace(/Sign in again(?=\.|$)/gm, (advice) => `${advice}: ${name} login`);
}

/** Messages of the API server for a path that it does not serve, for example because a CustomResourceDefinition is missing. */
const NO_SUCH_PATH = /could not find the requested resource|page not found/;
/** Messages about a right of the role namespace-admin. No role within a namespace has these rights. */
const OF_NAMESPACE_ADMIN = /\bcannot \w+ resource "(namespaces|hosts\/namespace)"/;
const EXIT_BY_STATUS: Readonly<Record<number, ExitCode>> = {
  401: EXIT.denied,
  403: EXIT.denied,
  404: EXIT.notFound,
  429: EXIT.noAnswer,
  500: EXIT.noAnswer,
  502: EXIT.noAnswer,
  503: EXIT.noAnswer,
  504: EXIT.noAnswer,
};

/** Exit codes of actions that fail. The exit code of the other kinds is `failed`. */
const EXIT_BY_KIND: Partial<Readonly<Record<ErrorKind, ExitCode>>> = {
  missing: EXIT.notFound,
  late: EXIT.noAnswer,
  busy: EXIT.noAnswer,
};

/** Error codes of OpenSSL and Node.js for a faulty certificate. */
const CERTIFICATE_ERRORS = /CERT|UNABLE_TO_(GET|VERIFY)/;

/** If the error is about the certificate of a server, returns a text that describes the mistake. Otherwise the result is undefined. */
export function certificateMistake(error: unknown): string | undefined {
  // Node.js adds advice about its own flags after a semicolon. The result leaves out this advice, because this command does not take these
  // flags.
  return CERTIFICATE_ERRORS.test(codeOf(error) ?? '') ? messageOf(error).split('; ', 1)[0] : undefined;
}

/** Returns the exit code and the message for an error. The message can have several lines. */
export function described(error: unknown): { exitCode: ExitCode; message: string } {
  if (error instanceof AggregateError) {
    const all = error.errors.map(described);
    // Work on several names can fail for all of them with the same message, for example if the API server does not answer.
    const messages = new Set(all.map(({ message }) => message));
    return { exitCode: all[0]?.exitCode ?? EXIT.failed, message: [...messages].join('\n') };
  }
  if (error instanceof ApiError) {
    return { exitCode: exitCodeOf(error), message: printable(formatRefusal(error)) };
  }
  return { exitCode: exitCodeFor(error), message: messageOf(error).split('\n').map(printable).join('\n') };
}

function exitCodeFor(error: unknown): ExitCode {
  if (error instanceof CommandError) {
    return error.exitCode;
  }
  if (error instanceof ActionError) {
    return EXIT_BY_KIND[error.kind] ?? EXIT.failed;
  }
  if (error instanceof CredentialError) {
    // If the identity provider does not answer, the credential plug-in of this command ends with the exit code `noAnswer`. In this case,
    // the result is not `denied`, because a new sign-in would not help.
    return error.exitCode === EXIT.noAnswer ? EXIT.noAnswer : EXIT.denied;
  }
  return isUnreachable(error) ? EXIT.noAnswer : EXIT.failed;
}

function exitCodeOf(error: ApiError): ExitCode {
  const { status } = error;
  // The API server also answers with status 403 if admission refuses a request, for example because of a quota. In this case, the user does
  // not lack a right.
  return isRefused(error) ? EXIT.failed : (EXIT_BY_STATUS[status] ?? EXIT.failed);
}

function formatRefusal(error: ApiError): string {
  const { status, message } = error;
  if (status === 403 && !isRefused(error)) {
    return `${message}. ${adviceFor(message)}`;
  }
  if (status === 401) {
    return 'Unauthorized: the cluster does not accept the credentials of the kubeconfig. Sign in again';
  }
  if (status === 404 && NO_SUCH_PATH.test(message)) {
    return 'The cluster does not have this kind. Berth is not installed there, or its release is older than this command';
  }
  return message;
}

/** Returns the advice for a user who lacks the right that the message of the API server names. */
function adviceFor(message: string): string {
  if (OF_NAMESPACE_ADMIN.test(message)) {
    return 'Ask a cluster admin for the role berth-role-namespace-admin';
  }
  return message.endsWith('at the cluster scope')
    ? 'Only cluster admins have this right'
    : 'Ask an admin of the namespace for a role, or choose another namespace with --namespace';
}

/**
 * Turns an error of the connection into a CommandError whose message contains the address of the server. Returns other errors unchanged.
 * `source` names the place from which the address and the certificate authority come.
 */
export function explained(error: unknown, server: string, source: string): unknown {
  const mistake = certificateMistake(error);
  if (mistake !== undefined) {
    return new CommandError(
      `The certificate of the ${server} is not trusted: ${mistake}. Check the certificate authority in ${source}`,
    );
  }
  return isUnreachable(error)
    ? new CommandError(
        `The ${server} does not answer: ${messageOfConnection(error)}. Check the network and ${source}`,
        EXIT.noAnswer,
      )
    : error;
}

/**
 * Returns the message of a failed connection. If a server has several addresses, the error has an empty message, and contains one error for
 * each address.
 */
function messageOfConnection(error: unknown): string {
  return error instanceof AggregateError ? error.errors.map(messageOf).join(', ') : messageOf(error);
}
