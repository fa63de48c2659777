/**
 * Uploads of files as Images and ISOs. The HTTP API creates the object with the rights of the caller, and waits until a host is ready for
 * the file. Then the HTTP API sends the file to the host through the Kubernetes API server. If the file does not arrive, the HTTP API
 * deletes the object. `transfer.ts` in the folder `api` describes the protocol between the HTTP API and the host.
 */
import type { Socket } from 'node:net';
import type { ServerResponse } from 'node:http';
import { createHash } from 'node:crypto';
import type { Duplex } from 'node:stream';
import type { Logger } from 'pino';
import { GROUP, IMAGE_UID_LABEL } from '../../api/v1alpha1/names.ts';
import {
  ANSWER_LIMITS,
  LENGTH_BYTES,
  PIECE_BYTES,
  type TransferAnswer,
  transferAnswerSchema,
} from '../../api/v1alpha1/transfer.ts';
import { conditionOf } from '../../api/http/conditions.ts';
import { type Pod, PODS } from '../../kube/core.ts';
import { ApiError, isConflict, isNotFound } from '../../kube/errors.ts';
import { follow } from '../../kube/follow.ts';
import type { Resource } from '../../kube/objects.ts';
import { callerMay, createAs } from '../callers/objects.ts';
import type { Caller } from '../callers/caller.ts';
import { requireImageStorage } from '../../actions/disk.ts';
import { StatusError } from '../http/errors.ts';
import { WaitEnd, type WaitingRequests } from '../http/waiting.ts';
import type { StoredContent } from '../../api/http/imageitem.ts';
import { attach, isTask, OF_THE_CALLER } from './taskpod.ts';
import type { UploadForm } from './uploadform.ts';
import { parseJson } from '../../base/json.ts';

/** Largest number of uploads at the same time. An upload needs 2 MiB of memory for pieces of its file, and a host runs only few tasks. */
export const UPLOADS = 16;
/** Longest time in milliseconds until a host is ready for the file. It is long, because a host that works on other tasks needs minutes. */
const HOST_MILLISECONDS = 300_000;
/** Time limit in milliseconds for the deletion of an object whose file did not arrive. */
const DELETE_MILLISECONDS = 10_000;
/** Smallest `maxSize` in bytes that the object of an upload can have. */
const LEAST_BYTES = 1024 * 1024;

/** Reasons with which a host reports that the file is wrong. */
const OF_THE_FILE: ReadonlySet<string> = new Set(['ImageInvalid', 'DigestMismatch']);
/** Reasons with which the operator reports that no upload is possible. An operator that is too old for uploads reports one of them. */
const NOT_OFFERED: ReadonlySet<string> = new Set(['NoImageStorage', 'SourceUnsupported']);

export interface UploadRequest {
  readonly caller: Caller;
  readonly type: Resource<StoredContent>;
  readonly namespace: string;
  /** Namespace of the operator. */
  readonly systemNamespace: string;
  /** Length of the request body in bytes. The file is a part of the body, so this is the largest size that the file can have. */
  readonly bytes: number;
  /**
   * Reads the body up to the beginning of the file. This function is called only when the upload may begin, because the number of uploads
   * is limited.
   */
  readonly read: () => Promise<UploadForm>;
}

export class Uploads {
  readonly #waiting: WaitingRequests;
  readonly #logger: Logger;

  constructor(waiting: WaitingRequests, logger: Logger) {
    this.#waiting = waiting;
    this.#logger = logger;
  }

  /**
   * Uploads the file as a new object. Resolves with this object when a host has the whole file with the right digest. After that, the host
   * copies the file to the image storage. Callers without the right to create the object are refused before they take one of the few places
   * for uploads.
   *
   * @throws StatusError or ApiError with the answer for the caller. Before that, the object is deleted, if possible.
   */
  async upload(request: UploadRequest, response: ServerResponse): Promise<StoredContent> {
    const {
      caller: { client },
      type: { plural: resource },
      namespace,
      systemNamespace,
    } = request;
    if (!(await callerMay(client, { group: GROUP, resource, namespace, verb: 'create' }))) {
      throw new StatusError(403, `An upload needs the right to create ${resource}`);
    }
    await requireImageStorage({ client, systemNamespace });
    const owner = { user: await client.username(), namespace };
    return await this.#waiting.run(response, owner, async ({ signal }) => {
      const form = await request.read();
      const object = await createAs(request.caller.client, request.type, objectOf(request, form));
      try {
        const connection = await connect(request, object, signal);
        judge(await send(connection, form, signal));
        return object;
      } catch (error) {
        throw answerOf(error, await this.#remove(request, object));
      }
    });
  }

  /** Deletes the object. Returns a text for people that says whether it was deleted. */
  async #remove({ caller, type }: UploadRequest, { metadata }: StoredContent): Promise<string> {
    const { name, namespace = '', uid } = metadata;
    const what = `${type.kind} ${name}`;
    try {
      const signal = AbortSignal.timeout(DELETE_MILLISECONDS);
      await caller.client.delete(type, { name, namespace }, { uid, signal });
      return `${what} was deleted`;
    } catch (error) {
      if (isNotFound(error) || isConflict(error)) {
        return `${what} was deleted`;
      }
      this.#logger.warn(
        { err: error, object: `${namespace}/${name}` },
        'the file of the object did not arrive, and the object could not be deleted',
      );
      return `${what} still exists. Delete the ${type.kind}`;
    }
  }
}

