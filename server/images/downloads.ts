/**
 * Downloads of Images and ISOs as files. The HTTP API stores a request for a download in the object, with the rights of the caller. A task
 * on a host then sends the file. The HTTP API waits for this task, and connects to it through the Kubernetes API server. All callers who
 * download the same object share one task.
 */
import type { ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import { Readable } from 'node:stream';
import { GROUP, IMAGE_UID_LABEL, OPERATION_LABEL } from '../../api/v1alpha1/names.ts';
import { conditionOf, notReadyMessage } from '../../api/http/conditions.ts';
import type { StoredContent } from '../../api/http/imageitem.ts';
import { PODS } from '../../kube/core.ts';
import { undefinedIf } from '../../base/errors.ts';
import { retry, type RetryLimits } from '../../base/retry.ts';
import { ApiError, isConflict } from '../../kube/errors.ts';
import { follow } from '../../kube/follow.ts';
import type { Resource } from '../../kube/objects.ts';
import { callerMay, findAs, type NamespacedRef } from '../callers/objects.ts';
import type { Caller } from '../callers/caller.ts';
import { requireImageStorage } from '../../actions/disk.ts';
import type { ServerConfig } from '../config.ts';
import { notFound, StatusError } from '../http/errors.ts';
import { WaitEnd, type WaitingRequests } from '../http/waiting.ts';
import { attach, isTask, OF_THE_CALLER } from './taskpod.ts';
import { ANSWER_LIMITS, type TransferHead, transferHeadSchema } from '../../api/v1alpha1/transfer.ts';
import { parseJson } from '../../base/json.ts';

/**
 * Largest number of downloads at the same time. A download needs 2 MiB of memory for pieces of its file, and a host runs only few tasks.
 */
export const DOWNLOADS = 16;
/**
 * Time in milliseconds in which a host must send the first bytes. It is long, because the host might first have to fetch the whole image.
 */
const HOST_MILLISECONDS = 600_000;
/** Time in milliseconds without data after which a client is disconnected. The host ends the transfer after the same time. */
const IDLE_MILLISECONDS = 60_000;
/** Limits for the connection to a task. The first attempt can fail, for example because the agent of the host restarts. */
const CONNECT: RetryLimits = { attempts: 5, firstMilliseconds: 500, capMilliseconds: 2_000 };
/**
 * Largest number of times that one caller requests a download. More than one request can be needed, because the task for another caller
 * might end just before this caller connects to it.
 */
const REQUESTS = 5;

/** Reason that a host reports when all callers of a download have closed their connections. A later download can succeed. */
const INTERRUPTED = 'DownloadInterrupted';
/**
 * HTTP status codes for failures that would occur again in every later attempt. The key is the reason of the failure. After any other
 * failure, a later attempt can succeed, so the code is 503.
 */
const CODES: Readonly<Record<string, number>> = {
  NoImageStorage: 501,
  ImageSourceUnsupported: 422,
  ImageInvalid: 422,
  DigestMismatch: 422,
};

export interface DownloadRequest {
  readonly caller: Caller;
  readonly type: Resource<StoredContent>;
  readonly ref: NamespacedRef;
  readonly namespaces: ServerConfig['namespaces'];
}

export class Downloads {
  readonly #waiting: WaitingRequests;

  constructor(waiting: WaitingRequests) {
    this.#waiting = waiting;
  }

  /**
   * Returns the object of the namespace. If there is none, returns the object of the default namespace.
   *
   * @throws StatusError 403 when the caller has no right to request a download of the object, 409 when the object has no content. @throws
   * errors of `requireImageStorage`.
   */
  async find({ caller: { client }, type, ref, namespaces }: DownloadRequest): Promise<StoredContent> {
    const object = await findAs(client, type, ref, namespaces.default);
    const { namespace = ref.namespace, name } = object.metadata;
    if (!(await callerMay(client, { group: GROUP, resource: type.plural, namespace, name, verb: 'patch' }))) {
      throw new StatusError(403, `A download of ${type.plural} needs the right to change ${type.plural}`);
    }
    await requireImageStorage({ client, systemNamespace: namespaces.system });
    if (object.status?.content === undefined) {
      const why = notReadyMessage(object);
      throw new StatusError(
        409,
        `${type.kind} ${name} has no content yet${why === undefined ? '' : `: ${why}`}`,
      );
    }
    return object;
  }

  /** Resolves when a host begins to send the file. The download then continues until the response is closed. */
  async open(
    request: DownloadRequest,
    object: StoredContent,
    response: ServerResponse,
  ): Promise<ReceivedFile> {
    const { client } = request.caller;
    const owner = { user: await client.username(), namespace: request.ref.namespace };
    return await this.#waiting.run(response, owner, async ({ signal }) => {
      try {
        const download = await begin(request, object, signal);
        response.setTimeout(IDLE_MILLISECONDS);
        return download;
      } catch (error) {
        throw error instanceof WaitEnd ? new StatusError(503, 'The HTTP API is stopping. Try again') : error;
      }
    });
  }
}

