/**
 * Runs a command in a guest through its guest agent. A guest agent has no streams, so the output is fetched when the command has ended. The
 * answer to `guest-exec-status` contains the whole output. An honest guest sends up to 16 MiB of each of two streams, as base64 in two
 * strings of one line. The strings are decoded while they arrive. So neither the long line nor its strings are ever in memory, and no piece
 * of work takes long. The rest of the line is short.
 */
import * as z from 'zod';
import { hasCode } from '../../../base/errors.ts';
import { JsonError, type JsonLimits, parseJson } from '../../../base/json.ts';
import { pause } from '../../../base/time.ts';
import { type GuestCommand, type GuestCommandResult, type Reserve, StreamRefused } from '../driver.ts';
import { OUTPUT_LIMIT_BYTES, PIECE_BYTES, requireShortInput } from '../guest.ts';
import type { GuestAgent } from './guestagent.ts';
import { GuestAgentRefusal, type GuestConnection, type LineReader } from './guestconnection.ts';

const QUOTE = 0x22;
const BACKSLASH = 0x5c;
/** The bit in which `[` differs from `{`, and `]` from `}`. */
const BRACE_BIT = 0x20;
const OPEN = 0x7b;
const CLOSE = 0x7d;

/** Limits of the line without the two strings. It has seven short fields. */
const REST_LIMITS: JsonLimits = { bytes: 4 * 1024, items: 64 };
/** Depth of the fields in the answer `{"return": {…}}`. */
const FIELDS_DEPTH = 2;
/** Key of the object with the fields, at the end of the text before the object. */
const RETURN_KEY = /[^\\]"return"\s*:\s*$/;
/** Key of a string with output, at the end of the text before the string. A guest agent escapes no character of these keys. */
const OUTPUT_KEY = /[^\\]"(out-data|err-data)"\s*:\s*$/;
/** Number of bytes before an object or a string in which its key is searched. A guest agent writes at most one space after a key. */
const KEY_BYTES = 64;

const GROUP_BYTES = 3;
const GROUP_CHARACTERS = 4;

/** Decoded output of one stream of a command. */
export class Output {
  readonly pieces: Buffer[] = [];
  /** Whether the output was cut, because it is too long or there is too little memory. */
  cut = false;
  readonly #reserve: Reserve;
  /** Last piece, which is not full yet, and the number of its bytes that are used. */
  #piece = Buffer.alloc(0);
  #used = 0;
  /** Characters after the last complete group. */
  #rest = '';
  #padded = false;

  constructor(reserve: Reserve) {
    this.#reserve = reserve;
  }

  /** Decodes the next characters of the base64 text. @throws JsonError when they are not base64. */
  add(characters: Buffer): void {
    // The text is split, so that no piece of the work takes long, and a group never lies in two pieces of the output.
    const step = (PIECE_BYTES / GROUP_BYTES) * GROUP_CHARACTERS;
    for (let at = 0; at < characters.length && !this.cut; at += step) {
      this.#decode(this.#rest + characters.toString('latin1', at, at + step));
    }
  }

  /** Ends the output. @throws JsonError when the text ends within a group. */
  end(): this {
    if (this.#rest !== '' && !this.cut) {
      throw new JsonError('syntax', 'is not base64');
    }
    this.#close();
    return this;
  }

  #decode(text: string): void {
    const length = text.length - (text.length % GROUP_CHARACTERS);
    this.#rest = text.slice(length);
    for (let at = 0; at < length && !this.cut; ) {
      if (this.#used === this.#piece.length) {
        this.#grow();
      }
      const groups = Math.min(
        (length - at) / GROUP_CHARACTERS,
        (this.#piece.length - this.#used) / GROUP_BYTES,
      );
      const end = at + groups * GROUP_CHARACTERS;
      this.#write(text.slice(at, end));
      at = end;
    }
  }

  /** Begins a new piece. If there is no memory left, the piece is empty and the output is cut. */
  #grow(): void {
    this.#close();
    const length = this.pieces.length * PIECE_BYTES;
    this.cut = length >= OUTPUT_LIMIT_BYTES || !this.#reserve(PIECE_BYTES);
    this.#piece = Buffer.alloc(this.cut ? 0 : PIECE_BYTES);
    this.#used = 0;
  }

  #write(groups: string): void {
    const padding = groups.endsWith('==') ? 2 : Number(groups.endsWith('='));
    const expected = (groups.length / GROUP_CHARACTERS) * GROUP_BYTES - padding;
    // Characters that are not base64 are left out by the decoder, so they make the result shorter.
    const written = this.#piece.write(groups, this.#used, 'base64');
    if (groups !== '' && (this.#padded || written !== expected)) {
      throw new JsonError('syntax', 'is not base64');
    }
    this.#padded = padding > 0;
    this.#used += written;
  }

  #close(): void {
    if (this.#used > 0) {
      this.pieces.push(this.#piece.subarray(0, this.#used));
    }
    this.#piece = Buffer.alloc(0);
    this.#used = 0;
  }
}

