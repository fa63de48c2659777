/**
 * Talks to the guest of a running machine through the guest agent of Tart: asks for facts, runs commands, and shuts the guest down. The process
 * of the machine leads each connection to its control socket on to the guest. A guest can report anything, so each value is checked.
 */
import { type GuestFacts, guestHostNameSchema, guestOSSchema } from '../../../api/v1alpha1/machine.ts';
import { hasCode } from '../../../base/errors.ts';
import { connectTo, SocketPathError, withSocketPath } from '../../processes/process.ts';
import {
  type GuestAnswer,
  type GuestCommand,
  type GuestCommandResult,
  type GuestQuestion,
  NOT_RUNNING,
  type Reserve,
  StreamRefused,
} from '../driver.ts';
import { OUTPUT_LIMIT_BYTES, PIECE_BYTES, reachableAddresses, requireShortInput } from '../guest.ts';
import type { TartState } from './files.ts';
import { decodeFields, encodeFields, GrpcConnection, GrpcError, GrpcRefusal, PREFIX_BYTES } from './grpc.ts';

/** Name of the control socket in the machine's folder of the program. */
const SOCKET = 'control.sock';
const METHODS = { execute: '/Agent/Exec', address: '/Agent/ResolveIP' } as const;

/** Time limit until the guest agent answers. It answers within milliseconds, or in tenths of a second in a busy guest. */
const PING_MILLISECONDS = 3_000;
/** Time limit of all questions for facts together. */
const FACTS_MILLISECONDS = 10_000;
/** Time limit of the command that begins a shutdown. The command does not wait for the end of the shutdown. */
const SHUTDOWN_MILLISECONDS = 5_000;
/** Time between two questions whether the guest agent still answers while a command runs. Three without an answer end the wait. */
const WATCH_MILLISECONDS = 10_000;
const SILENCE_LIMIT = 3;
/** Size of one message with input. */
const INPUT_BYTES = 32 * 1024;
/** Limit of the output that the agent reads for facts, and for any other command. What is over the limit of a stream is dropped. */
const FACT_BYTES = 16 * 1024;
const RECEIVE_LIMIT_BYTES = 48 * 1024 * 1024;
/** Limit of the messages about a command that have no output and no exit code. The guest agent has no reason to send one. */
const EMPTY_LIMIT = 1_000;
/** Largest exit code of a program. The guest agent tells a larger one, or a negative one, if a signal has ended the program. */
const LARGEST_EXIT_CODE = 255;

const SILENT = 'No guest agent answers in the guest. Install tart-guest-agent there and start it, or use SSH';
const LONG =
  'The data directory of the host has a path that is too long for the socket of the guest agent. Choose a shorter dataDirectory, or use SSH';
const LOST =
  'The guest agent of the machine no longer answers. Check in the guest whether the command still runs';
const INVALID =
  'The guest agent of the machine gave no valid answer. Check in the guest whether the command still runs';
const isUnreachable = hasCode('ENOENT', 'ECONNREFUSED', 'EAGAIN', 'ECONNRESET', 'EPIPE');

/** Signal of commands that end with their connection. */
const NEVER = new AbortController().signal;

/** Command that powers a guest off without a question. The images of Tart let their user do this. */
const POWER_OFF = { path: 'sudo', arguments: ['-n', 'shutdown', '-h', 'now'] } as const;

export class TartGuest {
  readonly #bundle: string;
  readonly #isRunning: () => Promise<boolean>;

  /** `bundle` is the machine's folder in the folder of the program. */
  constructor(bundle: string, isRunning: () => Promise<boolean>) {
    this.#bundle = bundle;
    this.#isRunning = isRunning;
  }

  /** Asks as `askGuest` of the driver does. `os` is the operating system of the image. */
  async ask({ facts, signal }: GuestQuestion, os: TartState['os'] | undefined): Promise<GuestAnswer> {
    const connection = await this.#connect(signal);
    if (connection === undefined) {
      return { kind: 'silent' };
    }
    try {
      return { kind: 'answers', facts: facts ? await readFacts(connection, os) : undefined };
    } finally {
      connection.close();
    }
  }

