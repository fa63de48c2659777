/**
 * The task of an upload: it waits for the sender of a file, receives the file, and stores it as the content of an Image or ISO. The protocol
 * is in `transfer.ts` of the API.
 */
import { chmod, chown, type FileHandle, open, rename, rm, stat } from 'node:fs/promises';
import type { Socket } from 'node:net';
import { join } from 'node:path';
import { createHash } from 'node:crypto';
import { setImmediate } from 'node:timers/promises';
import { classOf, ReasonedError, reasonIn } from '../../api/v1alpha1/reasons.ts';
import type { Task, TaskReport } from '../../api/v1alpha1/task.ts';
import { waitAfter } from '../../base/backoff.ts';
import { messageOf, messageWithoutPaths } from '../../base/errors.ts';
import { sync } from '../../base/files.ts';
import { pause } from '../../base/time.ts';
import { unlessMissing } from '../disks/diskio.ts';
import { inspectImage } from '../images/local/inspect.ts';
import { type DiskFile, type DiskHost, inPart, type UseDisk, withImage } from './disks.ts';
import { type TaskContext, tenantOf } from './runner.ts';
import { DIGEST_BYTES, LENGTH_BYTES, PIECE_BYTES, type TransferAnswer } from '../../api/v1alpha1/transfer.ts';
import { ByteReader } from '../../base/bytereader.ts';
import { writeSparse } from '../disks/sparse.ts';
import { LeastRate } from '../images/oci/failures.ts';

/**
 * Time limit in milliseconds for the sender to attach to the Pod of the task. The sender is a server, which watches the Pod and attaches as
 * soon as the task runs.
 */
const WAIT_MILLISECONDS = 120_000;
/** Progress of the task in percent when the file has arrived. The rest of the progress is for storing the file. */
const RECEIVED_PERCENT = 50;
/**
 * Number of attempts to store a received file, and the shortest and longest wait between two attempts. All waits together take eight
 * minutes. An image storage that is updated usually returns within this time.
 */
const ATTEMPTS = 8;
const RETRY_FIRST_MILLISECONDS = 5_000;
const RETRY_CAP_MILLISECONDS = 180_000;
/** Mode of the received file. Only root (the owner) and the group of the user that reads images can read the file. */
const FILE_MODE = 0o440;

type ReceiveTask = Task & { type: 'receive' };

interface ReceiveContext extends TaskContext {
  /** Resolves with the connection of the sender. The promise never rejects. */
  readonly caller: Promise<Socket>;
}

/** Paths of the file while it arrives (`partial`), and when it is complete (`path`). */
interface Places {
  partial: string;
  path: string;
}

/**
 * Receives a file, and calls `use` with the disk in this file. The agent answers the sender before it calls `use`. The sender then no longer
 * has the file. So if `use` fails, the agent calls it again, unless the failure is final. If the agent ends after its answer, the next run of
 * the task uses the received file.
 */
export async function receive(
  host: DiskHost,
  task: ReceiveTask,
  context: TaskContext,
  use: UseDisk,
): Promise<TaskReport> {
  const places = { partial: join(context.folder, 'upload'), path: join(context.folder, 'received') };
  const caller = firstCaller(context);
  try {
    const base = await received(host, task, { ...context, caller }, places);
    const { architecture } = task;
    const progress = neverBack(inPart(context, RECEIVED_PERCENT, 100));
    return await untilStored(context, async () => {
      return await withImage(host, { base, architecture }, { ...context, progress }, use);
    });
  } finally {
    await Promise.all(Object.values(places).map(async (path) => await rm(path, { force: true })));
  }
}

/** Calls `store` until it succeeds. @throws the last error when the failure is final, or no attempt is left; the signal's reason. */
async function untilStored(
  { signal, log }: TaskContext,
  store: () => Promise<TaskReport>,
): Promise<TaskReport> {
  for (let failures = 1; ; failures += 1) {
    try {
      return await store();
    } catch (error) {
      signal.throwIfAborted();
      if (failures === ATTEMPTS || classOf(reasonIn(error), 'Image') === 'final') {
        throw error;
      }
      const wait = waitAfter(failures, RETRY_FIRST_MILLISECONDS, RETRY_CAP_MILLISECONDS);
      log(
        `The file could not be stored: ${messageWithoutPaths(error)}. The next attempt is in ${wait / 1000} s`,
      );
      await pause(wait, signal);
    }
  }
}

/** Returns a function that reports a progress only if it is not less than the progress before. */
function neverBack(report: TaskContext['progress']): TaskContext['progress'] {
  let reached = 0;
  return (percent) => {
    reached = Math.max(reached, percent);
    report(reached);
  };
}

