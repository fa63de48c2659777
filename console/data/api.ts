/** Requests of the page to its server, with the token of the user. The token is only in the memory of this object. */
import type { ObjectEvent } from '../model/collection.ts';
import type { FieldCause } from '../model/form.ts';

/** Refusal of a request, or an answer that is no answer of the server. */
export class RefusedRequestError extends Error {
  override readonly name = 'RefusedRequestError';
  /** HTTP status. */
  readonly status: number;
  /** Mistakes in the fields of the request, as far as the server tells them. */
  readonly causes: readonly FieldCause[];

  constructor(status: number, message: string, causes: readonly FieldCause[] = []) {
    super(message);
    this.status = status;
    this.causes = causes;
  }
}

/** Largest number of characters of one line of a watch. An object has at most 1.5 MB in etcd. */
const LINE_CHARACTERS = 16 * 1024 * 1024;
/** Time limit of a read in milliseconds. The server disconnects clients that need longer for a long answer. */
const READ_MILLISECONDS = 60_000;
/**
 * Time in milliseconds without data after which a watch is given up. On a live connection, the API server sends a bookmark each minute. A
 * page whose laptop has slept or changed its network may never learn that its connection is lost.
 */
const SILENCE_MILLISECONDS = 90_000;

/** Beginning of the protocol that carries a token. The API server of Kubernetes has the same one. */
const TOKEN_PROTOCOL = 'base64url.bearer.authorization.k8s.io.';

interface Watching {
  readonly signal: AbortSignal;
  /** Called when the first data arrives. The server sends an empty line when the API server has begun the watch. */
  readonly onOpen: () => void;
}

export class Api {
  readonly #token: string;
  readonly #onSignedOut: () => void;

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

  /** Yields the events of a watch until its end. A line without an end is left out. @throws the same errors as {@link get}. */
  async *watch<T>(path: string, { signal, onOpen }: Watching): AsyncGenerator<ObjectEvent<T>> {
    let [rest, isOpen] = ['', false];
    for await (const text of this.texts(path, signal)) {
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
    const end = new AbortController();
    const waitForData = () => setTimeout(() => end.abort(), SILENCE_MILLISECONDS);
    let silence = waitForData();
    try {
      const { body } = await this.#fetch(path, { signal: AbortSignal.any([signal, end.signal]) });
      const reader = body?.pipeThrough(new TextDecoderStream()).getReader();
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

/** Encodes bytes as base64url without padding. */
export function base64url(bytes: Uint8Array): string {
  return btoa(String.fromCharCode(...bytes))
    .replaceAll('+', '-')
    .replaceAll('/', '_')
    .replace(/=+$/, '');
}

/** Returns the error for a refusal. A proxy before the server can answer with something else than a Status. */
export async function refusalOf(response: Response): Promise<RefusedRequestError> {
  const { status, statusText } = response;
  const text = await response.text();
  try {
    const { message, details } = JSON.parse(text) as { message?: unknown; details?: { causes?: unknown } };
    const causes = Array.isArray(details?.causes) ? (details.causes as FieldCause[]) : [];
    return new RefusedRequestError(
      status,
      typeof message === 'string' && message !== '' ? message : statusText,
      causes,
    );
  } catch {
    return new RefusedRequestError(status, `The server answers ${status} ${statusText}`);
  }
}
