/**
 * Sends one HTTP request and reads the whole answer into memory. It creates no stream, because bodies have only a few KB. Therefore it
 * takes a quarter less CPU time than undici's `request`.
 */
import { addAbortListener } from 'node:events';
import type { IncomingHttpHeaders } from 'node:http';
import { createGunzip, type Gunzip } from 'node:zlib';
import type { Dispatcher } from 'undici';
import { beginSlice, isSliceOver } from '../base/time.ts';

/**
 * Limit in bytes of an answer with a status other than 200. Such an answer is a refusal or one object, and an object has at most 3 MB. The
 * API server also passes on refusals of hosts. A hostile host could send an endless refusal, so the limit is needed.
 */
const LIMIT_BYTES = 16 * 1024 * 1024;

/**
 * Size in bytes of the pieces into which a compressed body is decompressed. The reader of a list needs less than a millisecond for a piece.
 * Lists are requested in compressed form, because the API server compresses long lists without a loss of speed. A compressed list has fewer
 * bytes, so this process needs only half of the CPU time to read it.
 */
const DECOMPRESSED_BYTES = 64 * 1024;

/**
 * Type of the controller with which {@link exchange} ends, pauses and resumes a request. The type has no other methods, because the
 * connection pool of the `berth` command (`cli`) offers only these three.
 */
export type ExchangeController = Pick<Dispatcher.DispatchController, 'abort' | 'pause' | 'resume'>;

export interface Exchanged {
  statusCode: number;
  headers: IncomingHttpHeaders;
  /** Body, decoded as UTF-8. It is empty if `onData` received the body. */
  text: string;
}

/**
 * Sends a request. The promise rejects with the network's error, or with the signal's reason. It rejects as soon as the signal aborts, even
 * while the request waits for a connection. If the status is 200, `onData` takes the pieces of the body as they arrive. If `onData` throws,
 * the promise rejects with that error. The promise also rejects if the body of a refusal is too long.
 */
export async function exchange(
  dispatcher: Dispatcher,
  options: Dispatcher.DispatchOptions,
  signal: AbortSignal,
  onData?: (piece: Buffer) => void,
): Promise<Exchanged> {
  signal.throwIfAborted();
  const exchanged = new Exchange(onData);
  using _listener = addAbortListener(signal, () => exchanged.abort(signal.reason));
  dispatcher.dispatch(options, exchanged);
  return await exchanged.answer;
}

class Exchange implements Dispatcher.DispatchHandler {
  readonly #resolvers = Promise.withResolvers<Exchanged>();
  #controller: ExchangeController | undefined;
  #abortedFor: Error | undefined;
  #statusCode = 0;
  #headers: IncomingHttpHeaders = {};
  /** Stream that decompresses the body. Undefined if the body is not compressed. */
  #gunzip: Gunzip | undefined;
  readonly #chunks: Buffer[] = [];
  #bytes = 0;
  readonly #onData: ((piece: Buffer) => void) | undefined;

  constructor(onData: ((piece: Buffer) => void) | undefined) {
    this.#onData = onData;
  }

  get answer(): Promise<Exchanged> {
    return this.#resolvers.promise;
  }

  abort(reason: Error): void {
    this.#abortedFor = reason;
    this.#controller?.abort(reason);
    this.#gunzip?.destroy();
    this.#resolvers.reject(reason);
  }

  onRequestStart(controller: ExchangeController): void {
    this.#controller = controller;
    if (this.#abortedFor !== undefined) {
      controller.abort(this.#abortedFor);
    }
  }

  /** Called for each status that the server sends. Informational statuses (1xx) can come before the final status. */
  onResponseStart(controller: ExchangeController, statusCode: number, headers: IncomingHttpHeaders): void {
    this.#statusCode = statusCode;
    this.#headers = headers;
    if (headers['content-encoding'] === 'gzip') {
      this.#gunzip = createGunzip({ chunkSize: DECOMPRESSED_BYTES })
        .on('data', (piece: Buffer) => this.#take(piece))
        .on('drain', () => controller.resume())
        .on('end', () => this.#end())
        .on('error', (error) => this.abort(error));
    }
  }

  onResponseData(controller: ExchangeController, chunk: Buffer): void {
    if (this.#gunzip !== undefined) {
      // Each decompressed piece arrives in a separate callback, so other work can run between two pieces.
      if (!this.#gunzip.write(chunk)) {
        controller.pause();
      }
      return;
    }
    beginSlice();
    this.#take(chunk);
    // One connection can deliver 2 MiB in a turn, and reading them takes about 20 ms.
    if (isSliceOver()) {
      controller.pause();
      setImmediate(() => controller.resume());
    }
  }

  #take(piece: Buffer): void {
    if (this.#onData === undefined || this.#statusCode !== 200) {
      this.#keep(piece);
      return;
    }
    try {
      this.#onData(piece);
    } catch (error) {
      this.abort(error as Error);
    }
  }

  #keep(chunk: Buffer): void {
    this.#chunks.push(chunk);
    this.#bytes += chunk.length;
    if (this.#statusCode !== 200 && this.#bytes > LIMIT_BYTES) {
      this.abort(
        new Error(`the answer with HTTP status ${this.#statusCode} has more than ${LIMIT_BYTES} bytes`),
      );
    }
  }

  onResponseEnd(): void {
    if (this.#gunzip === undefined) {
      this.#end();
    } else {
      this.#gunzip.end();
    }
  }

  #end(): void {
    const [first] = this.#chunks;
    const body = this.#chunks.length === 1 && first !== undefined ? first : Buffer.concat(this.#chunks);
    this.#resolvers.resolve({
      statusCode: this.#statusCode,
      headers: this.#headers,
      text: body.toString('utf8'),
    });
  }

  onResponseError(_controller: ExchangeController, error: Error): void {
    this.#gunzip?.destroy();
    this.#resolvers.reject(error);
  }
}
