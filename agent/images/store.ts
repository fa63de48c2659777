/** The image store of one host. It gives a caller a checked file of an image, and keeps this file as long as the caller needs it. */
import type { Logger } from 'pino';
import type { Registry } from 'prom-client';
import type { MachineImageSource, SourceOf, SourceType } from '../../api/v1alpha1/source.ts';
import { parseReference } from '../../api/v1alpha1/reference.ts';
import { ReasonedError } from '../../api/v1alpha1/reasons.ts';
import type { BaseImage } from '../disks/disk.ts';
import type { RunAs } from '../../base/exec.ts';
import { Catalog, type ImageRequest, isOf, type StoredImage } from './local/catalog.ts';
import { type Holder, Holders } from './local/holders.ts';
import { Importing, type SourceImage } from './local/importing.ts';
import { imageMetrics } from './local/metrics.ts';
import { formatOf, inspectImage } from './local/inspect.ts';
import { type ImageId, StoreLayout } from './local/layout.ts';
import type { Need, SpaceLimits } from './local/spacemeter.ts';
import { Space } from './local/space.ts';
import { Registries } from './oci/repository.ts';
import { type RegistriesOptions, type RegistrySettings, RegistryTransport } from './oci/transport.ts';
import { readStorageKeyring } from './oci/credentials.ts';
import { Access } from './oci/access.ts';
import { FileImage } from './sources/file.ts';
import { HttpImage } from './sources/http.ts';
import { RegistryImage } from './sources/registry.ts';

/** Interval in milliseconds between checks for changes that cause no event: disks that grow, abandoned fetches and unneeded images. */
const TIDY_MILLISECONDS = 60_000;

/** A request as callers make it. The host chooses the architecture if it is absent, and the content the format. */
export type AskedImage = Omit<ImageRequest, 'format' | 'architecture'> &
  Partial<Pick<ImageRequest, 'format'>> & { architecture?: ImageRequest['architecture'] | undefined };

/** Returns the requested image of a source. @throws ReasonedError when the source cannot be used. */
type Open<S> = (source: S, request: ImageRequest) => SourceImage;

/** The image store as the work for Pods and tasks uses it. */
export type ImageStore = Omit<HostImageStore, 'registries'>;

export interface HostImageStoreOptions extends SpaceLimits, RegistriesOptions {
  dataDirectory: string;
  /** Architecture of guests when a request states none. */
  architecture: 'amd64' | 'arm64';
  /** Folders below which all files can be used as images. */
  sharedRoots: readonly string[];
  /** Folder of the cluster's own image storage. Undefined if the storage is not a folder. */
  storageFolder?: string | undefined;
  /** User under which programs read untrusted images. Undefined if the agent does not run as root. */
  reader?: RunAs | undefined;
  /** Servers to which the agent may connect at any IP address. A `credentialsFile` is for pulls from the cluster's own storage. */
  registries: readonly (RegistrySettings & { credentialsFile?: string | undefined })[];
  /** Clock for tests, in milliseconds like `performance.now()`. */
  clock?: () => number;
  metrics: Registry;
  logger: Logger;
}

export class HostImageStore {
  readonly #options: HostImageStoreOptions;
  readonly #holders = new Holders();
  readonly #catalog: Catalog;
  readonly #space: Space;
  /** Client of all registries, with its own pool of connections. */
  readonly registries: Registries;
  /** A type of source that is forgotten here does not compile. */
  readonly #sources: { readonly [T in SourceType]: Open<SourceOf<T>> };