  /** Runs a command as `execute` of the driver does. The command ends in the guest when the signal aborts. */
  async execute(command: GuestCommand): Promise<GuestCommandResult> {
    requireShortInput(command);
    if (!(await this.#isRunning())) {
      throw new StreamRefused(NOT_RUNNING);
    }
    const connection = await this.#connect(command.signal);
    if (connection === undefined) {
      throw new StreamRefused(SILENT);
    }
    const watch = watchOver(connection);
    try {
      return await run(connection, command, RECEIVE_LIMIT_BYTES);
    } catch (error) {
      command.signal.throwIfAborted();
      throw new StreamRefused(explain(error, watch.isLost()), { cause: error });
    } finally {
      watch.stop();
      connection.close();
    }
  }

  /** Asks the guest to power off. Returns whether it seems to do so. The promise never rejects. */
  async shutDown(signal: AbortSignal): Promise<boolean> {
    const limited = AbortSignal.any([signal, AbortSignal.timeout(SHUTDOWN_MILLISECONDS)]);
    let connection: GrpcConnection | undefined;
    try {
      connection = await this.#connect(limited);
      const command = { ...POWER_OFF, reserve: () => true, signal: limited };
      return connection !== undefined && (await run(connection, command, FACT_BYTES)).exitCode === 0;
    } catch (error) {
      // A guest that ends meanwhile gives no answer. One that refuses goes on.
      return connection !== undefined && !(error instanceof GrpcRefusal) && !limited.aborted;
    } finally {
      connection?.close();
    }
  }

  /**
   * Connects to the guest agent. The result is undefined if none answers.
   *
   * @throws the signal's reason when the signal aborts; StreamRefused when the path of the socket is too long.
   */
  async #connect(signal: AbortSignal): Promise<GrpcConnection | undefined> {
    signal.throwIfAborted();
    const limited = AbortSignal.any([signal, AbortSignal.timeout(PING_MILLISECONDS)]);
    let connection: GrpcConnection | undefined;
    try {
      const socket = await withSocketPath(this.#bundle, SOCKET, connectTo);
      connection = new GrpcConnection(socket, signal);
      await connection.ping(limited);
      return connection;
    } catch (error) {
      connection?.close();
      signal.throwIfAborted();
      if (error instanceof SocketPathError) {
        throw new StreamRefused(LONG, { cause: error });
      }
      if (error instanceof GrpcError || limited.aborted || isUnreachable(error)) {
        return undefined;
      }
      throw error;
    }
  }
}

/** Asks from time to time whether the guest agent still answers, and ends the connection if it does not. */
function watchOver(connection: GrpcConnection): { isLost: () => boolean; stop: () => void } {
  let silences = 0;
  const timer = setInterval(() => {
    silences += 1;
    if (silences > SILENCE_LIMIT) {
      connection.close();
    } else {
      // The count stays if there is no answer.
      connection.ping(AbortSignal.timeout(WATCH_MILLISECONDS)).then(
        () => (silences = 0),
        () => undefined,
      );
    }
  }, WATCH_MILLISECONDS);
  return { isLost: () => silences > SILENCE_LIMIT, stop: () => clearInterval(timer) };
}

function explain(error: unknown, isLost: boolean): string {
  if (error instanceof GrpcRefusal) {
    return error.message;
  }
  return isLost || isUnreachable(error) ? LOST : INVALID;
}

/** Runs a command, and resolves when it has ended. `limit` is that of the received output in bytes. */
async function run(
  connection: GrpcConnection,
  { path, arguments: parameters, input, reserve }: GuestCommand,
  limit: number,
): Promise<GuestCommandResult> {
  const isInteractive = input !== undefined;
  const rest = parameters.map((parameter) => [2, parameter] as const);
  const command = encodeFields([[1, path], ...rest, [3, isInteractive]]);
  const messages = [encodeFields([[1, command]]), ...(isInteractive ? inputMessages(input) : [])];
  const [stdout, stderr] = [new Output(reserve), new Output(reserve)];
  const truncated = (): boolean => stdout.isCut || stderr.isCut;
  const count = makeCount(limit);
  for await (const message of connection.call(METHODS.execute, messages)) {
    const { exit, out, err } = readResponse(message);
    count(message, exit === undefined && out.length + err.length === 0);
    if (exit !== undefined) {
      const exitCode = exit < 0 || exit > LARGEST_EXIT_CODE ? LARGEST_EXIT_CODE : exit;
      return { exitCode, stdout: stdout.end(), stderr: stderr.end(), truncated: truncated() };
    }
    stdout.add(out);
    stderr.add(err);
  }
  throw new GrpcError('The command has ended without an exit code');
}

/**
 * Returns a function that counts the messages about a command, and throws GrpcRefusal if there are too many of them. `limit` is that of all
 * messages in bytes.
 */
function makeCount(limit: number): (message: Buffer, isEmpty: boolean) => void {
  let [received, empty] = [0, 0];
  return (message, isEmpty) => {
    received += PREFIX_BYTES + message.length;
    empty += isEmpty ? 1 : 0;
    if (received > limit) {
      throw new GrpcRefusal(`The command prints more than ${limit} bytes`);
    }
    if (empty > EMPTY_LIMIT) {
      throw new GrpcRefusal(`The guest agent of the machine sends more than ${EMPTY_LIMIT} empty messages`);
    }
  };
}

/** Returns the messages with the input of a command. An empty one is the end of the input. */
function inputMessages(input: Buffer): Buffer[] {
  const messages: Buffer[] = [];
  for (let at = 0; at < input.length; at += INPUT_BYTES) {
    messages.push(encodeFields([[2, encodeFields([[1, input.subarray(at, at + INPUT_BYTES)]])]]));
  }
  return [...messages, encodeFields([[2, encodeFields([[1, Buffer.alloc(0)]])]])];
}

/** Reads a message about a command: its exit code, or a piece of its output. */
function readResponse(message: Buffer): { exit: number | undefined; out: Buffer; err: Buffer } {
  const fields = decodeFields(message);
  // Each message has one message in it, whose only field is left out if it is 0 or empty.
  const inner = (number: number): number | Buffer | undefined => {
    const field = fields.get(number);
    return Buffer.isBuffer(field) ? (decodeFields(field).get(1) ?? 0) : undefined;
  };
  const bytes = (value: number | Buffer | undefined): Buffer =>
    Buffer.isBuffer(value) ? value : Buffer.alloc(0);
  const exit = inner(1);
  if (Buffer.isBuffer(exit)) {
    throw new GrpcError('The exit code of the command is no number');
  }
  return { exit, out: bytes(inner(2)), err: bytes(inner(3)) };
}

/** Output of one stream of a command. */
class Output {
  /** Whether the output was cut, because it is too long or there is too little memory. */
  isCut = false;
  readonly #reserve: Reserve;
  readonly #full: Buffer[] = [];
  /** Piece that is not full yet, and the number of its bytes that are used. */
  #piece = Buffer.alloc(0);
  #used = 0;