function objectOf({ namespace, bytes }: UploadRequest, form: UploadForm) {
  const { name, description, architecture } = form;
  const source = { upload: { maxSize: Math.max(bytes, LEAST_BYTES) } };
  return { metadata: { name, namespace }, spec: { description, architecture, source } };
}

/**
 * Waits until a host is ready to receive the file, and connects to its task.
 *
 * @throws StatusError when the upload is not possible or no host is ready in time, ApiError when the API server refuses, or the signal's
 * reason when the signal aborts.
 */
async function connect(request: UploadRequest, object: StoredContent, signal: AbortSignal): Promise<Socket> {
  const late = AbortSignal.timeout(HOST_MILLISECONDS);
  const limit = AbortSignal.any([signal, late]);
  try {
    return await attach(request.caller, await podFor(request, object, limit), limit);
  } catch (error) {
    throw late.aborted && !signal.aborted
      ? new StatusError(504, 'No host was ready for the file within 5 minutes')
      : error;
  }
}

/** Returns the Pod whose task waits for the file. */
async function podFor(
  { caller, type }: UploadRequest,
  object: StoredContent,
  signal: AbortSignal,
): Promise<Pod> {
  const { client, watches } = caller;
  const { namespace, uid } = object.metadata;
  for await (const { status } of follow({ client, watches, type, from: object.metadata, signal })) {
    const stalled = conditionOf({ status }, 'Stalled');
    if (stalled?.status === 'True') {
      throw new StatusError(NOT_OFFERED.has(stalled.reason) ? 501 : 503, stalled.message);
    }
    if (status?.phase === 'Pulling') {
      const labelSelector = `${IMAGE_UID_LABEL}=${uid}`;
      const { items } = await client.list(PODS, { namespace, labelSelector, signal });
      const pod = items.find(isTask);
      if (pod !== undefined) {
        return pod;
      }
    }
  }
  throw new StatusError(409, `${type.kind} ${object.metadata.name} was deleted before its file arrived`);
}

async function send(
  connection: Socket,
  { file, sha256 }: UploadForm,
  signal: AbortSignal,
): Promise<TransferAnswer> {
  const onAbort = (): void => void connection.destroy(signal.reason as Error);
  signal.addEventListener('abort', onAbort, { once: true });
  // `sendFile` handles errors of the connection while it runs. Without this listener, an error at another time would end the process.
  connection.on('error', () => undefined);
  try {
    signal.throwIfAborted();
    return await sendFile(connection, file, sha256);
  } catch (error) {
    signal.throwIfAborted();
    throw error;
  } finally {
    signal.removeEventListener('abort', onAbort);
  }
}

/** Throws if the host refused the file. @throws StatusError 422 when the file is wrong, otherwise 503 */
function judge({ reason, message = '' }: TransferAnswer): void {
  if (reason === undefined) {
    return;
  }
  throw new StatusError(OF_THE_FILE.has(reason) ? 422 : 503, message, { causes: [{ reason, message }] });
}

/** Returns the error for the caller. `fate` is a text that says whether the object was deleted, and becomes part of the message. */
function answerOf(error: unknown, fate: string): unknown {
  if (error instanceof WaitEnd) {
    return new StatusError(503, `The HTTP API is stopping. ${fate}. Try again`);
  }
  if (error instanceof BrokenTransferError) {
    return new StatusError(503, `${error.message}. ${fate}. Try again`);
  }
  if (error instanceof ApiError) {
    const { status, message } = error;
    return OF_THE_CALLER.has(status)
      ? new StatusError(status, `${message}. ${fate}`)
      : new StatusError(503, `The host did not accept the file: ${message}. ${fate}. Try again`);
  }
  if (error instanceof StatusError) {
    const { code = 500, message = '', details } = error.body;
    return new StatusError(code, `${message}. ${fate}`, {
      ...(details?.causes && { causes: details.causes }),
    });
  }
  return error;
}

const NO_ANSWER = 'The host ended the transfer without an answer';
/**
 * Time limit in milliseconds for two steps of the host: to read one piece of the file, and to answer after the last piece. The limit is
 * long, because before its answer, the host must wait until the whole file is on its disk. On a slow disk, this takes minutes.
 */
const STEP_MILLISECONDS = 600_000;

