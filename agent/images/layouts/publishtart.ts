/**
 * Publishes a disk with the machine beside it as `tart push` does, so that `tart pull` can read it: the configuration of the machine, the disk in
 * pieces of 512 MiB, each an LZ4 stream of its own, and the variables of the firmware.
 */
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { type FileHandle, open } from 'node:fs/promises';
import { Readable } from 'node:stream';
import { setImmediate as nextCycle } from 'node:timers/promises';
import * as z from 'zod';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { type JsonLimits, parseJson } from '../../../base/json.ts';
import type { MachineFiles } from '../../disks/disk.ts';
import { fileDigest } from '../../disks/diskio.ts';
import { BLOCK_BYTES, encodeBlock, END_BLOCK } from '../../disks/lz4.ts';
import { readAll } from '../../disks/sparse.ts';
import type { Descriptor } from '../oci/manifests.ts';
import type { Repository } from '../oci/repository.ts';
import { CONFIG_TYPE, digestOf, MANIFEST_TYPE } from './artifact.ts';
import { readMachine } from './artifactmachine.ts';
import type { DiskToPublish, PublishedDisk, PublishOptions } from './publish.ts';
import { DISK_FORMAT, TART_NOTES, TART_TYPES } from './tart.ts';

/** Size of the pieces into which Tart cuts disks. */
const PIECE_BYTES = 512 * 1024 * 1024;
/** Number of bytes of the disk that are read and compressed at a time. Other work runs between two of them. */
const STEP_BYTES = 8 * BLOCK_BYTES;
const CONFIG_LIMITS: JsonLimits = { bytes: 64 * 1024, items: 8_192 };
/** Fields of the configuration that registries show. Old versions of Tart ran only macOS on arm64, and wrote neither. */
const configSchema = z.object({ arch: z.string().default('arm64'), os: z.string().default('darwin') });

/** Where a piece is in the disk. */
interface Piece {
  file: FileHandle;
  offset: number;
  length: number;
}

/**
 * Uploads the layers and the manifest of a disk that has a machine beside it. `now` is the time of the upload, in milliseconds since 1970.
 *
 * @throws ReasonedError when the upload fails, or the files of the machine cannot be used.
 */
export async function publishTart(
  { repository, tag, path, virtualSizeBytes: size }: DiskToPublish,
  files: MachineFiles,
  options: PublishOptions,
  now: number,
): Promise<PublishedDisk> {
  const { signal } = options;
  const machine = await readMachine(files);
  const { arch, os } = readConfig(machine.config);
  const config = await upload(repository, TART_TYPES.config, Buffer.from(machine.config), signal);
  const disk = await publishPieces(repository, { path, size }, options);
  const variables = await publishVariables(repository, files.variables, machine.variablesBytes, signal);
  const shown = { architecture: arch, os, config: { Labels: { [TART_NOTES.format]: DISK_FORMAT } } };
  const layers = [config, ...disk, variables];
  const manifest = Buffer.from(
    JSON.stringify({
      schemaVersion: 2,
      mediaType: MANIFEST_TYPE,
      config: await upload(repository, CONFIG_TYPE, Buffer.from(JSON.stringify(shown)), signal),
      layers,
      annotations: {
        [TART_NOTES.diskSize]: String(size),
        [TART_NOTES.uploadTime]: new Date(now).toISOString().replace(/\.\d+Z$/, 'Z'),
      },
    }),
  );
  const digest = await repository.putManifest(tag, MANIFEST_TYPE, manifest, signal);
  const storageBytes = layers.reduce((sum, layer) => sum + layer.size, manifest.length);
  return { digest, storageBytes };
}

function readConfig(text: string): z.infer<typeof configSchema> {
  const config = configSchema.safeParse(parseJson(Buffer.from(text), CONFIG_LIMITS));
  if (!config.success) {
    throw new ReasonedError('ImageInvalid', 'The configuration of the machine beside the disk is not usable');
  }
  return config.data;
}

/** A layer as Tart describes it. */
type Layer = Descriptor & { annotations: Record<string, string> };

async function upload(
  repository: Repository,
  mediaType: string,
  bytes: Buffer,
  signal: AbortSignal,
): Promise<Layer> {
  const digest = await digestOf(bytes);
  await repository.upload({ digest, size: bytes.length, content: () => bytes }, signal);
  return { mediaType, digest, size: bytes.length, annotations: {} };
}

async function publishVariables(
  repository: Repository,
  path: string,
  size: number,
  signal: AbortSignal,
): Promise<Layer> {
  const digest = `sha256:${await fileDigest(path, signal)}`;
  await repository.upload({ digest, size, content: () => createReadStream(path) }, signal);
  return { mediaType: TART_TYPES.variables, digest, size, annotations: {} };
}

async function publishPieces(
  repository: Repository,
  { path, size }: { path: string; size: number },
  options: PublishOptions,
): Promise<Layer[]> {
  const layers: Layer[] = [];
  const file = await open(path, 'r');
  try {
    for (let offset = 0; offset < size; offset += PIECE_BYTES) {
      const piece = { file, offset, length: Math.min(PIECE_BYTES, size - offset) };
      layers.push(await publishPiece(repository, piece, options));
    }
  } finally {
    await file.close();
  }
  return layers;
}

/** Publishes one piece. It is compressed twice, because its compressed content can be too large for the agent's memory. */
async function publishPiece(repository: Repository, piece: Piece, options: PublishOptions): Promise<Layer> {
  const { signal, onBytes } = options;
  const [raw, compressed] = [createHash('sha256'), createHash('sha256')];
  let size = 0;
  const note = (bytes: Buffer): void => {
    raw.update(bytes);
    onBytes(bytes.length);
  };
  for await (const bytes of encoded(piece, signal, note)) {
    compressed.update(bytes);
    size += bytes.length;
  }
  const digest = `sha256:${compressed.digest('hex')}`;
  const content = (): Readable => Readable.from(encoded(piece, signal));
  await repository.upload({ digest, size, content }, signal);
  const annotations = {
    [TART_NOTES.size]: String(piece.length),
    [TART_NOTES.digest]: `sha256:${raw.digest('hex')}`,
  };
  return { mediaType: TART_TYPES.disk, digest, size, annotations };
}

/** Yields the LZ4 stream of a piece. `note` gets the bytes before they are compressed. The end of a short file counts as zeros. */
async function* encoded(
  { file, offset, length }: Piece,
  signal: AbortSignal,
  note?: (bytes: Buffer) => void,
): AsyncGenerator<Buffer, void, undefined> {
  const room = Buffer.alloc(Math.min(STEP_BYTES, length));
  for (let at = 0; at < length; at += STEP_BYTES) {
    signal.throwIfAborted();
    const bytes = room.subarray(0, Math.min(STEP_BYTES, length - at));
    await readAll(file, bytes, offset + at);
    note?.(bytes);
    const blocks: Buffer[] = [];
    for (let block = 0; block < bytes.length; block += BLOCK_BYTES) {
      blocks.push(encodeBlock(bytes.subarray(block, block + BLOCK_BYTES)));
    }
    yield Buffer.concat(blocks);
    await nextCycle();
  }
  yield END_BLOCK;
}
