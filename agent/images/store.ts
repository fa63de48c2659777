/** The images of one host: whoever asks for one, from whatever source, gets a checked file, and holds it for as long as it is needed. */
import { readFileSync } from 'node:fs';
import type { Logger } from 'pino';
import type { Registry } from 'prom-client';
import type { MachineImageSource } from '../../api/v1alpha1/machine.ts';
import { normaliseImageName } from '../../api/v1alpha1/reference.ts';
import { ReasonedError } from '../../api/v1alpha1/reasons.ts';
import type { BaseImage } from '../disks/disk.ts';
import type { RunAs } from '../../base/exec.ts';
import { type Asked, Catalog, type Stored, type StoredImage } from './local/catalog.ts';
import { type Holder, Holders } from './local/holders.ts';
import { Importing, type Waiting } from './local/importing.ts';
import { type ImageFormat, inspectImage } from './local/inspect.ts';
import { type ImageId, Layout } from './local/layout.ts';
import { imageMetrics } from './local/metrics.ts';
import { Space, type SpaceLimits } from './local/space.ts';
import { Registries } from './oci/repository.ts';
import type { RegistrySettings } from './oci/transport.ts';
import { Keyring } from './oci/credentials.ts';
import { Access } from './sources/access.ts';
import { FileSource } from './sources/file.ts';
import { HttpSource } from './sources/http.ts';
import { RegistrySource } from './sources/registry.ts';

/** How often the store looks for changes that nobody announces: disks that grow, fetches that were given up, images without a holder. */
const TIDY_MILLISECONDS = 60_000;

/** A source that content lies behind; an empty disk has no base image. */
export type BaseImageSource = Exclude<MachineImageSource, { type: 'empty' }>;

export interface EnsureOptions extends Waiting {
  /** What the Image says its format is; Auto: by its content. */
  format?: ImageFormat;
  /** Which of an image for several architectures; the host's own when absent. */
  architecture?: 'amd64' | 'arm64' | undefined;
  /** `berth.dev/NAMESPACE/NAME` of the Image object: a name beside those that follow from the source. */
  name?: string | undefined;
  /** What opens registries; none: anonymously. */
  keyring?: Keyring | undefined;
  /** It holds the image from the call on, until `release`. */
  holder: Holder;
  /** Ask the registry whether the tag has moved, though an image of that name is here. */
  refresh?: boolean;
}

export interface ImageStore {
  /** The image of a source, fetched once however many ask, and checked before its first use. @throws ReasonedError */
  ensure(source: BaseImageSource, options: EnsureOptions): Promise<BaseImage>;
  /** A machine found at start was made from this file. */
  adopt(holder: Holder, path: string): void;
  /** The holder's clone is made: it still needs the file, but a removal need not wait any more. */
  cloned(holder: Holder): void;
  /** The holder needs nothing any more. What nobody holds stays until its room is needed. */
  release(holder: Holder): void;
  /**
   * Removes what only this cache entry wanted from the host. Waits while a machine is between pull and clone of it. An image
   * that machines run from loses its names now, and its file with the last of them.
   */
  remove(holder: Holder, signal: AbortSignal): Promise<void>;
  /** Removes what nobody holds, while the disk has less free than it must keep. */
  relieve(): Promise<void>;
  /** Does other work that needs `bytes` in `folder` on this host, within the limits of the store. @throws ReasonedError `DiskFull` */
  withRoom<T>(
    claim: { folder: string; bytes: number },
    signal: AbortSignal,
    work: (signal: AbortSignal) => Promise<T>,
  ): Promise<T>;
  /** Bytes of the images that somebody holds: that room is no machine's. */
  heldBytes(): number;
  /** What is in the store, for `Node.status.images`. */
  images(): StoredImage[];
  /** Called when `images()` changes. */
  onChange(listener: () => void): void;
}

