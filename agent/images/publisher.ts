/**
 * Publishes disks of this host. A disk goes to a registry as Berth's own artifact, or as a qcow2 file to the folder of the
 * cluster's image storage.
 */
import { chmod, mkdir, rename, rm, stat } from 'node:fs/promises';
import { dirname, join, relative } from 'node:path';
import type { StorageTarget } from '../../api/v1alpha1/task.ts';
import { convertToQcow2 } from '../disks/qemuimg.ts';
import { ask } from './oci/access.ts';
import { allocatedBytes, fileDigest, unlessMissing } from '../disks/diskio.ts';
import { requireAnswer } from './sources/file.ts';
import { publishDisk, type RawDisk } from './layouts/publish.ts';
import { publishTart } from './layouts/publishtart.ts';
import { moveMemory, removeMemory, writeMemory, type WrittenMemory } from './layouts/storedmemory.ts';
import type { Registries, Repository } from './oci/repository.ts';
import type { Keyring } from './oci/credentials.ts';
import { parseReference, pushMistake } from '../../api/v1alpha1/reference.ts';
import { type Reason, ReasonedError } from '../../api/v1alpha1/reasons.ts';
import { sync } from '../../base/files.ts';

const FOLDER_MODE = 0o700;
const FILE_MODE = 0o400;
/**
 * Annotation of manifests in the cluster's image storage. Its value is the reference, including the tag, under which this version of an
 * image was stored.
 */
const VERSION_ANNOTATION = 'dev.berth.storage.version';
/**
 * Reasons that blame an image, its digest or its pull secrets. They are wrong if the image storage refuses a disk, because the image has no
 * fault. After `DigestMismatch`, the operator would even never try again.
 */
const BLAME_IMAGE: ReadonlySet<Reason> = new Set(['DigestMismatch', 'ImageAccessDenied', 'ImageNotFound']);

/** Reasons that blame the fetch of an image. They are wrong if a registry does not take an image. */
const BLAME_FETCH: ReadonlySet<Reason> = new Set(['DigestMismatch', 'ImageFetchFailed', 'ImageNotFound']);

/** A place in the image storage. In a registry, the credentials of the task that writes or deletes there. */
export type StoragePlace =
  | Extract<StorageTarget, { type: 'folder' }>
  | (Extract<StorageTarget, { type: 'registry' }> & { keyring: Keyring });

export interface Published {
  /** Reference with the digest if the disk is in a registry. Undefined if the disk is a file. */
  reference: string | undefined;
  /** Digest of the manifest if the disk is in a registry, otherwise of the file. */
  digest: string;
  storageBytes: number;
  /** SHA-256 of the file that describes the stored memory, in hexadecimal digits. Absent unless the disk is a file with memory beside it. */
  memoryDigest?: string;
}

export interface PublishingOptions {
  signal: AbortSignal;
  /** Called with the progress in percent (0–100). */
  onProgress: (percent: number) => void;
}

export interface StoringOptions extends PublishingOptions {
  /** Text by which the agent finds a program of this work after a restart. */
  mark: string;
}

interface PushTarget {
  reference: string;
  keyring: Keyring;
}

interface PublisherOptions {
  registries: Registries;
  storageFolder: string | undefined;
}

export class Publisher {
  readonly #options: PublisherOptions;

  constructor(options: PublisherOptions) {
    this.#options = options;
  }

  /**
   * Stores a disk in the cluster's image storage. @throws ReasonedError when the storage does not take the disk. The reason never blames the
   * image for a fault of the storage.
   */
  async store(target: StoragePlace, disk: RawDisk, options: StoringOptions): Promise<Published> {
    if (target.type === 'folder') {
      requireOnlyDisk(disk);
      return await this.#storeFile(target.path, disk, options);
    }
    const { reference, keyring } = target;
    // Each version of an image's content has its own tag, and its manifest contains this tag. Therefore no two versions share a digest. If
    // they did, the removal of one version would remove both.
    const annotations = { [VERSION_ANNOTATION]: reference };
    try {
      return await this.#publish({ reference, keyring, annotations }, disk, options);
    } catch (error) {
      throw asStorageFault(error);
    }
  }

