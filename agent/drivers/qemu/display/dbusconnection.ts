/** Direct connection to the D-Bus server in QEMU, without a bus. The messages of QEMU are not trusted. */
import { EventEmitter } from 'node:events';
import type { Duplex } from 'node:stream';
import { Calls } from '../calls.ts';
import { type Call, encodeCall, type Message, MESSAGE_TYPE, MessageSplitter } from './dbus.ts';

/** Time limit of a call and of the login. QEMU answers in a few milliseconds, or in seconds on an overloaded host. */
const CALL_TIMEOUT_MILLISECONDS = 30_000;
/** Limit of the line with which QEMU accepts the login. This line has about 40 bytes. */
const LOGIN_LIMIT_BYTES = 512;
/** Limit of an error's name. A longer name is cut before it gets into logs and statuses. */
const ERROR_LIMIT_CHARACTERS = 200;

/** Error of a call or of the login: QEMU refused it or gave no answer, or the connection is closed. */
export class DBusError extends Error {
  override readonly name = 'DBusError';
}

export class DBusConnection extends EventEmitter<{ signal: [Message]; close: [] }> {
  readonly #socket: Duplex;
  readonly #splitter = new MessageSplitter();
  readonly #calls = new Calls<Message>(
    DBusError,
    'QEMU sent too many D-Bus messages that are not answers to calls',
  );
  #whyClosed = 'The D-Bus connection to QEMU was closed';

  private constructor(socket: Duplex) {
    super();
    this.#socket = socket;
    socket.on('close', () => this.#end());
    socket.on('data', (chunk: Buffer) => {
      try {
        this.#splitter.push(chunk).forEach((message) => this.#take(message));
      } catch (error) {
        socket.destroy(error instanceof Error ? error : new Error(String(error)));
      }
    });
    socket.on('error', (error) => {
      this.#whyClosed = `The D-Bus connection to QEMU was closed: ${error.message}`;
    });
  }

  /**
   * Logs in as this process's user. @throws DBusError when QEMU refuses the login or gives no answer. In this case, the socket is closed.
   */
  static async open(socket: Duplex): Promise<DBusConnection> {
    const user = Buffer.from(String(process.getuid?.() ?? 0)).toString('hex');
    socket.write(`\0AUTH EXTERNAL ${user}\r\n`);
    try {
      const answer = await firstLine(socket);
      if (!answer.startsWith('OK ')) {
        throw new DBusError('QEMU refused the D-Bus login');
      }
    } catch (error) {
      socket.destroy();
      throw error;
    }
    const connection = new DBusConnection(socket);
    socket.write('BEGIN\r\n');
    socket.resume();
    return connection;
  }

  get closed(): boolean {
    return this.#socket.destroyed;
  }

  close(): void {
    this.#socket.destroy();
  }

  /** Calls a method and returns the answer. @throws DBusError when QEMU refuses the call or does not answer. */
  async call(call: Call): Promise<Message> {
    if (this.closed) {
      throw new DBusError(this.#whyClosed);
    }
    return await this.#calls.make(call.member, CALL_TIMEOUT_MILLISECONDS, (serial) =>
      this.#socket.write(encodeCall(serial, call)),
    );
  }

  /**
   * Handles a message from QEMU. The caller closes the connection after an error. @throws DBusError when QEMU sends too many bytes in
   * unsolicited messages.
   */
  #take(message: Message): void {
    const call = this.#calls.answered(message.answers, message.size);
    if (call === undefined) {
      if (message.type === MESSAGE_TYPE.signal) {
        this.emit('signal', message);
      }
    } else if (message.type === MESSAGE_TYPE.answer) {
      call.resolve(message);
    } else {
      const name = (message.error ?? 'an unknown error').slice(0, ERROR_LIMIT_CHARACTERS);
      call.reject(new DBusError(`QEMU refused a call: ${name}`));
    }
  }

  #end(): void {
    this.#calls.end(this.#whyClosed);
    this.emit('close');
  }
}

/** Reads the first line from a socket, and then pauses the socket. @throws DBusError when no line comes in time. */
async function firstLine(socket: Duplex): Promise<string> {
  const { promise, resolve, reject } = Promise.withResolvers<string>();
  let bytes = Buffer.alloc(0);
  const onData = (chunk: Buffer) => {
    bytes = Buffer.concat([bytes, chunk]);
    const end = bytes.indexOf('\r\n');
    if (end >= 0) {
      resolve(bytes.toString('latin1', 0, end));
    } else if (bytes.length > LOGIN_LIMIT_BYTES) {
      reject(new DBusError('The answer of QEMU to the D-Bus login is too long'));
    }
  };
  const onError = (error: Error) => reject(new DBusError(`The D-Bus login failed: ${error.message}`));
  const onClose = () => reject(new DBusError('QEMU closed the connection during the D-Bus login'));
  const timer = setTimeout(
    () => reject(new DBusError('QEMU did not answer the D-Bus login')),
    CALL_TIMEOUT_MILLISECONDS,
  );
  socket.on('data', onData).on('close', onClose);
  // The code never removes this listener, because an error without a listener would end the process.
  socket.on('error', onError);
  try {
    return await promise;
  } finally {
    clearTimeout(timer);
    socket.off('data', onData).off('close', onClose).pause();
  }
}
