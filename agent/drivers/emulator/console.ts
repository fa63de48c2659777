/**
 * Client of the emulator's console. The protocol of the console consists of text lines. Each answer ends with a line that begins with `OK`
 * or `KO`. If the console answers, the emulator runs. The console's command `kill` ends the emulator normally.
 *
 * The console listens on the loopback address of the machine's network namespace. A process of Node.js cannot enter a namespace. So a small
 * Perl program enters the namespace, and copies bytes between the console and the agent. Perl is installed on every host, because the log
 * writer also needs it.
 */
import { type ChildProcessByStdio, spawn } from 'node:child_process';
import { Duplex, type Readable, type Writable } from 'node:stream';
import { readLines } from '../../../base/lines.ts';
import { CONSOLE_PORT } from './arguments.ts';

/**
 * Limits of one line and of all output of the console, in bytes. The longest answer of the console is its greeting, with about 300 bytes.
 */
const LINE_LIMIT_BYTES = 4 * 1024;
const OUTPUT_LIMIT_BYTES = 64 * 1024;
/** Time limit of the console's answer to a command. Even if the host is overloaded, the emulator answers within a few seconds. */
const ANSWER_TIMEOUT_MILLISECONDS = 10_000;

/**
 * Source code of the Perl program that connects to the emulator's console. It uses no Perl modules, so it contains the constants AF_INET
 * and SOCK_STREAM as the numbers 2 and 1. The program tries to connect until the console listens, but only for the given number of seconds.
 */
const HELPER = String.raw`
my ($port, $seconds) = @ARGV;
my $end = time + $seconds;
my $address = pack('S n a4 x8', 2, $port, "\x7f\0\0\1");
my $console;
until (socket($console, 2, 1, 0) && connect($console, $address)) {
  exit 1 if time > $end;
  select(undef, undef, undef, 0.02);
}
while (1) {
  my $ready = '';
  vec($ready, fileno $_, 1) = 1 for $console, \*STDIN;
  select($ready, undef, undef, undef);
  for ([\*STDIN, $console], [$console, \*STDOUT]) {
    next unless vec($ready, fileno $_->[0], 1);
    sysread($_->[0], my $bytes, 65536) or exit 0;
    defined syswrite($_->[1], $bytes) or exit 0;
  }
}
`;

const ENVIRONMENT = { PATH: '/usr/sbin:/usr/bin:/sbin:/bin', LC_ALL: 'C' };

type Child = ChildProcessByStdio<Writable, Readable, null>;

/**
 * Connects to the console in a network namespace as soon as the console listens. If the console does not listen within `seconds`, the
 * stream ends.
 */
export function connectInside(namespace: string, seconds: number): Duplex {
  const parameters = [
    `--net=${namespace}`,
    '--',
    'perl',
    '-e',
    HELPER,
    String(CONSOLE_PORT),
    String(seconds),
  ];
  const child: Child = spawn('nsenter', parameters, {
    stdio: ['pipe', 'pipe', 'ignore'],
    env: ENVIRONMENT,
  });
  // If `nsenter` cannot be started, the child process emits an error. Without a listener, this error would end the agent. So the listener
  // is added at once, and the error ends only the stream.
  const failed = Promise.withResolvers<Error>();
  child.on('error', failed.resolve);
  const stream = Duplex.from({ readable: child.stdout, writable: child.stdin });
  stream.on('error', () => undefined);
  stream.once('close', () => void child.kill('SIGKILL'));
  void failed.promise.then((error) => stream.destroy(error));
  return stream;
}

/** Error of the console: it refused a command, broke its protocol, did not answer in time, or closed the connection. */
export class ConsoleError extends Error {
  override readonly name = 'ConsoleError';
}

/**
 * Sends commands to the console, and waits for the answer to each command. @throws ConsoleError when the console refuses a command, does
 * not answer in time, or closes the connection.
 */
export class ConsoleClient {
  readonly #stream: Duplex;
  #answer = Promise.withResolvers<string>();
  #bytes = 0;

  constructor(stream: Duplex) {
    this.#stream = stream;
    this.#answer.promise.catch(() => undefined);
    stream.on('error', (error) => this.#fail(error.message));
    stream.on('close', () => this.#fail('The console closed the connection'));
    stream.on('end', () => this.#fail('The console closed the connection'));
    stream.on('data', (chunk: Buffer) => {
      this.#bytes += chunk.length;
      if (this.#bytes > OUTPUT_LIMIT_BYTES) {
        stream.destroy(new Error(`The console wrote more than ${OUTPUT_LIMIT_BYTES} bytes`));
      }
    });
    readLines(stream, LINE_LIMIT_BYTES, (line) => this.#take(line.trimEnd()));
  }

  /** Waits for the greeting, which the console sends when the emulator runs. */
  async greeted(timeoutMilliseconds: number): Promise<void> {
    await this.#next(timeoutMilliseconds);
  }

  /** Sends a command and waits until the console accepts it. */
  async command(line: string): Promise<void> {
    this.#stream.write(`${line}\n`);
    await this.#next(ANSWER_TIMEOUT_MILLISECONDS);
  }

  close(): void {
    this.#stream.destroy();
  }

  async #next(timeoutMilliseconds: number): Promise<void> {
    const timer = setTimeout(() => {
      this.#fail(`The console did not answer within ${timeoutMilliseconds} ms`);
    }, timeoutMilliseconds);
    try {
      const answer = await this.#answer.promise;
      if (!/^OK\b/.test(answer)) {
        throw new ConsoleError(`The console refused the command: ${printable(answer)}`);
      }
      this.#answer = Promise.withResolvers<string>();
      this.#answer.promise.catch(() => undefined);
    } finally {
      clearTimeout(timer);
    }
  }

  #take(line: string): void {
    if (/^(OK|KO)\b/.test(line)) {
      this.#answer.resolve(line);
    }
  }

  #fail(message: string): void {
    this.#answer.reject(new ConsoleError(message));
  }
}

/** An error message shows at most this number of characters of the console's answer. */
const SHOWN_CHARACTERS = 200;

function printable(text: string): string {
  return text.slice(0, SHOWN_CHARACTERS).replaceAll(/[^\x20-\x7e]/g, '?');
}

/**
 * Asks the emulator to end, as `adb emu kill` does. Before this command, the console requires a token. `token` must be the text that the
 * emulator has read from a file in its home folder.
 *
 * @throws ConsoleError when the console does not accept the command.
 */
export async function killByConsole(stream: Duplex, token: string): Promise<void> {
  const client = new ConsoleClient(stream);
  try {
    await client.greeted(ANSWER_TIMEOUT_MILLISECONDS);
    await client.command(`auth ${token}`);
    await client.command('kill');
  } finally {
    client.close();
  }
}
