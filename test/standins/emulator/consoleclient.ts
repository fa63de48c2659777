/** A client of the emulator's console, for tests. */
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { waitFor } from '../../../hack/wait.ts';

const ANSWER_MILLISECONDS = 60_000;

export class ConsoleClient implements Disposable {
  readonly #socket: Socket;
  #text = '';

  private constructor(socket: Socket) {
    this.#socket = socket;
    socket.setEncoding('utf8').on('data', (text: string) => {
      this.#text += text;
      socket.emit('told');
    });
    // The console resets the connection when it ends the emulator.
    socket.on('error', () => undefined);
  }

  /** Connects and reads the greeting. */
  static async open(port: number): Promise<ConsoleClient> {
    const socket = connect(port, '127.0.0.1');
    await once(socket, 'connect');
    const client = new ConsoleClient(socket);
    await client.#answer();
    return client;
  }

  /** Sends a command and returns its answer, which ends with `OK` or `KO: …`. */
  async ask(command: string): Promise<string> {
    this.#text = '';
    this.#socket.write(`${command}\r\n`);
    return await this.#answer();
  }

  /** Sends a command after which the connection ends. */
  async last(command: string): Promise<void> {
    this.#socket.write(`${command}\r\n`);
    await waitFor(`the end of the connection after ${command}`, () => this.#socket.closed);
  }

  [Symbol.dispose](): void {
    this.#socket.destroy();
  }

  async #answer(): Promise<string> {
    const signal = AbortSignal.timeout(ANSWER_MILLISECONDS);
    while (!/^(OK|KO)(:.*)?\r?\n$/m.test(this.#text)) {
      await once(this.#socket, 'told', { signal });
    }
    return this.#text.replaceAll('\r', '').trimEnd();
  }
}
