/** Requests of the page to its server, with the token of the user. The token is only in the memory of this object. */
import { TOKEN_PROTOCOL, WATCH_PATH, WATCH_PROTOCOL } from '../../api/http/consolewatch.ts';
import type { ObjectEvent } from '../model/collection.ts';
import { refusalOf, RefusedRequestError } from './refusal.ts';
import { SILENCE_MILLISECONDS, WatchSocket } from './watchsocket.ts';

/** Largest number of characters of one line of a watch. An object has at most 1.5 MB in etcd. */
const LINE_CHARACTERS = 16 * 1024 * 1024;
/** Time limit of a read in milliseconds. The server disconnects clients that need longer for a long answer. */
const READ_MILLISECONDS = 60_000;
/** Status with which the server answers if it would accept a WebSocket. */
const NEEDS_WEBSOCKET = 426;
/** Time limit in milliseconds for the question why a WebSocket was refused. */
const QUESTION_MILLISECONDS = 30_000;

interface Watching {
  readonly signal: AbortSignal;
  /** Called when the first data arrives. The server sends an empty line when the API server has begun the watch. */
  readonly onOpen: () => void;
}

export class Api {
  readonly #token: string;
  readonly #onSignedOut: () => void;
  #watches: WatchSocket | undefined;

  /** `onSignedOut` is called when the server no longer accepts the token. */
  constructor(token: string, onSignedOut: () => void) {
    this.#token = token;
    this.#onSignedOut = onSignedOut;
  }

  /**
   * Returns the parsed answer. @throws RefusedRequestError when the server refuses, TypeError when it does not answer, DOMException when it
   * answers too late or the signal aborts.
   */
  async get<T>(path: string, signal: AbortSignal): Promise<T> {
    const end = AbortSignal.any([signal, AbortSignal.timeout(READ_MILLISECONDS)]);
    return (await (await this.#fetch(path, { signal: end })).json()) as T;
  }

  /**
   * Begins a WebSocket to the path. A browser cannot send the token in a header of its own there, so the token is in a list of protocols,
   * which is in no address and no log.
   */
  webSocket(path: string, protocol: string): WebSocket {
    const bytes = new TextEncoder().encode(this.#token);
    const socket = new WebSocket(new URL(path, location.href.replace(/^http/, 'ws')), [
      protocol,
      TOKEN_PROTOCOL + base64url(bytes),
    ]);
    socket.binaryType = 'arraybuffer';
    return socket;
  }

  /** Sends a change, and returns the parsed answer. @throws the same errors as {@link get}. */
  async send<T>(method: 'POST' | 'PATCH' | 'DELETE', path: string, body?: object): Promise<T> {
    const response = await this.#fetch(path, {
      method,
      ...(body !== undefined && { body: JSON.stringify(body) }),
    });
    return (await response.json()) as T;
  }

  /**
   * Asks the server why it has refused a WebSocket to the path, because a browser does not tell a page. Returns the error, also if the server
   * would accept the WebSocket.
   */
  async whyRefused(path: string): Promise<unknown> {
    try {
      await this.get(path, AbortSignal.timeout(QUESTION_MILLISECONDS));
    } catch (error) {
      if (!(error instanceof RefusedRequestError) || error.status !== NEEDS_WEBSOCKET) {
        return error;
      }
    }
    const message =
      'The connection could not be opened. A proxy before the server may not pass WebSockets on';
    return new RefusedRequestError(NEEDS_WEBSOCKET, message);
  }

  /**
   * Yields the events of a watch until its end. A line without an end is left out. `path` is that of the objects below `/console/objects/`.
   * All watches share one WebSocket. @throws the same errors as {@link get}.
   */
  async *watch<T>(
    path: string,
    resourceVersion: string,
    { signal, onOpen }: Watching,
  ): AsyncGenerator<ObjectEvent<T>> {
    let [rest, isOpen] = ['', false];
    for await (const text of this.#watchTexts(path, resourceVersion, signal)) {
      if (!isOpen) {
        isOpen = true;
        onOpen();
      }
      const lines = (rest + text).split('\n');
      rest = lines.pop() ?? '';
      if (rest.length > LINE_CHARACTERS) {
        throw new RefusedRequestError(502, 'The server sent a line that is too long');
      }
      for (const line of lines.filter((one) => one !== '')) {
        yield JSON.parse(line) as ObjectEvent<T>;
      }
    }
  }

  /** Yields the pieces of an answer until its end, or until no piece has come for {@link SILENCE_MILLISECONDS}. */
  async *texts(path: string, signal: AbortSignal): AsyncGenerator<string> {
    yield* readTexts(async (end) => (await this.#fetch(path, { signal: end })).body, signal);
  }

  async *#watchTexts(path: string, resourceVersion: string, signal: AbortSignal): AsyncGenerator<string> {
    try {
      const begin = (end: AbortSignal) => this.#watchSocket().begin({ path, resourceVersion }, end);
      yield* readTexts(begin, signal);
    } catch (error) {
      if (error instanceof RefusedRequestError && error.status === 401) {
        this.#onSignedOut();
      }
      throw error;
    }
  }

  #watchSocket(): WatchSocket {
    if (this.#watches === undefined || this.#watches.isOver) {
      const whyRefused = async () => await this.whyRefused(WATCH_PATH);
      this.#watches = new WatchSocket(this.webSocket(WATCH_PATH, WATCH_PROTOCOL), whyRefused);
    }
    return this.#watches;
  }

  async #fetch(path: string, { body, ...options }: RequestInit): Promise<Response> {
    const response = await fetch(path, {
      ...options,
      headers: {
        authorization: `Bearer ${this.#token}`,
        ...(body !== undefined && { 'content-type': 'application/json' }),
      },
      ...(body !== undefined && { body }),
      cache: 'no-store',
      credentials: 'omit',
      redirect: 'error',
    });
    if (!response.ok) {
      if (response.status === 401) {
        this.#onSignedOut();
      }
      throw await refusalOf(response);
    }
    return response;
  }
}

/** Yields the pieces of what `open` returns until its end, or until no piece has come for {@link SILENCE_MILLISECONDS}. */
async function* readTexts(
  open: (end: AbortSignal) => OpenedBytes | Promise<OpenedBytes>,
  signal: AbortSignal,
): AsyncGenerator<string> {
  const end = new AbortController();
  const waitForData = () => setTimeout(() => end.abort(), SILENCE_MILLISECONDS);
  let silence = waitForData();
  try {
    const bytes = await open(AbortSignal.any([signal, end.signal]));
    const reader = bytes?.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { value, done } = (await reader?.read()) ?? { value: undefined, done: true };
      if (value === undefined || done) {
        return;
      }
      clearTimeout(silence);
      silence = waitForData();
      yield value;
    }
  } finally {
    clearTimeout(silence);
    end.abort();
  }
}

type OpenedBytes = ReadableStream<Uint8Array<ArrayBuffer>> | null;

/** Encodes bytes as base64url without padding. */
export function base64url(bytes: Uint8Array): string {
  return btoa(String.fromCharCode(...bytes))
    .replaceAll('+', '-')
    .replaceAll('/', '_')
    .replace(/=+$/, '');
}
