/**
 * Shares one connection to a machine's serial console among several streams. At most one of the streams takes input for the guest. Output
 * is read once from the connection, and each stream gets a copy. Output is read from the connection without delay, even if a reader is
 * slow. If the reader of a stream is too slow, this stream ends with an error.
 */
import { Duplex } from 'node:stream';

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