/** Resolves with the connection of the first caller. Refuses all later callers. */
async function firstCaller({ takeCallers }: TaskContext): Promise<Socket> {
  const { promise, resolve } = Promise.withResolvers<Socket>();
  let isTaken = false;
  takeCallers((caller) => {
    const isFirst = !isTaken;
    isTaken = true;
    resolve(caller);
    return isFirst;
  });
  return await promise;
}

/** @throws ReasonedError when the file did not arrive or is not a valid disk. */
async function received(
  host: DiskHost,
  task: ReceiveTask,
  context: ReceiveContext,
  places: Places,
): Promise<DiskFile> {
  const { partial, path } = places;
  return await answering(context, async () => {
    // If an earlier run of the agent ended while the file arrived, that run can have left a part of the file.
    await rm(partial, { force: true });
    if ((await unlessMissing(stat(path))) === undefined) {
      await fetchFile(host, task, context, places);
    } else {
      context.log('The file arrived before the agent restarted');
    }
    return { path, ...(await inspected(host, path, task.format)) };
  });
}

/** Receives the file. When the promise resolves, the file is complete, and survives a loss of power. */
async function fetchFile(
  host: DiskHost,
  { limitBytes }: ReceiveTask,
  context: ReceiveContext,
  { partial, path }: Places,
): Promise<void> {
  const claim = { folder: context.folder, tenant: tenantOf(context), bytes: limitBytes };
  await host.images.withRoom(claim, context.signal, async (signal) => {
    const sender = await senderOf(context, signal);
    context.log('Receiving the file');
    const onBytes = (bytes: number): void => context.progress((bytes * RECEIVED_PERCENT) / limitBytes);
    const { bytes, sha256 } = await receiveFile(sender, { path: partial, limitBytes, signal, onBytes });
    context.log(`Received ${bytes} bytes with the sha256 ${sha256}`);
  });
  await rename(partial, path);
  await sync(context.folder);
}

/** Sends the result of `work` to the sender, even if the sender attaches after `work` has ended. */
async function answering<T>(context: ReceiveContext, work: () => Promise<T>): Promise<T> {
  try {
    const result = await work();
    void context.caller.then((sender) => answer(sender));
    return result;
  } catch (error) {
    void context.caller.then((sender) => answer(sender, error));
    throw error;
  }
}

async function senderOf({ caller }: ReceiveContext, signal: AbortSignal): Promise<Socket> {
  const { promise, reject } = Promise.withResolvers<never>();
  const onAbort = (): void => reject(signal.reason as Error);
  const late = new ReasonedError('UploadInterrupted', 'Nobody sent the file');
  const timer = setTimeout(() => reject(late), WAIT_MILLISECONDS);
  signal.addEventListener('abort', onAbort, { once: true });
  try {
    return await Promise.race([caller, promise]);
  } finally {
    clearTimeout(timer);
    signal.removeEventListener('abort', onAbort);
  }
}

/** Returns the format and the size of the disk in the received file. @throws ReasonedError `ImageInvalid` when the file is not a disk. */
async function inspected(host: DiskHost, path: string, format: ReceiveTask['format']) {
  const reader = host.users?.reader;
  if (reader !== undefined) {
    await chown(path, 0, reader.gid);
  }
  await chmod(path, FILE_MODE);
  return await inspectImage(path, format, reader);
}

/**
 * If the sender sends no data for this time in milliseconds, the agent closes the connection. The sender is a server that forwards the file
 * of a client, so it also sends nothing while the client pauses.
 */
const IDLE_MILLISECONDS = 60_000;
const SILENT = 'The sender sent nothing for a minute';
/** After the agent's answer, the sender must close the connection within this time in milliseconds. Otherwise the agent closes it. */
const CLOSE_MILLISECONDS = 5_000;
/**
 * Number of pieces of the file after which the agent lets other work run. One read from a connection can return ten thousand pieces of one
 * byte. Without pauses, these pieces would keep the agent busy for a tenth of a second.
 */
const PIECES_AT_ONCE = 256;
/** Longest message in an answer, in characters. */
const MESSAGE_LENGTH = 4096;

interface Receiving {
  /** Path of the file that is created. The file must not exist yet. */
  readonly path: string;
  /** Largest accepted size of the file in bytes. */
  readonly limitBytes: number;
  readonly signal: AbortSignal;
  /** Called with the number of bytes of the file that have arrived so far. */
  readonly onBytes: (bytes: number) => void;
}

export interface ReceivedFile {
  readonly bytes: number;
  /** SHA-256 of the file in hexadecimal digits. */
  readonly sha256: string;
}

/**
 * Receives the file from the sender, writes it with holes in place of zeros, and syncs it. The function does not answer the sender; {@link
 * answer} does that later.
 *
 * @throws ReasonedError `UploadInterrupted` when the connection ends before the end of the file or the sender is too slow, `DigestMismatch` when the digest of the
 * file is not the digest that the sender states, or `ImageInvalid` when the file is too large; the signal's reason when the signal aborts.
 */
