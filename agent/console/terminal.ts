/**
 * Connects to the serial console of a running machine. The guest's output comes from the files of the log writer. A connection gives only
 * the output that the log writer stores after the connection was made. Input goes to a named pipe, which is the hypervisor's standard
 * input. The guest never waits for a reader, because the log writer reads the guest's output even if nobody else reads it.
 */
import { constants, openSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import { Socket } from 'node:net';
import { join } from 'node:path';
import { Duplex } from 'node:stream';
import { hasCode, undefinedIfSync } from '../../base/errors.ts';
import { run } from '../../base/exec.ts';
import { ConsoleTail } from './input.ts';
import { logsWritten, TERMINAL } from './logwriter.ts';

/** Time between two reads of the log. A user who types does not notice a delay of 20 ms, and a read takes less than 100 µs. */
const POLL_MILLISECONDS = 20;
/** Limit of one read in bytes. With this limit, one connection can read 3 MiB a second, which is more than a guest prints. */
const READ_BYTES = 64 * 1024;
/** Number of reads after which the agent checks whether the machine still runs. The time between two checks is one second. */
const READS_PER_CHECK = 50;
/** Time limit of the program mkfifo, which ends after a few milliseconds. */
const PROGRAM = { timeoutMilliseconds: 10_000 };

/**
 * Creates the pipe for the input of a machine's console. The new pipe replaces the pipe that was created at the previous start of the
 * machine.
 */
export async function makeTerminal(folder: string): Promise<void> {
  const path = join(folder, TERMINAL);
  await rm(path, { force: true });
  await run('mkfifo', ['-m', '600', path], PROGRAM);
}

/**
 * Connects to the console of a running machine. The stream ends when `isRunning` says that the machine has ended. Returns undefined if
 * the hypervisor has no pipe for input.
 */
export function connectTerminal(folder: string, isRunning: () => Promise<boolean>): Duplex | undefined {
  // With O_NONBLOCK, `openSync` does not wait until another process opens the pipe. If no process has the pipe open for reading, the error
  // is ENXIO.
  const flags = constants.O_WRONLY | constants.O_NONBLOCK | constants.O_NOFOLLOW;
  const fd = undefinedIfSync(hasCode('ENOENT', 'ENXIO'), () => openSync(join(folder, TERMINAL), flags));
  return fd === undefined ? undefined : new Terminal(folder, fd, isRunning);
}

class Terminal extends Duplex {
  readonly #folder: string;
  readonly #tail: ConsoleTail;
  readonly #input: Socket;
  readonly #isRunning: () => Promise<boolean>;
  #timer: NodeJS.Timeout | undefined;

  constructor(folder: string, fd: number, isRunning: () => Promise<boolean>) {
    super();
    this.#folder = folder;
    this.#tail = new ConsoleTail(folder, 'serial');
    this.#input = new Socket({ fd, readable: false, writable: true });
    this.#input.on('error', (error) => this.destroy(error));
    this.#isRunning = isRunning;
    this.#wait(1);
  }

  override _read(): void {
    // This function does nothing, because the output is added after each read of the log.
  }

  override _write(chunk: Buffer, _: BufferEncoding, done: () => void): void {
    this.#input.write(chunk, () => done());
  }

  override _destroy(error: Error | null, done: (error: Error | null) => void): void {
    clearTimeout(this.#timer);
    this.#input.destroy();
    done(error);
  }

  #wait(reads: number): void {
    this.#timer = setTimeout(() => {
      this.#next(reads).catch((error: unknown) => this.destroy(error as Error));
    }, POLL_MILLISECONDS).unref();
  }

  async #next(reads: number): Promise<void> {
    const hasEnded = reads % READS_PER_CHECK === 0 && !(await this.#isRunning());
    if (hasEnded) {
      await logsWritten(this.#folder);
    }
    if (this.destroyed) {
      return;
    }
    const bytes = this.#tail.next(READ_BYTES);
    if (bytes.length > 0) {
      this.push(bytes);
    }
    if (hasEnded && bytes.length === 0) {
      this.push(null);
      this.end();
    } else {
      this.#wait(hasEnded ? READS_PER_CHECK : reads + 1);
    }
  }
}

/**
 * Largest number of bytes of output that one reader can leave unread. If a guest prints without pause and the reader does not read, the
 * limit is reached after a few seconds.
 */
const BACKLOG_BYTES = 1024 * 1024;

export class SharedConsole {
  readonly #connect: () => Promise<Duplex>;
  #session: Session | undefined;

  /** `connect` connects to the console. The first stream opens the connection. When the last stream closes, the connection closes too. */
  constructor(connect: () => Promise<Duplex>) {
    this.#connect = connect;
  }

