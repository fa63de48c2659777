/**
 * Runs programs in a guest by the program ssh of this computer, over one connection. The connection goes through the API server, as in
 * `vm ssh`. The first ssh process keeps the connection, and each program has a further ssh process that uses it.
 */
import { type ChildProcess, spawn, type StdioOptions } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { Backoff } from '../../base/backoff.ts';
import { run as runProgram } from '../../base/exec.ts';
import { codeOf } from '../../base/errors.ts';
import { pause } from '../../base/time.ts';
import { CommandError, RUN_EXIT } from '../errors.ts';
import { quoted } from './ssh.ts';

/** Exit code of ssh if the connection fails. A program of the guest can have this exit code, too. */
const SSH_FAILED = 255;
/** Time limit in seconds for an attempt to log in. An emulated guest needs some seconds for its part of the key exchange. */
const ATTEMPT_SECONDS = 30;
/** The first wait and the longest wait between two attempts to log in, in milliseconds. */
const BACKOFF = { firstMilliseconds: 250, capMilliseconds: 5_000, jitter: 1 } as const;
/**
 * Time in milliseconds for which a guest may refuse the key. Guests without a check of SSH can be Ready before they have written their keys.
 */
const REFUSED_MILLISECONDS = 30_000;
/** Number of characters of the output of a program that are kept, for messages and short answers. */
const OUTPUT_CHARACTERS = 500;
/** Time limit in milliseconds for the creation of a key, which usually takes milliseconds. */
const KEY_MILLISECONDS = 30_000;
/** ssh asks the guest for a sign of life after this number of seconds without data, and gives up after so many questions. */
const ALIVE = { seconds: 15, questions: 3 } as const;

/**
 * ssh reads no configuration of this computer. Else a job could get what is meant for other hosts: keys of the agent, forwarded ports, or
 * variables.
 */
const WITHOUT_CONFIGURATION = ['-F', 'none'] as const;

/** The guest or the connection to it is lost. */
class ConnectionLost extends CommandError {
  constructor(name: string) {
    super(`The connection to VM ${name} was lost`, RUN_EXIT.lost);
  }
}

interface Login {
  readonly name: string;
  readonly user: string;
  /** Options of ssh for the VM. */
  readonly options: readonly string[];
  /** Folder that only this user can read, for the socket of the connection. */
  readonly folder: string;
  /** File with the private key that the user gave. */
  readonly identity?: string | undefined;
}

/** Failed attempts to log in. */
interface Attempts {
  /** Last message of ssh. */
  refusal: string;
  /** Time of the first refusal of the key, as in `performance.now`. */
  refusedSince: number | undefined;
}

export interface Streams {
  /** Standard input, output and error stream. Only the streams with `pipe` are streams of the child process. */
  readonly stdio: StdioOptions;
  readonly signal: AbortSignal;
}

/** Makes a key without a passphrase at the path. Returns the public key. @throws CommandError when there is no program ssh-keygen. */
export async function makeKey(path: string, signal: AbortSignal): Promise<string> {
  const parameters = ['-q', '-t', 'ed25519', '-N', '', '-C', 'berth', '-f', path];
  try {
    await runProgram('ssh-keygen', parameters, { timeoutMilliseconds: KEY_MILLISECONDS, signal });
    return (
      await runProgram('ssh-keygen', ['-y', '-f', path], { timeoutMilliseconds: KEY_MILLISECONDS, signal })
    ).trim();
  } catch (error) {
    throw withoutProgram(error, 'ssh-keygen');
  }
}

function withoutProgram(error: unknown, program: string): unknown {
  return codeOf(error) === 'ENOENT'
    ? new CommandError(`There is no program ${program} on this computer. Install OpenSSH`, RUN_EXIT.login)
    : error;
}

/** Returns a command for the login shell of the guest, which runs the script with the shell sh. `$1` and so on are the arguments. */
export function inShell(script: string, args: readonly string[]): string {
  return `exec /bin/sh -c ${[script, 'berth', ...args].map(quoted).join(' ')}`;
}

export class GuestShell implements AsyncDisposable {
  readonly #login: Login;
  readonly #master: ChildProcess;

  constructor(login: Login, master: ChildProcess) {
    this.#login = login;
    this.#master = master;
  }

  /**
   * Logs in. Repeats this until the guest lets the user in, or the time limit is over.
   *
   * @throws CommandError when the guest refuses the key for too long, or does not answer in time; the signal's reason when it aborts.
   */
  static async open(
    login: Login,
    { signal, minutes }: { signal: AbortSignal; minutes: number },
  ): Promise<GuestShell> {
    const late = AbortSignal.timeout(minutes * 60_000);
    const attempts: Attempts = { refusal: '', refusedSince: undefined };
    try {
      return await loggedIn(login, AbortSignal.any([signal, late]), attempts);
    } catch (error) {
      signal.throwIfAborted();
      if (!late.aborted) {
        throw error;
      }
      const message = `User ${login.user} could not log in to VM ${login.name} within ${minutes} min: ${attempts.refusal}`;
      throw new CommandError(message, RUN_EXIT.login);
    }
  }