  /**
   * Removes a disk from the cluster's image storage. Returns undefined when the storage no longer has the disk. If the storage does not
   * allow the removal, returns the reason.
   */
  async remove(place: StoragePlace, signal: AbortSignal): Promise<string | undefined> {
    if (place.type === 'folder') {
      await this.#removeFile(place.path, signal);
      return undefined;
    }
    const reference = parseReference(place.reference);
    const { registry, repository: name, digest } = reference;
    if (digest === undefined) {
      throw new ReasonedError('ImageInvalid', `${place.reference} has no digest, so it cannot be removed`);
    }
    const { keyring } = place;
    const isRemoved = async (repository: Repository): Promise<boolean> =>
      await repository.removeManifest(digest, signal);
    const { answer } = await ask(this.#options.registries, { reference, keyring }, isRemoved);
    return answer
      ? undefined
      : `The registry of ${registry}/${name} does not allow deletions: allow them in its configuration`;
  }

  /**
   * Publishes a disk to a registry. Does not send blobs that the registry already has. @throws ReasonedError when the registry does not take
   * the disk: `ImageAccessDenied` if it refuses access, otherwise `PushFailed`.
   */
  async push(to: PushTarget, disk: RawDisk, options: PublishingOptions): Promise<Published> {
    try {
      return await this.#publish(to, disk, options, publishAsUsers);
    } catch (error) {
      throw asPushFault(error);
    }
  }

  async #publish(
    to: PushTarget & { annotations?: Readonly<Record<string, string>> },
    disk: RawDisk,
    { signal, onProgress }: PublishingOptions,
    publish: typeof publishDisk = publishDisk,
  ): Promise<Published> {
    const { registries } = this.#options;
    const { keyring, annotations } = to;
    const reference = parseReference(to.reference);
    const { tag } = reference;
    if (tag === undefined) {
      throw new ReasonedError('PushFailed', `${to.reference}: ${pushMistake(to.reference)}`);
    }
    const { answer } = await ask(registries, { reference, keyring }, async (repository) => {
      let done = 0;
      const bytes = disk.virtualSizeBytes + (disk.memory?.memoryBytes ?? 0);
      const onBytes = (count: number): void => {
        done += count;
        onProgress((done * 100) / bytes);
      };
      return await publish({ ...disk, repository, tag, annotations }, { signal, onBytes });
    });
    const { digest, storageBytes } = answer;
    const name = `${reference.registry}/${reference.repository}`;
    return { reference: `${name}@${digest}`, digest, storageBytes };
  }

  /**
   * Writes a disk as a qcow2 file, in which zeros use no space. The file appears under its name only when it is complete. When the promise
   * resolves, the file and its name survive a loss of power.
   */
  async #storeFile(path: string, disk: RawDisk, options: StoringOptions): Promise<Published> {
    const { signal } = options;
    const { file, folder } = this.#placeOf(path);
    const partial = partialOf(file);
    await requireAnswer(folder, signal);
    // The agent does not create this folder. In a Pod without the mount, the folder would be lost with the container, and all its disks.
    if ((await unlessMissing(stat(folder))) === undefined) {
      throw new ReasonedError(
        'TaskFailed',
        'This host does not have the folder of images.storageFolder: mount or create it',
        { cause: new Error(`${folder} does not exist`) },
      );
    }
    await chmod(folder, FOLDER_MODE);
    await mkdir(dirname(file), { recursive: true, mode: FOLDER_MODE });
    try {
      // If the agent was killed, a partial file is left. This file is removed, because it can be read-only, and an agent that is not root
      // cannot overwrite a read-only file.
      await rm(partial, { force: true });
      // A raw disk cannot name other files, so the conversion reads only this disk.
      const { memory, ofDisk } = await storeMemory(file, disk, options);
      await convertToQcow2(disk.path, partial, ofDisk);
      await chmod(partial, FILE_MODE);
      const digest = `sha256:${await fileDigest(partial, signal)}`;
      const storageBytes = (await allocatedBytes(partial)) + (memory?.storageBytes ?? 0);
      await sync(partial);
      if (memory !== undefined) {
        await moveMemory(partial, file);
      }
      await rename(partial, file);
      await sync(dirname(file));
      await sync(folder);
      const memoryDigest = memory?.digest;
      return { reference: undefined, digest, storageBytes, ...(memoryDigest && { memoryDigest }) };
    } finally {
      await rm(partial, { force: true });
      await removeMemory(partial);
    }
  }

  /**
   * Makes the folder of the image storage accessible only to the agent, because the folder contains users' disks. Does nothing if the
   * folder does not exist.
   *
   * @throws ReasonedError `ImageFetchFailed` when the file server of the folder does not answer in time.
   */
  async protectFolder(): Promise<void> {
    const { storageFolder } = this.#options;
    if (storageFolder !== undefined) {
      await requireAnswer(storageFolder, new AbortController().signal);
      await unlessMissing(chmod(storageFolder, FOLDER_MODE));
    }
  }

  /** Removes a file of the image storage. If the agent was killed while it wrote the file, a partial file is left, which is removed too. */
  async #removeFile(path: string, signal: AbortSignal): Promise<void> {
    const { file, folder } = this.#placeOf(path);
    await requireAnswer(folder, signal);
    await rm(partialOf(file), { force: true });
    await removeMemory(partialOf(file));
    await rm(file, { force: true });
    await removeMemory(file);
    // Without this sync, the file could be there again after a loss of power, and nothing would remove it any more.
    await unlessMissing(sync(dirname(file)));
  }

  #placeOf(path: string): { file: string; folder: string } {
    const folder = this.#options.storageFolder;
    if (folder === undefined) {
      throw new ReasonedError(
        'TaskFailed',
        'This host has no folder of the image storage: set images.storageFolder in its configuration',
      );
    }
    const file = join(folder, path);
    const way = relative(folder, file);
    if (way === '' || way.startsWith('..')) {
      throw new ReasonedError('ImageInvalid', `${path} leads out of the image storage`);
    }
    return { file, folder };
  }
}

