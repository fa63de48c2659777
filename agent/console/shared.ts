/**
 * Shares one connection to a machine's serial console among several streams. At most one stream has the input. The output is read once
 * for all streams. The reading never pauses, so the stream of a reader that is too slow is ended.
 */
import { Duplex } from 'node:stream';

/** Limit of the output that one reader has not read yet. A guest that prints without pause reaches this limit after some seconds. */
const BACKLOG_BYTES = 1024 * 1024;

export class SharedConsole {
  readonly #connect: () => Promise<Duplex>;
  #session: Session | undefined;

  /** Takes the function that connects to the console. The first stream opens a connection, and the last stream closes it. */
  constructor(connect: () => Promise<Duplex>) {
    this.#connect = connect;
  }

  /**
   * Opens a stream with the output from now on. The stream takes input if `input` is true. Returns undefined if another stream has
   * the input. All streams end when the connection ends.
   *
   * @throws the error of the function that connects.
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

/** One connection with its streams. */
class Session {
  readonly #streams = new Set<ConsoleStream>();
  readonly #connection: Promise<Duplex>;
  readonly #over: () => void;
  #ended = false;

  /** `over` is called once, when this session takes no more streams. */
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
      // The event `close` follows each error.
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
  /** Connection that takes the input. The connection is set before anybody can write to this stream. */
  connection: Duplex | undefined;
  #hasInput: boolean;

  constructor(hasInput: boolean) {
    super();
    this.#hasInput = hasInput;
    // An error may come before the caller listens, and an error that nobody handles would end the agent.
    this.on('error', () => undefined);
    if (!hasInput) {
      this.end();
    }
  }

  /** Whether this stream has the input. The stream loses the input when its input ends or the stream is closed. */
  get hasInput(): boolean {
    return this.#hasInput;
  }

  /** Adds output of the guest. */
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

  /** Ends the stream. The reader of the stream then gets the remaining output that it has not read. */
  finish(): void {
    if (!this.destroyed) {
      this.push(null);
      this.end();
    }
  }

  override _read(): void {
    // Output is added when the guest prints.
  }

  override _write(chunk: Buffer, _: BufferEncoding, done: () => void): void {
    // If the connection ends, this stream ends too. So the error of a write need not be reported.
    this.connection?.write(chunk, () => done());
  }

  override _final(done: () => void): void {
    this.#hasInput = false;
    done();
  }

  override _destroy(error: Error | null, done: (error: Error | null) => void): void {
    this.#hasInput = false;
    done(error);
  }
}