async function begin(
  request: DownloadRequest,
  object: StoredContent,
  signal: AbortSignal,
): Promise<ReceivedFile> {
  const late = AbortSignal.timeout(HOST_MILLISECONDS);
  const limit = AbortSignal.any([signal, late]);
  const wait = new Wait(request, limit);
  let connection: Socket | undefined;
  const onEnd = (): void => void connection?.destroy(limit.reason as Error);
  // This listener closes the connection when the time limit passes or the signal aborts. It is removed when the first bytes arrive, because
  // the time limit does not apply to the rest of the transfer.
  limit.addEventListener('abort', onEnd, { once: true });
  try {
    connection = await wait.forHost(object);
    limit.throwIfAborted();
    const download = await receiveFile(connection);
    limit.throwIfAborted();
    const open = connection;
    signal.addEventListener('abort', () => open.destroy(signal.reason as Error), { once: true });
    return download;
  } catch (error) {
    connection?.destroy();
    signal.throwIfAborted();
    throw late.aborted ? new StatusError(504, `No host sent the file within 10 minutes${wait.work}`) : error;
  } finally {
    limit.removeEventListener('abort', onEnd);
  }
}

/** State of one caller who waits for a host. */
class Wait {
  readonly #request: DownloadRequest;
  readonly #signal: AbortSignal;
  #requests = 0;
  /** Value of `requestedAt` of the download for which this caller waits. */
  #waitsFor: string | undefined;
  /**
   * Generation of the object after this caller wrote its request into the object. Versions with an earlier generation do not contain the
   * request, so they are ignored.
   */
  #generation = 0;
  #work = '';

  constructor(request: DownloadRequest, signal: AbortSignal) {
    this.#request = request;
    this.#signal = signal;
  }

  /** Text for people about the operator's work on the object. */
  get work(): string {
    return this.#work;
  }

  /** Resolves with the connection to the task that sends the file. */
  async forHost(object: StoredContent): Promise<Socket> {
    const first = await this.#step(object);
    if (first !== undefined) {
      return first;
    }
    const { caller, type } = this.#request;
    const following = { ...caller, type, from: object.metadata, signal: this.#signal };
    for await (const version of follow(following)) {
      const connection = await this.#step(version);
      if (connection !== undefined) {
        return connection;
      }
    }
    throw notFound(`${type.plural}.${GROUP}`, object.metadata.name);
  }

  async #step(object: StoredContent): Promise<Socket | undefined> {
    const { metadata, spec, status } = object;
    if ((metadata.generation ?? 0) < this.#generation) {
      return undefined;
    }
    const { requestedAt = '' } = spec.download ?? {};
    const { lastDownload: last } = status ?? {};
    if (requestedAt !== '' && requestedAt !== last?.requestedAt) {
      this.#waitsFor = requestedAt;
      this.#work = workOf(object);
      return await this.#connect(object);
    }
    if (requestedAt === this.#waitsFor) {
      refuseFailed(last);
    }
    await this.#ask(object);
    return undefined;
  }