export async function receiveFile(sender: Socket, receiving: Receiving): Promise<ReceivedFile> {
  const { path, signal } = receiving;
  const onAbort = (): void => {
    // If the file does not fit on the disk, the signal's reason is a ReasonedError. The connection then stays open, because the sender gets
    // an answer. After any other abort, the agent closes the connection without an answer.
    if (!(signal.reason instanceof ReasonedError)) {
      sender.destroy();
    }
  };
  signal.addEventListener('abort', onAbort, { once: true });
  const rate = new LeastRate('The sender of the file', undefined, 'UploadInterrupted');
  const file = await open(path, 'wx', 0o600);
  try {
    return await writeFile(file, new ByteReader(rate.over(arriving(sender))), receiving);
  } catch (error) {
    signal.throwIfAborted();
    throw error;
  } finally {
    signal.removeEventListener('abort', onAbort);
    await file.close();
  }
}

async function writeFile(
  file: FileHandle,
  source: ByteReader,
  { limitBytes, signal, onBytes }: Receiving,
): Promise<ReceivedFile> {
  const hash = createHash('sha256');
  let bytes = 0;
  for await (const part of partsOf(source)) {
    signal.throwIfAborted();
    if (bytes + part.length > limitBytes) {
      throw new ReasonedError('ImageInvalid', `The file is larger than its limit of ${limitBytes} bytes`);
    }
    hash.update(part);
    await writeSparse({ file, fresh: true }, part, bytes);
    bytes += part.length;
    onBytes(bytes);
  }
  const expected = (await source.read(DIGEST_BYTES)).toString('hex');
  const sha256 = hash.digest('hex');
  if (sha256 !== expected) {
    throw new ReasonedError('DigestMismatch', `The file has the sha256 ${sha256} instead of ${expected}`);
  }
  // If the file ends with a hole, only this call gives the file its full size.
  await file.truncate(bytes);
  await file.sync();
  return { bytes, sha256 };
}

/** Tells the sender the result: the failure `error`, or success if `error` is undefined. The sender then closes the connection. */
export function answer(sender: Socket, error?: unknown): void {
  const failed: TransferAnswer =
    error === undefined
      ? {}
      : {
          reason: reasonIn(error) ?? 'TaskFailed',
          message: messageWithoutPaths(error).slice(0, MESSAGE_LENGTH),
        };
  // The agent must not close the connection here. Otherwise the API server could drop the answer before the sender has received it.
  sender.write(JSON.stringify(failed));
  sender.once('end', () => sender.end());
  // If the sender continues to send, the agent drops the bytes.
  sender.resume();
  const late = setTimeout(() => sender.destroy(), CLOSE_MILLISECONDS);
  sender.once('close', () => clearTimeout(late));
}

/** Yields the bytes of the file as they arrive, until the end of the file. */
async function* partsOf(source: ByteReader): AsyncGenerator<Buffer> {
  for (let count = 1; ; count += 1) {
    if (count % PIECES_AT_ONCE === 0) {
      await setImmediate();
    }
    const length = (await source.read(LENGTH_BYTES)).readUInt32BE();
    if (length === 0) {
      return;
    }
    if (length > PIECE_BYTES) {
      throw new ReasonedError(
        'UploadInterrupted',
        `The sender broke the protocol: it sent a piece of ${length} bytes`,
      );
    }
    for (let left = length; left > 0; ) {
      const part = await source.some(left);
      left -= part.length;
      yield part;
    }
  }
}

/** Yields the bytes of a connection. @throws ReasonedError `UploadInterrupted` when the connection has ended. */
async function* arriving(sender: Socket): AsyncGenerator<Buffer, never> {
  // With `destroyOnReturn: false`, the connection stays open when the agent stops reading early. The agent must still send its answer over
  // this connection.
  const chunks = sender.iterator({ destroyOnReturn: false }) as AsyncIterator<Buffer>;
  for (;;) {
    yield await next(sender, chunks);
  }
}

async function next(sender: Socket, chunks: AsyncIterator<Buffer>): Promise<Buffer> {
  let cause: unknown;
  // The timer runs only while the agent waits for the sender. Thus a slow disk of this host does not count as silence of the sender.
  const late = setTimeout(() => sender.destroy(new Error(SILENT)), IDLE_MILLISECONDS);
  try {
    const { value, done } = await chunks.next();
    if (done !== true) {
      return value;
    }
  } catch (error) {
    cause = error;
  } finally {
    clearTimeout(late);
  }
  const why = cause === undefined ? '' : `: ${messageOf(cause)}`;
  throw new ReasonedError('UploadInterrupted', `The connection ended before the end of the file${why}`);
}