/**
 * Publishes a disk for users of the registry: as `tart push` does if a machine is beside it, so that `tart` can pull it, and otherwise as Berth's
 * own artifact.
 */
async function publishAsUsers(
  ...[disk, options]: Parameters<typeof publishDisk>
): ReturnType<typeof publishDisk> {
  const { machine } = disk;
  return machine === undefined
    ? await publishDisk(disk, options)
    : await publishTart(disk, machine, options, Date.now());
}

function partialOf(file: string): string {
  return `${file}.partial`;
}

/** Refuses a disk with a machine beside it. @throws ReasonedError `TaskFailed` */
function requireOnlyDisk({ machine }: RawDisk): void {
  if (machine !== undefined) {
    throw new ReasonedError(
      'TaskFailed',
      'The image storage is a folder, which takes only disks. An image of an Apple host has more than a disk, so set a registry as image storage',
    );
  }
}

/**
 * Writes the memory of a disk beside the disk `file`. Returns the options for the work with the disk itself, whose progress is the rest. If
 * there is no memory, the options do not change.
 */
async function storeMemory(
  file: string,
  { memory, virtualSizeBytes }: RawDisk,
  options: StoringOptions,
): Promise<{ memory?: WrittenMemory; ofDisk: StoringOptions }> {
  if (memory === undefined) {
    return { ofDisk: options };
  }
  const { signal, onProgress } = options;
  const share = (memory.memoryBytes * 100) / (memory.memoryBytes + virtualSizeBytes);
  let done = 0;
  const onBytes = (count: number): void => {
    done += count;
    onProgress((done * share) / memory.memoryBytes);
  };
  const ofDisk = {
    ...options,
    onProgress: (percent: number) => onProgress(share + (percent * (100 - share)) / 100),
  };
  return { memory: await writeMemory(partialOf(file), memory, { signal, onBytes }), ofDisk };
}

/** Returns the error with a reason that blames the push if its own reason blames the fetch of an image. */
function asPushFault(error: unknown): unknown {
  return error instanceof ReasonedError && BLAME_FETCH.has(error.reason)
    ? new ReasonedError('PushFailed', `The registry did not take the image: ${error.message}`, {
        cause: error,
      })
    : error;
}

/** Returns the error with a reason that does not blame the image. `error` is a failure of the image storage to take a disk. */
function asStorageFault(error: unknown): unknown {
  if (!(error instanceof ReasonedError && BLAME_IMAGE.has(error.reason))) {
    return error;
  }
  const what =
    'The image storage refused the disk. Check the storage, and its credentials (Secret berth-image-storage)';
  return new ReasonedError('TaskFailed', `${what}: ${error.message}`, { cause: error });
}