  /**
   * Starts a program in the guest, for commands of {@link inShell}. If `signal` aborts, the process of ssh is killed, and {@link codeOf}
   * rejects.
   */
  start(command: string, { stdio, signal }: Streams): ChildProcess {
    return spawn('ssh', [...this.#shared(), command], { stdio, signal });
  }

  /**
   * Resolves with the exit code of a started program, when its streams have ended.
   *
   * @throws ConnectionLost; the reason of the signal when it has aborted.
   */
  async exitCode(child: ChildProcess, signal: AbortSignal): Promise<number> {
    const code = await closed(child, signal);
    if (code === null || (code === SSH_FAILED && !(await this.#answers(signal)))) {
      throw new ConnectionLost(this.#login.name);
    }
    return code;
  }

  /** Runs a program that reads `input`, and returns its exit code and its output. @throws as {@link exitCode}. */
  async read(command: string, signal: AbortSignal, input?: string): Promise<{ code: number; out: string }> {
    const child = this.start(command, { stdio: ['pipe', 'pipe', 'inherit'], signal });
    let out = '';
    child.stdout
      ?.setEncoding('utf8')
      .on('data', (text: string) => void (out = `${out}${text}`.slice(0, OUTPUT_CHARACTERS)));
    // A program that ends before it has read its input tells the reason by its exit code.
    child.stdin?.on('error', () => undefined).end(input);
    return { code: await this.exitCode(child, signal), out };
  }

  /** Reports whether the connection still works. */
  async #answers(signal: AbortSignal): Promise<boolean> {
    const [code] = (await once(this.start('exit 0', { stdio: 'ignore', signal }), 'close')) as [
      number | null,
    ];
    return code === 0;
  }

  #shared(): string[] {
    const { name, user, folder } = this.#login;
    // Without the connection, ssh would connect by itself. The proxy that always fails prevents this.
    const options = ['ControlMaster=no', 'ProxyCommand=false', 'BatchMode=yes', 'LogLevel=ERROR'];
    return [
      ...WITHOUT_CONFIGURATION,
      '-T',
      '-S',
      socketIn(folder),
      ...options.flatMap((option) => ['-o', option]),
      '--',
      `${user}@${name}`,
    ];
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#master.exitCode === null && this.#master.signalCode === null) {
      this.#master.kill('SIGTERM');
      await once(this.#master, 'exit');
    }
  }
}

/** Resolves with the exit code when ssh has ended and its streams are closed. @throws the signal's reason when it has aborted; CommandError. */
async function closed(child: ChildProcess, signal: AbortSignal): Promise<number | null> {
  try {
    const [code] = (await once(child, 'close')) as [number | null];
    signal.throwIfAborted();
    return code;
  } catch (error) {
    signal.throwIfAborted();
    throw withoutProgram(error, 'ssh');
  }
}

/** Logs in. `attempts` receives the message of ssh after each failure. @throws as {@link GuestShell.open}; the signal's reason when it aborts. */
async function loggedIn(login: Login, signal: AbortSignal, attempts: Attempts): Promise<GuestShell> {
  const backoff = new Backoff(BACKOFF);
  for (;;) {
    const master = startMaster(login, signal);
    const refusal = await refusalOf(master, signal);
    if (refusal === undefined) {
      return new GuestShell(login, master);
    }
    attempts.refusal = refusal;
    if (refusal.includes('Permission denied')) {
      attempts.refusedSince ??= performance.now();
      if (performance.now() - attempts.refusedSince > REFUSED_MILLISECONDS) {
        throw new CommandError(
          `VM ${login.name} does not let user ${login.user} in: ${refusal}${adviceFor(login)}`,
          RUN_EXIT.login,
        );
      }
    }
    await pause(backoff.next(), signal);
  }
}

/** Tells why a key that works with another ssh can be refused. */
function adviceFor({ identity }: Login): string {
  return identity === undefined
    ? ''
    : `. This ssh reads no configuration. If an agent has the key of --identity ${identity}, SSH_AUTH_SOCK must name the agent`;
}

function socketIn(folder: string): string {
  return join(folder, 's');
}

function startMaster({ name, user, options, folder }: Login, signal: AbortSignal): ChildProcess {
  const own = [
    'BatchMode=yes',
    'LogLevel=ERROR',
    `ConnectTimeout=${ATTEMPT_SECONDS}`,
    `ServerAliveInterval=${ALIVE.seconds}`,
    `ServerAliveCountMax=${ALIVE.questions}`,
    // ssh runs this command of this computer once it has logged in.
    'PermitLocalCommand=yes',
    'LocalCommand=echo',
  ];
  return spawn(
    'ssh',
    [
      ...WITHOUT_CONFIGURATION,
      '-M',
      '-N',
      '-T',
      '-S',
      socketIn(folder),
      ...own.flatMap((option) => ['-o', option]),
      ...options,
      '--',
      `${user}@${name}`,
    ],
    { stdio: ['ignore', 'pipe', 'pipe'], signal },
  );
}

/** Resolves with undefined when ssh has logged in, or with its last message when it has failed. @throws the signal's reason; CommandError. */
async function refusalOf(master: ChildProcess, signal: AbortSignal): Promise<string | undefined> {
  let output = '';
  master.stderr
    ?.setEncoding('utf8')
    .on('data', (text: string) => void (output = `${output}${text}`.slice(-OUTPUT_CHARACTERS)));
  const { promise, resolve, reject } = Promise.withResolvers<string | undefined>();
  master.stdout?.once('data', () => resolve(undefined));
  master.on('error', (error) => reject(signal.aborted ? signal.reason : withoutProgram(error, 'ssh')));
  master.on('close', () => resolve(output.trim()));
  return await promise;
}