  constructor(reserve: Reserve) {
    this.#reserve = reserve;
  }

  add(bytes: Buffer): void {
    for (let at = 0; at < bytes.length && !this.isCut; ) {
      if (this.#used === this.#piece.length) {
        this.#begin();
      }
      const count = bytes.copy(this.#piece, this.#used, at);
      this.#used += count;
      at += count;
    }
  }

  /** Returns the output in pieces. */
  end(): Buffer[] {
    return [...this.#full, this.#piece.subarray(0, this.#used)].filter(({ length }) => length > 0);
  }

  /** Begins another piece. If there is no memory left, the piece is empty and the output is cut. */
  #begin(): void {
    const full = this.end();
    this.#full.splice(0, this.#full.length, ...full);
    this.isCut = full.length * PIECE_BYTES >= OUTPUT_LIMIT_BYTES || !this.#reserve(PIECE_BYTES);
    this.#piece = Buffer.alloc(this.isCut ? 0 : PIECE_BYTES);
    this.#used = 0;
  }
}

/** Asks for the address, the operating system and the host name of the guest. What the guest does not report correctly is left out. */
async function readFacts(connection: GrpcConnection, os: TartState['os'] | undefined): Promise<GuestFacts> {
  const limited = AbortSignal.timeout(FACTS_MILLISECONDS);
  const over = (): void => connection.close();
  limited.addEventListener('abort', over);
  try {
    const address = await readAddress(connection);
    const version = os === 'darwin' ? ['sw_vers'] : ['cat', '/etc/os-release'];
    const name = guestOSSchema.safeParse(systemName(await print(connection, version))).data;
    const hostName = guestHostNameSchema.safeParse((await print(connection, ['hostname'])).trim()).data;
    return {
      addresses: reachableAddresses([address]),
      ...(name !== undefined && { os: name }),
      ...(hostName !== undefined && { hostName }),
    };
  } finally {
    limited.removeEventListener('abort', over);
  }
}

async function readAddress(connection: GrpcConnection): Promise<string> {
  try {
    for await (const message of connection.call(METHODS.address, [Buffer.alloc(0)])) {
      return String(decodeFields(message).get(1) ?? '');
    }
  } catch (error) {
    if (!(error instanceof GrpcRefusal)) {
      throw error;
    }
  }
  return '';
}

/** Returns what a command prints. The result is empty if the guest does not have the command. */
async function print(connection: GrpcConnection, [path = '', ...parameters]: string[]): Promise<string> {
  const command = { path, arguments: parameters, reserve: () => true, signal: NEVER };
  try {
    const { stdout } = await run(connection, command, FACT_BYTES);
    return Buffer.concat(stdout).toString('utf8');
  } catch (error) {
    if (error instanceof GrpcRefusal) {
      return '';
    }
    throw error;
  }
}

/** Returns the name and version of the system in the output of `sw_vers`, or in the text of `/etc/os-release`. */
function systemName(text: string): string {
  const [, pretty] = /^PRETTY_NAME="?([^"\n]*)"?$/m.exec(text) ?? [];
  const [, product] = /^ProductName:\s*(.*)$/m.exec(text) ?? [];
  const [, version] = /^ProductVersion:\s*(.*)$/m.exec(text) ?? [];
  return (
    pretty ??
    [product, version]
      .filter((part) => part !== undefined)
      .join(' ')
      .trim()
  );
}
