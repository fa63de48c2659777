/**
 * Pulls disks from container images. In one of its layers, such an image has one file (qcow2 or raw) directly below /disk.
 *
 * The agent reads the layers from the uppermost layer down. The first layer with a file directly below /disk provides the disk, and this
 * file must be the only one there. The agent does not fetch the layers below this layer. A layer can contain a marker that hides files of
 * lower layers: a whiteout of one file or of /disk, or a marker that makes /disk opaque. The agent ignores hidden files.
 */
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import * as z from 'zod';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { unpackedLimit } from '../../disks/unpack.ts';
import type { Repository } from '../oci/repository.ts';
import { type Descriptor, printable, readDocument } from '../oci/manifests.ts';
import { fetchBlob } from './blob.ts';
import {
  asReasonedError,
  checkArchitecture,
  type PlanPull,
  type PullOptions,
  type PullTarget,
} from './pull.ts';
import { type Journal, makeDisk, unfinished } from './journal.ts';
import { type Allowance, type Covering, extractDisk, type Layer, type LayerEncoding } from './layer.ts';
import type { JsonLimits } from '../../../base/json.ts';

const LAYER_TYPES: Record<string, LayerEncoding> = {
  'application/vnd.oci.image.layer.v1.tar': 'none',
  'application/vnd.oci.image.layer.v1.tar+gzip': 'gzip',
  'application/vnd.oci.image.layer.v1.tar+zstd': 'zstd',
  'application/vnd.docker.image.rootfs.diff.tar': 'none',
  'application/vnd.docker.image.rootfs.diff.tar.gzip': 'gzip',
  'application/vnd.docker.image.rootfs.diff.tar.zstd': 'zstd',
};
const CONFIG_TYPES = new Set([
  'application/vnd.oci.image.config.v1+json',
  'application/vnd.docker.container.image.v1+json',
]);
/** Limits of an image configuration. Even the configurations of very large images have only a few dozen KiB. */
const CONFIG_LIMITS: JsonLimits = { bytes: 1024 * 1024, items: 8_192 };
/**
 * Largest accepted number of layers of an image. The limit exists because each layer costs requests and time. Ordinary images are not
 * affected, because programs that build container images allow fewer layers.
 */
const LAYER_LIMIT = 128;

/**
 * Fields of the image configuration that Berth uses. Missing or malformed fields are read as undefined, because some tools omit
 * them or write them malformed.
 */
const configSchema = z
  .object({
    architecture: z.string().optional().catch(undefined),
    rootfs: z
      .object({ diff_ids: z.array(z.string()) })
      .optional()
      .catch(undefined),
  })
  .optional()
  .catch(undefined);

interface RemoteLayer extends Omit<Layer, 'encoding'> {
  /** Undefined if a layer of this media type cannot be read. */
  encoding: LayerEncoding | undefined;
  descriptor: Descriptor;
}

export const planContainerDisk: PlanPull = async (repository, { manifest, digest, architecture }, signal) => {
  if (!CONFIG_TYPES.has(manifest.config.mediaType) || manifest.layers.length === 0) {
    return undefined;
  }
  const encodings = manifest.layers.map(({ mediaType }) => LAYER_TYPES[mediaType]);
  // A layer of another type does no harm if the disk is in a layer above it. Without any usual layer, this is no container image.
  if (encodings.every((encoding) => encoding === undefined)) {
    return undefined;
  }
  const count = manifest.layers.length;
  if (count > LAYER_LIMIT) {
    throw new ReasonedError(
      'ImageInvalid',
      `${repository.name} has ${count} layers, more than the allowed ${LAYER_LIMIT}`,
    );
  }
  const bytes = await repository.blob(manifest.config, CONFIG_LIMITS.bytes, signal);
  const config = readDocument(configSchema, bytes, CONFIG_LIMITS, 'The configuration of the image');
  checkArchitecture(repository.name, config?.architecture, architecture);
  const diffIds = config?.rootfs?.diff_ids;
  const isComplete = diffIds?.length === count;
  const layers = manifest.layers.map((descriptor, index) => ({
    descriptor,
    encoding: encodings[index],
    // If the number of diff IDs differs from the number of layers, it is unknown which diff ID belongs to which layer. So the agent ignores
    // all diff IDs.
    diffId: isComplete ? diffIds[index] : undefined,
  }));
  const downloadBytes = layers.reduce((sum, { descriptor }) => sum + descriptor.size, 0);
  const largest = Math.max(...layers.map(({ descriptor }) => descriptor.size));
  return {
    downloadBytes,
    roomBytes: downloadBytes + largest,
    run: async (target, options) => {
      try {
        await makeDisk(target, digest, async (journal) => {
          const limitBytes = unpackedLimit(downloadBytes);
          const allowance = { limitBytes, leftBytes: limitBytes };
          await pull(repository, layers, { target, journal, allowance }, options);
        });
        await removeBlobs(target, count);
      } catch (error) {
        // The fetched bytes are not a usable image. They are removed, because every later call that continues with them would also fail.
        if (isLasting(error)) {
          await rm(target.folder, { recursive: true, force: true });
        }
        throw error;
      }
    },
  };
};

async function pull(
  repository: Repository,
  layers: readonly RemoteLayer[],
  { target, journal, allowance }: { target: PullTarget; journal: Journal; allowance: Allowance },
  options: PullOptions,
): Promise<void> {
  const covering: Covering = { hidden: new Set(), opaque: false };
  for (let index = layers.length - 1; index >= 0 && !covering.opaque; index -= 1) {
    const remote = layers[index];
    if (remote === undefined) {
      break;
    }
    const { descriptor, encoding, diffId } = remote;
    if (encoding === undefined) {
      const type = printable(descriptor.mediaType);
      throw new ReasonedError(
        'ImageInvalid',
        `${repository.name} has no disk above its layer ${index}, and layers of the type ${type} cannot be read`,
      );
    }
    const work = { path: blobPath(target, index), journal, name: `layer ${index}` };
    const into = { disk: unfinished(target), covering, allowance };
    const hasDisk = await fetchBlob({ repository, blob: descriptor }, work, options, async (content) => {
      return await extractDisk({ encoding, diffId }, content, into, options.signal);
    });
    if (hasDisk) {
      return;
    }
  }
  throw new ReasonedError(
    'ImageInvalid',
    `${repository.name} has no disk: put one qcow2 or raw file into /disk`,
  );
}

async function removeBlobs(target: PullTarget, count: number): Promise<void> {
  for (let index = 0; index < count; index += 1) {
    await rm(blobPath(target, index), { force: true });
  }
}

function blobPath({ folder }: PullTarget, index: number): string {
  return join(folder, `layer-${index}`);
}

function isLasting(error: unknown): boolean {
  const failure = asReasonedError(error, '');
  return (
    failure instanceof ReasonedError &&
    (failure.reason === 'ImageInvalid' || failure.reason === 'DigestMismatch')
  );
}
