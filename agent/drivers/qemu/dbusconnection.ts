/**
 * Connects to QEMU's D-Bus display, directly and without a bus. QEMU does not listen for D-Bus connections. Instead, a client opens a socket
 * and sends its file descriptor to QEMU over QEMU's machine protocol (QMP). Node.js cannot send file descriptors, so a short Perl program
 * sends the socket and ends. An agent that has restarted connects in the same way. The messages of QEMU are not trusted.
 */
import { spawn } from 'node:child_process';
import { EventEmitter, once } from 'node:events';
import type { Duplex, Readable } from 'node:stream';
import { limitTime } from '../../../base/exec.ts';
import { type Call, encodeCall, type Message, MESSAGE_TYPE, MessageSplitter } from './dbus.ts';
import { Calls } from './qmp.ts';
import { FILES } from './state.ts';

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

/** Numbers of the system call `sendmsg` on Linux. The key is Node.js's name of the architecture. */
const SENDMSG: Readonly<Partial<Record<string, number>>> = { x64: 46, arm64: 211 };
/** Number of the file descriptor of the socket in the Perl program. The program sends this file descriptor to QEMU. */
const PASSED_DESCRIPTOR = 3;
/** Time limit of the Perl program that sends the socket. It normally ends after about 10 ms, or after seconds on an overloaded host. */
const PROGRAM_TIMEOUT_MILLISECONDS = 30_000;
/** Limit of the text that the Perl program prints about an error, in characters. */
const OUTPUT_LIMIT_CHARACTERS = 500;

/**
 * Source code of the Perl program that sends the socket to QEMU. Like the log writer's program, it uses no Perl module. The program opens
 * its own QMP connection, because only commands over the same connection can use a file descriptor that was sent to QEMU.
 */
const PROGRAM = String.raw`
my ($path, $sendmsg, $passed) = @ARGV;
socket(my $qemu, 1, 1, 0) or die "socket: $!\n";
connect($qemu, pack('S a108', 1, $path)) or die "$path: $!\n";

# Waits for an answer. Other lines are the greeting and events.
sub answer {
  my ($lines, $size) = ('', 0);
  while ($size < 1048576) {
    my $got = sysread($qemu, $lines, 4096, length $lines) or die "QEMU closed the connection\n";
    $size += $got;
    while ($lines =~ s/^([^\n]*)\n//) {
      my $line = $1;
      return if $line =~ /^\{"return"/;
      die "$line\n" if $line =~ /"error"/;
    }
  }
  die "QEMU sent too much\n";
}

sub command {
  my ($text) = @_;
  syswrite($qemu, $text) == length $text or die "write: $!\n";
  answer();
}

command('{"execute":"qmp_capabilities"}');
my $text = '{"execute":"getfd","arguments":{"fdname":"display"}}';
# struct iovec, struct cmsghdr with one descriptor (SOL_SOCKET, SCM_RIGHTS), and struct msghdr.
my $vector = pack('P Q', $text, length $text);
my $control = pack('Q l l l x4', 20, 1, 1, $passed);
my $header = pack('Q L x4 P Q P Q l x4', 0, 0, $vector, 1, $control, length $control, 0);
syscall($sendmsg, fileno $qemu, $header, 0) == length $text or die "sendmsg: $!\n";
answer();
command('{"execute":"add_client","arguments":{"protocol":"@dbus-display","fdname":"display"}}');
`;

/** Returns whether agents can connect to QEMU's D-Bus display on this system. */
export function canPassSockets(): boolean {
  return process.platform === 'linux' && SENDMSG[process.arch] !== undefined;
}

/**
 * Connects to the D-Bus display of the QEMU process in `folder`. @throws DBusError when QEMU does not take the connection. @throws the
 * signal's reason when the signal aborted.
 */
export async function connectDisplay(folder: string, signal: AbortSignal): Promise<DBusConnection> {
  signal.throwIfAborted();
  const parameters = [FILES.display, String(SENDMSG[process.arch]), String(PASSED_DESCRIPTOR)];
  const child = spawn('perl', ['-e', PROGRAM, ...parameters], {
    cwd: folder,
    stdio: ['ignore', 'ignore', 'pipe', 'pipe'],
  });
  limitTime(child, PROGRAM_TIMEOUT_MILLISECONDS);
  // The listeners for errors do nothing, because the code below reports errors of the program and of the socket. Without a listener, an
  // error would end the agent.
  child.on('error', () => undefined);
  const socket = child.stdio[PASSED_DESCRIPTOR] as Duplex | undefined;
  if (socket === undefined || child.stderr === null) {
    throw new DBusError('The program that connects to QEMU could not be started');
  }
  socket.on('error', () => undefined);
  const output = readEnd(child.stderr);
  try {
    const [code] = (await once(child, 'exit', { signal })) as [number | null];
    if (code !== 0) {
      throw new DBusError(`QEMU did not accept the D-Bus connection: ${(await output).trim()}`);
    }
    return await DBusConnection.open(socket);
  } catch (error) {
    child.kill('SIGKILL');
    socket.destroy();
    throw error;
  }
}

async function readEnd(stream: Readable): Promise<string> {
  let text = '';
  stream.on('data', (chunk: Buffer) => {
    text = (text + chunk.toString()).slice(-OUTPUT_LIMIT_CHARACTERS);
  });
  stream.on('error', () => undefined);
  return await new Promise((resolve) => stream.once('close', () => resolve(text)));
}