/** Error when the host ended the connection without an answer, for example because its agent stopped. */
class BrokenTransferError extends Error {
  override readonly name = 'BrokenTransferError';
}

/**
 * Sends the file and returns the answer of the host. The host can answer before it has the whole file, for example if its disk is full.
 * `sha256` is the digest that the file must have, in hexadecimal digits. If `sha256` is undefined, the host gets the digest of the sent
 * bytes. Before this function returns or throws, it closes the connection.
 *
 * @throws BrokenTransferError when the host sends no answer, or the error of `file` when the file cannot be read.
 */
export async function sendFile(
  connection: Duplex,
  file: AsyncIterable<Buffer>,
  sha256: string | undefined,
): Promise<TransferAnswer> {
  const transfer: Transfer = { connection, isWhole: false };
  const answer = answerOn(transfer);
  // If the file cannot be read, nobody waits for `answer`. This line prevents an unhandled rejection of `answer`.
  answer.catch(() => undefined);
  const sent = sendPieces(transfer, file, sha256);
  // If the host answers before it has the whole file, nobody waits for `sent`, because the client might never send the rest. This line
  // prevents an unhandled rejection of `sent`.
  sent.catch(() => undefined);
  try {
    return await Promise.race([
      answer,
      sent.then(
        async () => await inTime(connection, answer),
        async (error: unknown) => await afterFailure(answer, error),
      ),
    ]);
  } finally {
    connection.destroy();
  }
}

interface Transfer {
  readonly connection: Duplex;
  /** Whether the whole file has been sent. */
  isWhole: boolean;
}

/**
 * Returns the host's answer after the sending has failed with `error`. A host that refuses the file sends an answer with the cause before
 * it closes the connection. `error` does not contain this cause.
 *
 * @throws `error` when the file could not be read. @throws BrokenTransferError when the host sent no answer.
 */
async function afterFailure(answer: Promise<TransferAnswer>, error: unknown): Promise<TransferAnswer> {
  if (error instanceof BrokenTransferError) {
    return await answer;
  }
  throw error;
}

async function sendPieces(
  transfer: Transfer,
  file: AsyncIterable<Buffer>,
  sha256: string | undefined,
): Promise<void> {
  const { connection } = transfer;
  const hash = createHash('sha256');
  for await (const chunk of file) {
    hash.update(chunk);
    for (let at = 0; at < chunk.length; at += PIECE_BYTES) {
      const piece = chunk.subarray(at, at + PIECE_BYTES);
      await inTime(connection, write(connection, piece.length, piece));
    }
  }
  transfer.isWhole = true;
  const digest = sha256 === undefined ? hash.digest() : Buffer.from(sha256, 'hex');
  await inTime(connection, write(connection, 0, digest));
}

/** Waits for `work`. If the host needs too long, the connection is destroyed, so that `work` fails. */
async function inTime<T>(connection: Duplex, work: Promise<T>): Promise<T> {
  const late = setTimeout(() => connection.destroy(), STEP_MILLISECONDS);
  try {
    return await work;
  } finally {
    clearTimeout(late);
  }
}

/**
 * Sends one piece and resolves when its bytes have left this process. The calling function waits for this before it reads more of the file.
 * Therefore a slow host only slows down the client, and the file does not fill the memory.
 */
async function write(connection: Duplex, length: number, bytes: Buffer): Promise<void> {
  const head = Buffer.alloc(LENGTH_BYTES);
  head.writeUInt32BE(length);
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  connection.cork();
  // The callback of the second `write` reports the errors of both calls.
  connection.write(head, () => undefined);
  connection.write(bytes, (cause) =>
    cause ? reject(new BrokenTransferError(NO_ANSWER, { cause })) : resolve(),
  );
  connection.uncork();
  await promise;
}

/** Reads the answer. The host keeps the connection open after its answer, so this function does not wait for the end of the connection. */
async function answerOn(transfer: Transfer): Promise<TransferAnswer> {
  let bytes = Buffer.alloc(0);
  let cause: unknown;
  try {
    const chunks = transfer.connection.iterator({ destroyOnReturn: false }) as AsyncIterable<Buffer>;
    for await (const chunk of chunks) {
      bytes = Buffer.concat([bytes, chunk]);
      const answer = parseAnswer(bytes);
      if (answer !== undefined && (answer.reason !== undefined || transfer.isWhole)) {
        return answer;
      }
      if (answer !== undefined || bytes.length > ANSWER_LIMITS.bytes) {
        break;
      }
    }
  } catch (error) {
    cause = error;
  }
  throw new BrokenTransferError(NO_ANSWER, { cause });
}

function parseAnswer(bytes: Buffer): TransferAnswer | undefined {
  try {
    return transferAnswerSchema.parse(parseJson(bytes, ANSWER_LIMITS));
  } catch {
    // The answer is not complete yet.
    return undefined;
  }
}
