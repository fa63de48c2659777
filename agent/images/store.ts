/** The images of one host. Where what lies is told in layout.ts. */
import { readFileSync } from 'node:fs';
import type { Logger } from 'pino';
import type { Registry } from 'prom-client';
import { normaliseImageName } from '../../api/v1alpha1/reference.ts';
import type { RunAs } from '../machines/users.ts';
import { Access } from './sources/access.ts';
import { Addresses } from './oci/addresses.ts';
import { type Asked, Catalog, type Stored } from './local/catalog.ts';
import { FileSource } from './sources/file.ts';
import { Holds } from './local/holders.ts';
import { HttpSource } from './sources/http.ts';
import { inspectImage } from './local/inspect.ts';
import { type ImageId, Layout } from './local/layout.ts';
import { Making } from './local/importing.ts';
import { imageMetrics } from './local/metrics.ts';
import { Registries, type RegistrySettings } from './oci/client.ts';
import { Keyring } from './oci/credentials.ts';
import { RegistrySource } from './sources/registry.ts';
import { Space, type SpaceLimits } from './local/space.ts';
import {
  type BaseImage,
  type BaseImageSource,
  type EnsureOptions,
  type Holder,
  ImageError,
  type ImageStore,
  type StoredImage,
} from './local/types.ts';

/** What nobody announces: disks of machines that grow, fetches that were given up, what lost its holder while the agent was away. */
const TIDY_MILLISECONDS = 60_000;

export interface HostImageStoreOptions extends SpaceLimits {
  dataDirectory: string;
  /** Guests' architecture where nobody says another. */
  architecture: 'amd64' | 'arm64';
  /** Folders below which files may be used as images. */
  sharedRoots: readonly string[];
  /** Where the cluster keeps images of its own, when it does so in a folder. */
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
  readonly #holds = new Holds();
  readonly #catalog: Catalog;
  /** The one pool of connections to registries of this host. */
  readonly registries: Registries;
  readonly #registrySource: RegistrySource;
  readonly #httpSource: HttpSource;
  readonly #fileSource: FileSource;
  readonly #space: Space;

  private constructor(options: HostImageStoreOptions, layout: Layout) {
    const { logger, registries, allowLoopbackHttp, clusterCIDRs = [], ownAddresses = [] } = options;
    const rules = { allowLoopback: allowLoopbackHttp, clusterCIDRs, ownAddresses, registries };
    this.#options = options;
    const catalog = new Catalog(layout, this.#holds, logger);
    const space = new Space({ ...options, layout, catalog, onEviction: () => metrics.evictions.inc() });
    const metrics = imageMetrics(options.metrics, {
      used: () => space.used(),
      images: () => catalog.all().length,
    });
    const making = new Making({ layout, catalog, space, metrics, reader: options.reader });
    this.#catalog = catalog;
    this.#space = space;
    this.registries = new Registries(rules);
    const access = new Access(this.registries, options.clock);
    this.#registrySource = new RegistrySource({ catalog, making, access, metrics });
    this.#httpSource = new HttpSource({ catalog, making, metrics, addresses: new Addresses(rules), logger });
    this.#fileSource = new FileSource(catalog, layout.root, options.reader);
  }

  /** Finds what is there; what an earlier agent did not finish is taken up when it is asked for again. */
  static async open(options: HostImageStoreOptions): Promise<HostImageStore> {
    const layout = new Layout(options.dataDirectory, options.reader?.gid);
    await layout.prepare();
    const store = new HostImageStore(options, layout);
    await store.#catalog.load();
    await store.#fileSource.load();
    setInterval(() => store.#tidy(), TIDY_MILLISECONDS).unref();
    return store;
  }

  async ensure(source: BaseImageSource, options: EnsureOptions): Promise<BaseImage> {
    const asked: Asked = {
      names: namesOf(source, options.name),
      architecture: options.architecture ?? this.#options.architecture,
      holder: options.holder,
    };
    const before = this.#holds.imagesOf(asked.holder);
    try {
      const stored = await this.#find(source, options, asked);
      const base = this.#catalog.baseOf(stored);
      const { format = 'Auto' } = options;
      // The same file may be asked for with another word on its format; what is qcow2 was found to be so by its content.
      const isSure = format === 'Auto' && base.format === 'qcow2';
      const inspected = isSure ? {} : await inspectImage(base.path, format, this.#options.reader);
      await this.#catalog.assign(stored, asked);
      return { ...base, ...inspected };
    } catch (error) {
      for (const id of this.#holds.imagesOf(asked.holder)) {
        if (!before.includes(id)) {
          this.#holds.drop(asked.holder, id);
        }
      }
      throw error;
    }
  }

  adopt(holder: Holder, path: string): void {
    const stored = this.#catalog.byPath(path);
    if (stored !== undefined) {
      this.#holds.adopt(holder, stored.id);
    }
  }

  cloned(holder: Holder): void {
    this.#holds.cloned(holder);
  }

  release(holder: Holder): void {
    const used = this.#holds.imagesOf(holder).flatMap((id) => this.#catalog.get(id) ?? []);
    this.#holds.release(holder);
    this.#beside(async () => {
      for (const stored of used) {
        await this.#catalog.released(stored);
      }
      await this.#catalog.sweep();
    });
  }

  async remove(holder: Holder, signal: AbortSignal): Promise<void> {
    for (const id of this.#holds.imagesOf(holder)) {
      while (this.#holds.isDeploying(id)) {
        await this.#holds.change(signal);
      }
      const stored = this.#catalog.get(id);
      if (stored === undefined) {
        this.#holds.drop(holder, id);
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
    const holding = (id: ImageId, work: () => Promise<Stored>): Promise<Stored> =>
      this.#held(asked.holder, id, work);
    const common = { signal, onProgress, format, architecture: asked.architecture, holding };
    switch (source.type) {
      case 'registry': {
        const request = { ...common, reference: source.reference, keyring, refresh, trusted: false };
        return await this.#registrySource.ensure(request);
      }
      case 'storedArtifact': {
        const own = { keyring: this.storageKeyring(), refresh, trusted: true };
        return await this.#registrySource.ensure({ ...common, reference: source.reference, ...own });
      }
      case 'http':
        return await this.#httpSource.ensure({ ...common, url: source.url, sha256: source.sha256 });
      case 'sharedFile': {
        const file = { path: source.path, roots: sharedRoots, sha256: undefined };
        return await this.#fileSource.ensure({ ...common, ...file });
      }
      case 'storedFile': {
        const roots = storageFolder === undefined ? [] : [storageFolder];
        return await this.#fileSource.ensure({ ...common, path: source.path, roots, sha256: source.sha256 });
      }
      default:
        throw new ImageError('ImageSourceUnsupported', source.description);
    }
  }

  /** The image is the holder's from before `work` on, and stays so if that succeeds or it was his before. */
  async #held<T>(holder: Holder, id: ImageId, work: () => Promise<T>): Promise<T> {
    const isNew = this.#holds.add(holder, id);
    try {
      return await work();
    } catch (error) {
      if (isNew) {
        this.#holds.drop(holder, id);
      }
      throw error;
    }
  }

  /** What opens the cluster's own storage; read at each use, since the file may have been written anew. */
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