export interface HostImageStoreOptions extends SpaceLimits {
  dataDirectory: string;
  /** Guests' architecture where nobody says another. */
  architecture: 'amd64' | 'arm64';
  /** Folders below which files may be used as images. */
  sharedRoots: readonly string[];
  /** The folder of the cluster's own image storage, if that is a folder. */
  storageFolder?: string | undefined;
  /** Who reads images that strangers made, where the agent is root. */
  reader?: RunAs | undefined;
  /** Fetch also from loopback and link-local addresses. */
  allowLoopbackHttp: boolean;
  /** Networks of the cluster's Pods, Services and Nodes: only servers named in `registries` may be there. */
  clusterCIDRs?: readonly string[];
  /** Of this host, beside those of its interfaces. */
  ownAddresses?: readonly string[];
  /** Servers that may be at any address. `credentialsFile` opens the cluster's own storage, and nothing else. */
  registries: readonly (RegistrySettings & { credentialsFile?: string | undefined })[];
  /** For tests: milliseconds, as of `performance.now()`. */
  clock?: () => number;
  metrics: Registry;
  logger: Logger;
}

export class HostImageStore implements ImageStore {
  readonly #options: HostImageStoreOptions;
  readonly #holders = new Holders();
  readonly #catalog: Catalog;
  readonly #space: Space;
  /** The one pool of connections to registries and web servers of this host. */
  readonly registries: Registries;
  readonly #sources: { registry: RegistrySource; http: HttpSource; file: FileSource };

  private constructor(options: HostImageStoreOptions, layout: Layout) {
    const { logger, reader, registries, allowLoopbackHttp: allowLoopback } = options;
    const { clusterCIDRs = [], ownAddresses = [] } = options;
    this.#options = options;
    const catalog = new Catalog(layout, this.#holders, logger);
    const space = new Space({ ...options, layout, catalog, onEviction: () => metrics.evictions.inc() });
    const metrics = imageMetrics(options.metrics, {
      used: () => space.used(),
      images: () => catalog.all().length,
    });
    this.#catalog = catalog;
    this.#space = space;
    this.registries = new Registries({ allowLoopback, clusterCIDRs, ownAddresses, registries });
    const access = new Access(this.registries, options.clock);
    const common = {
      catalog,
      metrics,
      importing: new Importing({ layout, catalog, space, metrics, reader }),
    };
    this.#sources = {
      registry: new RegistrySource({ ...common, access }),
      http: new HttpSource({ ...common, transport: this.registries.transport, logger }),
      file: new FileSource(catalog, layout.root, reader),
    };
  }

  /** Finds what is there. An import that an earlier agent did not finish is taken up when it is asked for again. */
  static async open(options: HostImageStoreOptions): Promise<HostImageStore> {
    const layout = new Layout(options.dataDirectory, options.reader?.gid);
    await layout.prepare();
    const store = new HostImageStore(options, layout);
    await store.#catalog.load();
    await store.#sources.file.load();
    setInterval(() => store.#tidy(), TIDY_MILLISECONDS).unref();
    return store;
  }

  async ensure(source: BaseImageSource, options: EnsureOptions): Promise<BaseImage> {
    const asked: Asked = {
      names: namesOf(source, options.name),
      architecture: options.architecture ?? this.#options.architecture,
      holder: options.holder,
    };
    const before = this.#holders.imagesOf(asked.holder);
    try {
      const stored = await this.#find(source, options, asked);
      const base = this.#catalog.baseOf(stored);
      const { format = 'Auto' } = options;
      // The same file may be asked for as another format; what is qcow2 was found to be so by its content.
      const isSure = format === 'Auto' && base.format === 'qcow2';
      const inspected = isSure ? {} : await inspectImage(base.path, format, this.#options.reader);
      await this.#catalog.assign(stored, asked);
      return { ...base, ...inspected };
    } catch (error) {
      for (const id of this.#holders.imagesOf(asked.holder)) {
        if (!before.includes(id)) {
          this.#holders.drop(asked.holder, id);
        }
      }
      throw error;
    }
  }

  adopt(holder: Holder, path: string): void {
    const stored = this.#catalog.byPath(path);
    if (stored !== undefined) {
      this.#holders.adopt(holder, stored.id);
    }
  }

  cloned(holder: Holder): void {
    this.#holders.cloned(holder);
  }

  release(holder: Holder): void {
    const used = this.#holders.imagesOf(holder).flatMap((id) => this.#catalog.get(id) ?? []);
    this.#holders.release(holder);
    this.#beside(async () => {
      for (const stored of used) {
        await this.#catalog.released(stored);
      }
      await this.#catalog.sweep();
    });
  }