/** Reads the line. In its value, the fields `out-data` and `err-data` are objects of the class {@link Output}. */
export class StatusLine implements LineReader {
  readonly #reserve: Reserve;
  /** The line without the characters of the strings with output. */
  readonly #rest = Buffer.alloc(REST_LIMITS.bytes);
  #length = 0;
  #depth = 0;
  /** Outputs in the object with the fields. Undefined outside of this object, and before it. */
  #fields: Map<string, Output> | undefined;
  #outputs = new Map<string, Output>();
  /** Output whose string has begun. */
  #output: Output | undefined;
  #inString = false;
  #escaped = false;

  constructor(reserve: Reserve) {
    this.#reserve = reserve;
  }

  push(piece: Buffer): void {
    for (let at = 0; at < piece.length; at += 1) {
      if (this.#output !== undefined) {
        const quote = piece.indexOf(QUOTE, at);
        const end = quote < 0 ? piece.length : quote;
        this.#output.add(piece.subarray(at, end));
        at = end;
      }
      const byte = piece[at];
      if (byte !== undefined) {
        this.#take(byte);
      }
    }
  }

  end(): unknown {
    const value = parseJson(this.#rest.subarray(0, this.#length), REST_LIMITS);
    const fields = (value as { return?: Record<string, unknown> } | null)?.return;
    for (const [key, output] of this.#outputs) {
      // The string is empty in the rest of the line. Any other value comes from a line that repeats the key.
      if (fields?.[key] === '') {
        fields[key] = output;
      }
    }
    return value;
  }

  /** Takes a byte of the line that is not a character of output. */
  #take(byte: number): void {
    const before = this.#length;
    if (before === this.#rest.length) {
      throw new JsonError('bytes', `is larger than ${REST_LIMITS.bytes} bytes, without the output`);
    }
    this.#rest[before] = byte;
    this.#length += 1;
    if (this.#output !== undefined) {
      this.#output.end();
      this.#output = undefined;
      this.#inString = false;
    } else if (this.#inString) {
      this.#inString = byte !== QUOTE || this.#escaped;
      this.#escaped = byte === BACKSLASH && !this.#escaped;
    } else if (byte === QUOTE) {
      this.#beginString(before);
    } else if ((byte | BRACE_BIT) === OPEN) {
      this.#open(before);
    } else if ((byte | BRACE_BIT) === CLOSE) {
      this.#depth -= 1;
      this.#fields = this.#depth < FIELDS_DEPTH ? undefined : this.#fields;
    }
  }

  #open(before: number): void {
    this.#depth += 1;
    if (this.#depth === FIELDS_DEPTH && RETURN_KEY.test(this.#textBefore(before))) {
      // If the line repeats the key, the last object counts, as in JSON.parse.
      this.#outputs = new Map();
      this.#fields = this.#outputs;
    }
  }

  #beginString(before: number): void {
    this.#inString = true;
    const isField = this.#fields !== undefined && this.#depth === FIELDS_DEPTH;
    const [, key] = (isField && OUTPUT_KEY.exec(this.#textBefore(before))) || [];
    if (key !== undefined) {
      this.#output = new Output(this.#reserve);
      this.#fields?.set(key, this.#output);
    }
  }

  #textBefore(end: number): string {
    return this.#rest.toString('latin1', Math.max(0, end - KEY_BYTES), end);
  }
}

/**
 * Limit of the bytes that the agent reads for one command. A guest agent sends up to 16 MiB for each of two streams, as base64 in one line.
 * The agent keeps nearly 4 MiB of each stream ({@link OUTPUT_LIMIT_BYTES}).
 */
const RECEIVE_LIMIT_BYTES = 48 * 1024 * 1024;
/** Time limit of an answer without output of a program. The limit is long, because a busy emulated guest starts a program slowly. */
const ANSWER_TIMEOUT_MILLISECONDS = 10_000;
/** Time limit of an answer that contains output of a program. An emulated guest needs 5 s for 22 MB of output. */
const OUTPUT_TIMEOUT_MILLISECONDS = 60_000;
/**
 * Time that the agent keeps its first connection open to wait for the end of a command. Most commands end within this time. The time is
 * short, because other work with the guest agent waits meanwhile.
 */
const SHORT_COMMAND_MILLISECONDS = 500;
/** Time between two checks whether a short command has ended. */
const SHORT_INTERVAL_MILLISECONDS = 20;
/** Time between two checks whether a long command has ended. Each check opens a connection. */
const LONG_INTERVAL_MILLISECONDS = 500;
/**
 * If this number of checks in a row get no answer, the agent stops waiting for the command. One check without an answer is not enough,
 * because a busy guest can answer late.
 */
const SILENCE_LIMIT = 5;

const isUnreachable = hasCode('ENOENT', 'ECONNREFUSED', 'EAGAIN');
const SILENT =
  'No guest agent answers in the guest. Install qemu-guest-agent there and start it, or use SSH or the serial console';
