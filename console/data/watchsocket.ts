/**
 * One WebSocket to the server for all watches of the page. Browsers open only six connections for other requests to one server, for all pages
 * together, so a connection for each watch would leave none for the next page.
 */
import {
  WATCH_ID_BYTES,
  type WatchEnd,
  type WatchRequest,
  type WatchStart,
} from '../../api/http/consolewatch.ts';
import { RefusedRequestError } from './refusal.ts';

/**
 * Time in milliseconds without a message after which the connection counts as lost. On a live connection, the API server sends a bookmark each
 * minute. A page whose laptop has slept or changed its network may never learn that its connection is lost.
 */
export const SILENCE_MILLISECONDS = 90_000;
/** Time in milliseconds after the last watch until the WebSocket is closed. A watch that the server has ended begins again within this time. */
const LINGER_MILLISECONDS = 5_000;

type Bytes = Uint8Array<ArrayBuffer>;

interface Watch {
  readonly start: WatchStart;
  readonly controller: ReadableStreamDefaultController<Bytes>;
}

export class WatchSocket {
  readonly #socket: WebSocket;
  readonly #watches = new Map<number, Watch>();
  #last = 0;
  #isOver = false;
  #silence: ReturnType<typeof setTimeout>;
  #linger: ReturnType<typeof setTimeout> | undefined;

  /** `whyRefused` returns the error of all watches if the WebSocket is refused, because a browser does not tell a page. */
  constructor(socket: WebSocket, whyRefused: () => Promise<unknown>) {
    this.#socket = socket;
    this.#silence = this.#waitForMessage();
    let isOpen = false;
    socket.addEventListener('open', () => {
      isOpen = true;
      this.#watches.forEach(({ start }) => this.#send({ start }));
    });
    socket.addEventListener('message', ({ data }: MessageEvent<string | ArrayBuffer>) => this.#take(data));
    socket.addEventListener('close', () => {
      this.#isOver = true;
      void (isOpen ? Promise.resolve(lost()) : whyRefused()).then((error) => this.#fail(error));
    });
  }

  /** Whether the WebSocket takes no further watch. */
  get isOver(): boolean {
    return this.#isOver;
  }

  /**
   * Begins a watch. Returns its bytes, which begin with an empty line. They end when the server ends the watch, or fail with
   * RefusedRequestError when it refuses the watch, with TypeError when the connection is lost, or with the signal's reason.
   */
  begin(what: Omit<WatchStart, 'id'>, signal: AbortSignal): ReadableStream<Bytes> {
    clearTimeout(this.#linger);
    this.#last += 1;
    const start: WatchStart = { id: this.#last, ...what };
    return new ReadableStream<Bytes>({
      start: (controller) => {
        if (signal.aborted) {
          controller.error(signal.reason);
          return;
        }
        this.#watches.set(start.id, { start, controller });
        signal.addEventListener('abort', () => this.#stop(start.id, signal.reason));
        this.#send({ start });
      },
    });
  }

  /** Sends a request. Before the WebSocket is open, nothing is sent: then all watches begin. */
  #send(request: WatchRequest): void {
    if (this.#socket.readyState === WebSocket.OPEN) {
      this.#socket.send(JSON.stringify(request));
    }
  }

  #take(data: string | ArrayBuffer): void {
    clearTimeout(this.#silence);
    this.#silence = this.#waitForMessage();
    if (typeof data === 'string') {
      this.#ended(JSON.parse(data) as WatchEnd);
      return;
    }
    const id = new DataView(data).getUint32(0);
    this.#watches.get(id)?.controller.enqueue(new Uint8Array(data, WATCH_ID_BYTES));
  }

  #ended({ id, code, message = '' }: WatchEnd): void {
    const controller = this.#remove(id);
    if (code === undefined) {
      controller?.close();
    } else {
      controller?.error(new RefusedRequestError(code, message));
    }
  }

  #stop(id: number, reason: unknown): void {
    const controller = this.#remove(id);
    if (controller !== undefined) {
      controller.error(reason);
      this.#send({ stop: id });
    }
  }

  #remove(id: number): Watch['controller'] | undefined {
    const watch = this.#watches.get(id);
    this.#watches.delete(id);
    if (this.#watches.size === 0) {
      clearTimeout(this.#linger);
      this.#linger = setTimeout(() => this.#leave(), LINGER_MILLISECONDS);
    }
    return watch?.controller;
  }

  #waitForMessage(): ReturnType<typeof setTimeout> {
    return setTimeout(() => this.#leave(), SILENCE_MILLISECONDS);
  }

  /** Closes the WebSocket. A lost connection confirms no end, so nothing waits for that. */
  #leave(): void {
    this.#isOver = true;
    this.#socket.close();
    this.#fail(lost());
  }

  #fail(error: unknown): void {
    clearTimeout(this.#silence);
    clearTimeout(this.#linger);
    this.#watches.forEach(({ controller }) => controller.error(error));
    this.#watches.clear();
  }
}

function lost(): TypeError {
  return new TypeError('The connection is lost');
}
