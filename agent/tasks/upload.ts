/** Reads the file of an upload from the connection of its sender. The protocol is in `transfer.ts` of the API. */
import { createHash } from 'node:crypto';
import { type FileHandle, open } from 'node:fs/promises';
import type { Socket } from 'node:net';
import { setImmediate } from 'node:timers/promises';
import { ReasonedError, reasonIn } from '../../api/v1alpha1/reasons.ts';
import { DIGEST_BYTES, LENGTH_BYTES, PIECE_BYTES, type TransferAnswer } from '../../api/v1alpha1/transfer.ts';
import { ByteReader } from '../../base/bytereader.ts';
import { messageOf } from '../../base/errors.ts';
import { writeSparse } from '../disks/sparse.ts';
import { LeastRate } from '../images/oci/leastrate.ts';

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

export interface Receiving {
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
      : { reason: reasonIn(error) ?? 'TaskFailed', message: messageOf(error).slice(0, MESSAGE_LENGTH) };
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