  private constructor(options: HostImageStoreOptions, layout: StoreLayout) {
    const { logger, reader } = options;
    this.#options = options;
    const catalog = new Catalog(layout, this.#holders, logger);
    const space = new Space({ ...options, layout, catalog, onEviction: () => metrics.evictions.inc() });
    const metrics = imageMetrics(options.metrics, {
      used: () => space.used(),
      images: () => catalog.all().length,
    });
    this.#catalog = catalog;
    this.#space = space;
    this.registries = new Registries(options);
    const access = new Access(this.registries, options.clock);
    const importing = new Importing({ layout, catalog, space, metrics, reader });
    const common = { catalog, holders: this.#holders, metrics, importing, logger };
    const ofRegistry = { ...common, access };
    const ofWeb = { ...common, transport: new RegistryTransport(options), clock: options.clock };
    const { sharedRoots, storageFolder, registries } = options;
    const storageRoots = storageFolder === undefined ? [] : [storageFolder];
    this.#sources = {
      registry: ({ reference }, request) =>
        new RegistryImage(ofRegistry, parseReference(reference), request, false),
      storedArtifact: ({ reference }, request) => {
        // Each request reads the files of the credentials, because their content can change.
        const own = { keyring: readStorageKeyring(registries, logger), onResolved: undefined };
        return new RegistryImage(ofRegistry, parseReference(reference), { ...request, ...own }, true);
      },
      http: (source, request) => new HttpImage(ofWeb, source, request),
      sharedFile: ({ path }, request) =>
        new FileImage(common, { path, roots: sharedRoots, sha256: undefined }, request),
      storedFile: ({ path, sha256, memoryDigest }, request) =>
        new FileImage(common, { path, roots: storageRoots, sha256, memoryDigest }, request),
      ipsw: (source, request) => new HttpImage(ofWeb, source, request),
      empty: () => unsupported('The source of the image is an empty disk, so there is nothing to fetch'),
    };
  }

  /**
   * Opens the store with the images that are on the disk. If the agent ended during an import, the next request for the same image resumes
   * the import.
   */
  static async open(options: HostImageStoreOptions): Promise<HostImageStore> {
    const layout = new StoreLayout(options.dataDirectory, options.reader?.gid);
    await layout.prepare();
    const store = new HostImageStore(options, layout);
    await store.#catalog.load();
    return store;
  }

  /**
   * Returns the image of a source. The store fetches the image only once for all callers, and checks it before use.
   *
   * @throws ReasonedError when the image cannot be used.
   */
  async ensure(source: MachineImageSource, asked: AskedImage): Promise<BaseImage> {
    const format = formatOf(source, asked.format);
    const request = { ...asked, format, architecture: asked.architecture ?? this.#options.architecture };
    const image = (this.#sources[source.type] as Open<MachineImageSource>)(source, request);
    const before = this.#holders.imagesOf(asked.holder);
    try {
      const stored = await image.ensure();
      const base = this.#catalog.baseOf(stored);
      // A request can state another format than earlier ones, so the file is inspected again, except for `Auto` and a known qcow2 file.
      const isSure = format === 'Auto' && base.format === 'qcow2';
      const inspected = isSure ? {} : await inspectImage(base.path, format, this.#options.reader);
      await this.#catalog.assign(stored, image.names, request);
      // The request does not wait for the removal of images that have lost their names, because the removal can take long or fail.
      this.#beside(() => this.#catalog.sweep());
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

  /** Records that a machine was cloned from the file `path`. The agent calls this function at its start for existing machines. */
  adopt(holder: Holder, path: string): void {
    const id = this.#catalog.idOf(path);
    if (id !== undefined) {
      this.#holders.adopt(holder, id);
    }
  }

  /** Records that a machine cloned the image, or a task fetched it. {@link remove} then no longer waits for this machine or task. */
  cloned(holder: Holder): void {
    this.#holders.cloned(holder);
  }

  /** Records that the holder no longer needs any image. An image that nobody needs stays until its disk space is needed. */
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

  /**
   * Removes the images that only this cache entry needed. If a machine has fetched such an image but not yet cloned it, the function waits
   * for the clone. If machines run from an image, the function at first removes only the image's names. The image's file is removed when the
   * last of these machines releases it. An image that other namespaces used too stays like any image without an entry, until its disk space
   * is needed. Then the function waits for no machine, because those of another namespace could delay the removal without an end.
   * @param tenant namespace of the entry
   */
  async remove(holder: Holder, tenant: string, signal: AbortSignal): Promise<void> {
    for (const id of this.#holders.imagesOf(holder)) {
      while (this.#isBeingDeployed(id, tenant)) {
        await this.#holders.change(signal);
      }
      const stored = this.#catalog.get(id);
      await (stored && this.#catalog.unenter(holder, stored, tenant));
      this.#holders.drop(holder, id);
    }
    await this.#catalog.sweep();
    await this.#catalog.flush();
  }

  /** Returns whether only `tenant` has used the image, and one of its machines has not been cloned from it yet. */
  #isBeingDeployed(id: ImageId, tenant: string): boolean {
    const stored = this.#catalog.get(id);
    return stored !== undefined && isOf(stored, tenant) && this.#holders.isDeploying(id);
  }

  /** Removes fetches that are not running and images that nobody needs, until at least `minimumFree` bytes of the disk are free. */
  async relieve(): Promise<void> {
    await this.#space.relieve();
  }

  /** Runs `work`, and reserves disk space in `folder` while it writes, of announced `bytes` bytes. @throws ReasonedError `DiskFull` if there is too little space. */
  async withRoom<T>(claim: Need, signal: AbortSignal, work: (signal: AbortSignal) => Promise<T>): Promise<T> {
    return await this.#space.within(claim, signal, async (watched) => await work(watched.signal));
  }

  /** Returns how many bytes of the disk are free beside `minimumFree`, at least 0. */
  async freeBytes(): Promise<number> {
    return await this.#space.free();
  }

  /** Returns the total size in bytes of the images that somebody needs. This disk space is not available to machines. */
  heldBytes(): number {
    return this.#catalog.heldBytes();
  }

  /** Returns the images in the store, for `Node.status.images`. */
  images(): StoredImage[] {
    return this.#catalog.list();
  }

  /** Calls `listener` when `images()` changes. */
  onChange(listener: () => void): void {
    this.#catalog.onChange(listener);
  }

  /**
   * Removes unneeded images and abandoned fetches once a minute, until the signal aborts. Call this function only after {@link adopt},
   * because otherwise the store does not know which images the machines of this host need.
   */
  startTidying(signal: AbortSignal): void {
    const timer = setInterval(() => this.#beside(() => this.#space.tidy()), TIDY_MILLISECONDS).unref();
    signal.addEventListener('abort', () => clearInterval(timer), { once: true });
  }

  #beside(work: () => Promise<void>): void {
    work().catch((error: unknown) => {
      this.#options.logger.error(
        { err: error },
        'The agent could not clean up the image store, and tries again later',
      );
    });
  }
}

function unsupported(message: string): never {
  throw new ReasonedError('ImageSourceUnsupported', message);
}
