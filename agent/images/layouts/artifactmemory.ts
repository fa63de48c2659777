/**
 * Memory of an image in a registry: a second layout in the configuration of the disk's artifact, below the key `dev.berth.memory`. The
 * guest's memory is cut into chunks like the disk, and the chunks of both are layers of the same type. The state of the devices is the last
 * layer, one zstd frame. An agent that does not use the memory fetches only the layers of the disk.
 */
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { open, rm } from 'node:fs/promises';
import { pipeline } from 'node:stream/promises';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { messageOf } from '../../../base/errors.ts';
import { writeAll } from '../../disks/sparse.ts';
import { zstdDecoder } from '../../disks/unpack.ts';
import { saveBlob } from './blob.ts';
import type { Journal } from './journal.ts';
import { memoryIn, type BlobSource, type PullOptions } from './pull.ts';

/** Key of the memory's layout in the configuration. */
export const MEMORY_KEY = 'dev.berth.memory';
/** Number of bytes that are decoded and hashed at a time. */
const PIECE_BYTES = 256 * 1024;
/**
 * Base-2 logarithm of the largest accepted zstd window in bytes. Berth compresses a state with windows of 2 MiB. The limit saves memory.
 */
const WINDOW_LOG = 23;
/** Entry of a journal for the state. */
const STATE_ENTRY = 'state';

/** State of the devices in a registry. */
export interface RemoteState {
  /** Digest and size in bytes of the layer. */
  digest: string;
  size: number;
  /** Digest and size in bytes of the content. */
  rawDigest: string;
  length: number;
}

/**
 * Fetches the state of the devices into its file in `folder`, unless the journal has it. The promise resolves only after the content was
 * verified.
 *
 * @throws ReasonedError `DigestMismatch` or `ImageInvalid` when the content is wrong.
 */
export async function pullState(
  repository: BlobSource['repository'],
  state: RemoteState,
  { folder, journal }: { folder: string; journal: Journal },
  options: PullOptions,
): Promise<void> {
  const path = memoryIn(folder).state;
  const packed = `${path}.zst`;
  if (journal.has(STATE_ENTRY)) {
    // The agent can have died before it removed the packed state.
    await rm(packed, { force: true });
    options.onSpared?.(state.size);
    return;
  }
  await saveBlob({ repository, blob: state }, packed, options);
  const file = await open(path, 'w', 0o600);
  try {
    const hash = createHash('sha256');
    let at = 0;
    for await (const bytes of unpacked(packed, state)) {
      options.signal.throwIfAborted();
      if (at + bytes.length > state.length) {
        throw new ReasonedError(
          'ImageInvalid',
          `${nameOf(state)} unpacks to more than ${state.length} bytes`,
        );
      }
      hash.update(bytes);
      await writeAll(file, bytes, at);
      at += bytes.length;
    }
    const found = `sha256:${hash.digest('hex')}`;
    if (at < state.length || found !== state.rawDigest) {
      const wanted = `${state.length} bytes with the digest ${state.rawDigest}`;
      throw new ReasonedError(
        'ImageInvalid',
        `${nameOf(state)} has ${at} bytes with the digest ${found} instead of ${wanted}`,
      );
    }
    await journal.add(STATE_ENTRY, file);
  } finally {
    await file.close();
    await rm(packed, { force: true });
  }
}

/** Yields the content of the file `packed`. @throws ReasonedError `ImageInvalid` when it cannot be decoded. */
async function* unpacked(packed: string, state: RemoteState): AsyncGenerator<Buffer, void, undefined> {
  const decoder = zstdDecoder(PIECE_BYTES, WINDOW_LOG);
  const file = createReadStream(packed);
  let fault: Error | undefined;
  file.once('error', (error) => {
    fault = error;
  });
  // The reader of the decoder gets the same error.
  pipeline(file, decoder).catch(() => undefined);
  try {
    yield* decoder as AsyncIterable<Buffer>;
  } catch (error) {
    throw (
      fault ??
      new ReasonedError('ImageInvalid', `${nameOf(state)} cannot be unpacked: ${messageOf(error)}`, {
        cause: error,
      })
    );
  }
}

function nameOf({ digest }: RemoteState): string {
  return `The state of the devices in layer ${digest}`;
}