const INVALID =
  'The guest agent of the machine gave no valid answer. Check in the guest whether the command still runs';

const startedSchema = z.object({ pid: z.number().int() });
const statusSchema = z.object({
  exited: z.boolean(),
  exitcode: z.number().int().optional(),
  signal: z.number().int().optional(),
  'out-data': z.instanceof(Output).optional(),
  'err-data': z.instanceof(Output).optional(),
  'out-truncated': z.boolean().optional(),
  'err-truncated': z.boolean().optional(),
});
type Status = z.infer<typeof statusSchema>;

/**
 * Runs a command in the guest, and resolves when the command has ended. If the signal aborts, the command continues in the guest.
 *
 * @throws StreamRefused when the guest agent does not answer, refuses the command or gives no valid answer. The function also throws
 * StreamRefused when the input is too large, or when urgent work with the guest agent interrupts the command.
 *
 * @throws the signal's reason when the signal aborted.
 */
export async function executeInGuest(agent: GuestAgent, command: GuestCommand): Promise<GuestCommandResult> {
  const { signal } = command;
  requireShortInput(command);
  let budget = RECEIVE_LIMIT_BYTES;
  const use = async <T>(
    work: (connection: GuestConnection, signal: AbortSignal) => Promise<T>,
  ): Promise<T | undefined> =>
    await agent.use({ signal, receiveLimitBytes: budget }, async (connection, either) => {
      try {
        return connection && (await work(connection, either));
      } finally {
        budget -= connection?.receivedBytes ?? 0;
      }
    });
  const begun = await refusing(
    use(async (connection, either) => await begin(connection, { ...command, signal: either })),
    signal,
  );
  if (begun === undefined) {
    throw new StreamRefused(SILENT);
  }
  let { status } = begun;
  for (let silences = 0; !status.exited; ) {
    await pause(LONG_INTERVAL_MILLISECONDS, signal);
    const next = await refusing(
      use(async (connection, either) => await ask(connection, begun.pid, { ...command, signal: either })),
      signal,
    );
    silences = next === undefined ? silences + 1 : 0;
    if (silences === SILENCE_LIMIT) {
      throw new StreamRefused(
        'The guest agent of the machine no longer answers. Check in the guest whether the command still runs',
      );
    }
    status = next ?? status;
  }
  return resultOf(status);
}

/** Starts the command, and waits a moment for its end. Returns the command's process id in the guest, and its last known state. */
async function begin(
  connection: GuestConnection,
  command: GuestCommand,
): Promise<{ pid: number; status: Status }> {
  const { path, arguments: parameters, input, signal } = command;
  const answer = await connection.execute('guest-exec', {
    timeoutMilliseconds: ANSWER_TIMEOUT_MILLISECONDS,
    arguments: {
      path,
      arg: parameters,
      'capture-output': true,
      'input-data': input?.toString('base64'),
    },
    signal,
  });
  const { pid } = startedSchema.parse(answer);
  const deadline = performance.now() + SHORT_COMMAND_MILLISECONDS;
  let status = await ask(connection, pid, command);
  while (!status.exited && performance.now() < deadline) {
    await pause(SHORT_INTERVAL_MILLISECONDS, signal);
    status = await ask(connection, pid, command);
  }
  return { pid, status };
}

async function ask(
  connection: GuestConnection,
  pid: number,
  { reserve, signal }: GuestCommand,
): Promise<Status> {
  const timeoutMilliseconds = OUTPUT_TIMEOUT_MILLISECONDS;
  const reader = () => new StatusLine(reserve);
  const options = { timeoutMilliseconds, arguments: { pid }, signal, reader };
  return statusSchema.parse(await connection.execute('guest-exec-status', options));
}

/**
 * Turns each error of the guest and its guest agent into a StreamRefused, whose message is for users. If the guest agent's socket cannot be
 * reached, the message says that the guest agent does not answer.
 */
async function refusing<T>(answer: Promise<T>, signal: AbortSignal): Promise<T> {
  try {
    return await answer;
  } catch (error) {
    if (signal.aborted || error instanceof StreamRefused) {
      throw error;
    }
    const otherwise = isUnreachable(error) ? SILENT : INVALID;
    const message = error instanceof GuestAgentRefusal ? error.message : otherwise;
    throw new StreamRefused(message, { cause: error });
  }
}

/** Returns the result of an ended command. If a signal ended the command, the exit code is 128 plus the signal's number, as in a shell. */
function resultOf(status: Status): GuestCommandResult {
  const { exitcode, signal = 0, 'out-data': stdout, 'err-data': stderr } = status;
  const isCut = [stdout, stderr].some((output) => output?.cut);
  return {
    exitCode: exitcode ?? 128 + signal,
    stdout: stdout?.pieces ?? [],
    stderr: stderr?.pieces ?? [],
    truncated: isCut || status['out-truncated'] === true || status['err-truncated'] === true,
  };
}
