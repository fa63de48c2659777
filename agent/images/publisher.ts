/** Where disks go from this host: to registries as Berth's own artifact, or into the cluster's storage folder. */
import { execFile } from 'node:child_process';
import { chmod, mkdir, rename, rm } from 'node:fs/promises';
import { dirname, join, relative } from 'node:path';
import { promisify } from 'node:util';
import type { StorageTarget } from '../../api/v1alpha1/task.ts';
import { ask } from './access.ts';
import { allocatedBytes } from './allocated.ts';
import { publishDisk } from './formats/publish.ts';
import type { Registries } from './registry/client.ts';
import type { Keyring } from './registry/credentials.ts';
import { parseReference } from './registry/reference.ts';
import { fileDigest } from './sharedfile.ts';
import { ImageError } from './store.ts';

const execute = promisify(execFile);

const OUTPUT_LIMIT_BYTES = 1024 * 1024;

/** A disk as a raw file that may be sparse, and that nobody writes to. */
export interface RawDisk {
  path: string;
  virtualSizeBytes: number;
  architecture: 'amd64' | 'arm64';
  os?: string | undefined;
}

export interface Published {
  /** Pinned by digest; undefined for a file. */
  reference: string | undefined;
  /** Of the manifest, or of the file. */
  digest: string;
  storageBytes: number;
}

export interface PublishingOptions {
  signal: AbortSignal;
  /** 0–100. */
  onProgress: (percent: number) => void;
}

export interface PublisherOptions {
  registries: Registries;
  /** Opens the cluster's own image storage, and is used for that alone. */
  storageKeyring: () => Keyring;
  storageFolder: string | undefined;
}

export class Publisher {
  readonly #options: PublisherOptions;

  constructor(options: PublisherOptions) {
    this.#options = options;
  }

  /** Into the cluster's image storage. */
  async store(target: StorageTarget, disk: RawDisk, options: PublishingOptions): Promise<Published> {
    return target.type === 'registry'
      ? await this.push(
          { reference: target.reference, keyring: this.#options.storageKeyring() },
          disk,
          options,
        )
      : await this.#storeFile(target.path, disk, options);
  }

  /** To a registry; what it has already is not sent again. */
  async push(
    to: { reference: string; keyring: Keyring },
    disk: RawDisk,
    { signal, onProgress }: PublishingOptions,
  ): Promise<Published> {
    const { registries } = this.#options;
    const { keyring } = to;
    const reference = parseReference(to.reference);
    if (reference.tag === undefined) {
      throw new ImageError('ImageInvalid', `${to.reference} has no tag to publish under`);
    }
    const { tag } = reference;
    const { path: rawPath, virtualSizeBytes: virtualSize, architecture, os } = disk;
    const { answer } = await ask(registries, { reference, keyring }, async (repository) => {
      let done = 0;
      const onBytes = (count: number): void => {
        done += count;
        onProgress((done * 100) / virtualSize);
      };
      const options = { signal, onBytes };
      return await publishDisk({ repository, tag, rawPath, virtualSize, architecture, os }, options);
    });
    const { digest, storageBytes } = answer;
    const name = `${reference.registry}/${reference.repository}`;
    return { reference: `${name}@${digest}`, digest, storageBytes };
  }

  /** As qcow2 with holes where the disk has zeros; complete or not there at all. */
  async #storeFile(path: string, disk: RawDisk, { signal }: PublishingOptions): Promise<Published> {
    const folder = this.#options.storageFolder;
    if (folder === undefined) {
      throw new ImageError(
        'ImageSourceUnsupported',
        'this host has no folder of the image storage: set images.storageFolder in its configuration',
      );
    }
    const file = join(folder, path);
    if (relative(folder, file).startsWith('..')) {
      throw new ImageError('ImageInvalid', `${path} leads out of the image storage`);
    }
    const partial = `${file}.partial`;
    await mkdir(dirname(file), { recursive: true });
    try {
      await convert(disk.path, partial, signal);
      await chmod(partial, 0o444);
      const digest = `sha256:${await fileDigest(partial, signal)}`;
      const storageBytes = await allocatedBytes(partial);
      await rename(partial, file);
      return { reference: undefined, digest, storageBytes };
    } finally {
      await rm(partial, { force: true });
    }
  }
}

async function convert(raw: string, qcow2: string, signal: AbortSignal): Promise<void> {
  await execute('qemu-img', ['convert', '-f', 'raw', '-O', 'qcow2', raw, qcow2], {
    signal,
    killSignal: 'SIGKILL',
    maxBuffer: OUTPUT_LIMIT_BYTES,
    env: { PATH: process.env['PATH'], LC_ALL: 'C' },
  });
}