  /**
   * Connects to the task. The result is undefined if no task accepts this caller now. In this case, the caller waits for the next version
   * of the object.
   */
  async #connect({ metadata: { namespace, uid } }: StoredContent): Promise<Socket | undefined> {
    const { caller } = this.#request;
    const labelSelector = `${IMAGE_UID_LABEL}=${uid},${OPERATION_LABEL}=download`;
    let failure: unknown;
    const attempt = async () => {
      const { items } = await caller.client.list(PODS, { namespace, labelSelector, signal: this.#signal });
      const pod = items.find(isTask);
      if (pod === undefined) {
        return { socket: undefined };
      }
      try {
        return { socket: await attach(caller, pod, this.#signal) };
      } catch (error) {
        if (!isPassing(error)) {
          throw error;
        }
        failure = error;
        return undefined;
      }
    };
    const connected = await retry(CONNECT, attempt, { signal: this.#signal });
    return connected === undefined ? refuseLost(failure) : connected.socket;
  }

  /**
   * Stores a request for a download in the object. If several callers do this for the same version of the object, only one of them
   * succeeds. The other callers wait for the download that this one caller requested.
   */
  async #ask({ metadata: { name, namespace = '', resourceVersion } }: StoredContent): Promise<void> {
    this.#requests += 1;
    if (this.#requests > REQUESTS) {
      throw new StatusError(503, 'Every requested download ended before the host sent the file. Try again');
    }
    const { caller, type } = this.#request;
    const download = { requestedAt: new Date().toISOString() };
    const patch = { metadata: { resourceVersion }, spec: { download } };
    const options = { signal: this.#signal };
    const asked = await undefinedIf(
      isConflict,
      caller.client.mergePatch(type, { name, namespace }, patch, options),
    );
    if (asked === undefined) {
      this.#requests -= 1;
      return;
    }
    if (asked.spec.download === undefined) {
      throw new StatusError(
        501,
        'The CustomResourceDefinitions of this cluster have no field for downloads. Update the CustomResourceDefinitions',
      );
    }
    this.#waitsFor = download.requestedAt;
    this.#generation = asked.metadata.generation ?? 0;
  }
}

/**
 * Reports whether the error means that the task has just ended, or that its host does not answer now. All status codes except {@link
 * OF_THE_CALLER} have this meaning, because a host can refuse with any code, for example 200.
 */
function isPassing(error: unknown): error is ApiError {
  return error instanceof ApiError && !OF_THE_CALLER.has(error.status);
}

/** Ignores the error if the task has ended. @throws StatusError 503 when the host does not answer. @throws every other error unchanged. */
function refuseLost(error: unknown): undefined {
  if (!isPassing(error)) {
    throw error;
  }
  if (error.status !== 400 && error.status !== 404) {
    throw new StatusError(503, `The host of the download does not answer: ${error.message}. Try again`);
  }
}

/** Returns a text about the operator's work on the object. The text is the last part of a sentence. */
function workOf(object: StoredContent): string {
  const work = conditionOf(object, 'Reconciling')?.message;
  return work === undefined || work === '' ? '' : `: ${work}`;
}

/** Throws if the download failed. Does not throw if the download ended because its clients closed their connections. @throws StatusError */
function refuseFailed(last: NonNullable<StoredContent['status']>['lastDownload']): void {
  const { result, message = '' } = last ?? {};
  const [reason = '', ...details] = message.split(': ');
  if (result !== 'Failed' || reason === INTERRUPTED) {
    return;
  }
  const text = details.join(': ');
  throw new StatusError(CODES[reason] ?? 503, text, { causes: [{ reason, message: text }] });
}

const LINE_END = '\n';
const BROKEN = 'The host ended the transfer before the end of the file. Try again';

interface ReceivedFile {
  readonly bytes: number;
  /** Stream with the bytes of the file. It fails if fewer bytes arrive than the host announced. When it ends, it closes the connection. */
  readonly file: Readable;
}

/**
 * Resolves when the host begins to send the file.
 *
 * @throws StatusError 503 when the host refuses, or ends the connection before the first byte.
 */
export async function receiveFile(connection: Readable): Promise<ReceivedFile> {
  // The iterator over the received data reports an error only during a read. Without this listener, an error at another time would end the
  // process.
  connection.on('error', () => undefined);
  const chunks = connection.iterator({ destroyOnReturn: false }) as AsyncIterator<Buffer>;
  const { line, rest } = await firstLine(chunks);
  const head = parseHead(line);
  if (!('bytes' in head)) {
    const { reason, message } = head;
    throw new StatusError(503, message, { causes: [{ reason, message }] });
  }
  const { bytes } = head;
  return { bytes, file: Readable.from(content(connection, chunks, { rest, bytes }), { objectMode: false }) };
}

async function firstLine(chunks: AsyncIterator<Buffer>): Promise<{ line: string; rest: Buffer }> {
  let start: Buffer = Buffer.alloc(0);
  while (start.length < ANSWER_LIMITS.bytes) {
    const chunk = await next(chunks);
    if (chunk === undefined) {
      // A refusal does not need a line end, because the host closes the connection after it.
      return { line: start.toString('utf8'), rest: Buffer.alloc(0) };
    }
    start = Buffer.concat([start, chunk]);
    const end = start.indexOf(LINE_END);
    if (end !== -1) {
      return { line: start.toString('utf8', 0, end), rest: start.subarray(end + LINE_END.length) };
    }
  }
  throw new StatusError(503, BROKEN);
}

function parseHead(line: string): TransferHead {
  try {
    return transferHeadSchema.parse(parseJson(line, ANSWER_LIMITS));
  } catch {
    throw new StatusError(503, BROKEN);
  }
}

/** Returns the next bytes. The result is undefined when the connection has ended, for any reason. */
async function next(chunks: AsyncIterator<Buffer>): Promise<Buffer | undefined> {
  try {
    const { value, done } = await chunks.next();
    return done === true ? undefined : value;
  } catch {
    return undefined;
  }
}

async function* content(
  connection: Readable,
  chunks: AsyncIterator<Buffer>,
  { rest, bytes }: { rest: Buffer; bytes: number },
): AsyncGenerator<Buffer> {
  try {
    let chunk: Buffer | undefined = rest;
    for (let left = bytes; ; ) {
      const part = chunk.subarray(0, left);
      left -= part.length;
      if (part.length > 0) {
        yield part;
      }
      if (left === 0) {
        return;
      }
      chunk = await next(chunks);
      if (chunk === undefined) {
        throw new StatusError(503, BROKEN);
      }
    }
  } finally {
    connection.destroy();
  }
}