  /**
   * Opens a stream that gives the output from now on. If `input` is true, the stream also takes input for the guest. In this case, the
   * result is undefined if another stream already takes input. All streams end when the connection ends.
   *
   * @throws the error of `connect`.
   */
  async open({ input }: { input: boolean }): Promise<Duplex | undefined> {
    this.#session ??= this.#begin();
    return await this.#session.open(input);
  }

  /** Ends all streams. */
  close(): void {
    this.#session?.end();
  }

  #begin(): Session {
    const session: Session = new Session(this.#connect, () => {
      if (this.#session === session) {
        this.#session = undefined;
      }
    });
    return session;
  }
}

/** One connection to the console, and the streams that share this connection. */
class Session {
  readonly #streams = new Set<ConsoleStream>();
  readonly #connection: Promise<Duplex>;
  readonly #over: () => void;
  #ended = false;

  /** `over` is called once, when this session ends. An ended session accepts no more streams. */
  constructor(connect: () => Promise<Duplex>, over: () => void) {
    this.#over = over;
    this.#connection = this.#start(connect);
  }

  async open(input: boolean): Promise<Duplex | undefined> {
    if (input && [...this.#streams].some(({ hasInput }) => hasInput)) {
      return undefined;
    }
    const stream = new ConsoleStream(input);
    this.#streams.add(stream);
    stream.once('close', () => this.#left(stream));
    stream.connection = await this.#connection;
    return stream;
  }

  end(): void {
    if (this.#ended) {
      return;
    }
    this.#ended = true;
    this.#over();
    for (const stream of this.#streams) {
      stream.finish();
    }
    this.#connection.then(
      (connection) => connection.destroy(),
      () => undefined,
    );
  }

  async #start(connect: () => Promise<Duplex>): Promise<Duplex> {
    try {
      const connection = await connect();
      connection.on('data', (chunk: Buffer) => {
        for (const stream of this.#streams) {
          stream.print(chunk);
        }
      });
      // This listener does nothing, because the event `close` follows each error and ends the streams.
      connection.on('error', () => undefined);
      connection.on('close', () => this.end());
      return connection;
    } catch (error) {
      this.end();
      throw error;
    }
  }

  #left(stream: ConsoleStream): void {
    this.#streams.delete(stream);
    if (this.#streams.size === 0) {
      this.end();
    }
  }
}

class ConsoleStream extends Duplex {
  /** Connection to which this stream writes its input. The connection is set before the caller gets this stream. */
  connection: Duplex | undefined;
  #hasInput: boolean;
  /** Forgets the input that waits until the connection takes input again. Does nothing if no input waits. */
  #forget: () => void = () => undefined;

  constructor(hasInput: boolean) {
    super();
    this.#hasInput = hasInput;
    // This listener is added at once, because an error can come before the caller listens. An error that nobody handles would end the
    // agent.
    this.on('error', () => undefined);
    if (!hasInput) {
      this.end();
    }
  }

  /**
   * Whether this stream takes input for the guest. The stream stops taking input when the caller ends the input, or when the stream closes.
   */
  get hasInput(): boolean {
    return this.#hasInput;
  }

  /** Adds output of the guest. If the reader has left too much output unread, the stream ends with an error. */
  print(chunk: Buffer): void {
    if (this.destroyed) {
      return;
    }
    if (this.readableLength + chunk.length > BACKLOG_BYTES) {
      this.destroy(new Error(`The console printed more than ${BACKLOG_BYTES} bytes that were not read`));
    } else {
      this.push(chunk);
    }
  }

  /** Ends the stream. The reader still gets the output that it has not read yet. */
  finish(): void {
    if (!this.destroyed) {
      this.push(null);
      this.end();
    }
  }

  override _read(): void {
    // This function does nothing, because `print` adds the output when the guest prints.
  }

  override _write(chunk: Buffer, encoding: BufferEncoding, done: () => void): void {
    const { connection } = this;
    if (connection?.writableNeedDrain === true) {
      // The guest has not read the input of earlier streams yet. The connection must not queue more input, because a user could fill the
      // agent's memory with many streams, one after another.
      this.#waitFor(connection, () => this._write(chunk, encoding, done));
    } else {
      // Errors of the connection are not reported here. Such an error ends the connection, and the end of the connection ends this stream.
      connection?.write(chunk, () => done());
    }
  }

  override _final(done: () => void): void {
    this.#hasInput = false;
    done();
  }

  override _destroy(error: Error | null, done: (error: Error | null) => void): void {
    this.#hasInput = false;
    this.#forget();
    done(error);
  }

  /** Calls `then` when the connection takes input again or has ended. If this stream is destroyed first, `then` is not called. */
  #waitFor(connection: Duplex, then: () => void): void {
    const proceed = () => {
      this.#forget();
      then();
    };
    this.#forget = () => void connection.off('drain', proceed).off('close', proceed);
    connection.once('drain', proceed).once('close', proceed);
  }
}