  async remove(holder: Holder, signal: AbortSignal): Promise<void> {
    for (const id of this.#holders.imagesOf(holder)) {
      while (this.#holders.isDeploying(id)) {
        await this.#holders.change(signal);
      }
      const stored = this.#catalog.get(id);
      if (stored === undefined) {
        this.#holders.drop(holder, id);
      } else {
        await this.#catalog.unenter(holder, stored);
      }
    }
    await this.#catalog.sweep();
  }

  async relieve(): Promise<void> {
    await this.#space.relieve();
  }

  async withRoom<T>(
    claim: { folder: string; bytes: number },
    signal: AbortSignal,
    work: (signal: AbortSignal) => Promise<T>,
  ): Promise<T> {
    return await this.#space.within(claim, signal, async (watched) => await work(watched.signal));
  }

  heldBytes(): number {
    return this.#catalog.heldBytes();
  }

  images(): StoredImage[] {
    return this.#catalog.list();
  }

  onChange(listener: () => void): void {
    this.#catalog.onChange(listener);
  }

  async #find(source: BaseImageSource, options: EnsureOptions, asked: Asked): Promise<Stored> {
    const { sharedRoots, storageFolder } = this.#options;
    const { signal, onProgress, format = 'Auto', refresh = false, keyring } = options;
    const { registry, http, file } = this.#sources;
    const holding = async (id: ImageId, work: () => Promise<Stored>): Promise<Stored> =>
      await this.#holders.during(asked.holder, id, work);
    const { architecture } = asked;
    const common = { signal, onProgress, format, architecture, refresh, keyring, holding };
    switch (source.type) {
      case 'registry':
        return await registry.ensure({ ...common, reference: source.reference, trusted: false });
      case 'storedArtifact':
        return await registry.ensure({
          ...common,
          keyring: this.storageKeyring(),
          reference: source.reference,
          trusted: true,
        });
      case 'http':
        return await http.ensure({ ...common, url: source.url, sha256: source.sha256 });
      case 'sharedFile':
        return await file.ensure({ ...common, path: source.path, roots: sharedRoots, sha256: undefined });
      case 'storedFile': {
        const roots = storageFolder === undefined ? [] : [storageFolder];
        return await file.ensure({ ...common, path: source.path, roots, sha256: source.sha256 });
      }
      default:
        throw new ReasonedError('ImageSourceUnsupported', source.description);
    }
  }

  /** The credentials of the cluster's own storage; read at each use, since the file may have been written anew. */
  storageKeyring(): Keyring {
    const files = this.#options.registries.flatMap(({ credentialsFile }) => credentialsFile ?? []);
    return Keyring.parse(files.map((file) => readFileSync(file, 'utf8')));
  }

  #tidy(): void {
    this.#beside(async () => {
      await this.#catalog.sweep();
      await this.#space.tidy();
    });
  }

  #beside(work: () => Promise<void>): void {
    work().catch((error: unknown) => {
      this.#options.logger.error({ err: error }, 'work on the store of images failed');
    });
  }
}

function namesOf(source: BaseImageSource, object: string | undefined): string[] {
  const names = object === undefined ? [] : [object];
  switch (source.type) {
    case 'registry':
    case 'storedArtifact':
      return [normaliseImageName(source.reference), ...names];
    case 'http':
      return object === undefined ? [`sha256:${source.sha256.toLowerCase()}`] : names;
    default:
      return names;
  }
}
