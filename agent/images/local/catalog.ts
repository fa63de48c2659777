/**
 * The catalog of a store's images. It contains the names of the images and their holders: the machines, cache entries and tasks that need
 * them. It also determines the order in which images are removed when disk space is needed, and which images a Node lists.
 */
import type { Logger } from 'pino';
import { contentName } from '../../../api/v1alpha1/cachetargets.ts';
import { Serial } from '../../../base/concurrency.ts';
import type { Holder, Holders } from './holders.ts';
import type { ImageFormat } from './inspect.ts';
import type { ImageId, StoreLayout, ImageMetadata } from './layout.ts';
import type { Keyring } from '../oci/credentials.ts';
import type { BaseImage } from '../../disks/disk.ts';
import { IMAGES_LISTED } from '../../../api/v1alpha1/reference.ts';

const ENTRY = 'entry/';
/** An image keeps at most this number of names. More names for the same content come from a mistake or an attack. */
const NAMES_LIMIT = 64;
/** Largest number of namespaces for which one image counts. An image of more namespaces is common, and no single tenant brought it. */
const TENANTS_LIMIT = 64;

export interface CatalogEntry {
  readonly id: ImageId;
  readonly metadata: ImageMetadata;
  /** Time of the last use in milliseconds since the epoch. */
  usedAt: number;
}

/** A caller that waits for a fetch. */
export interface WaitingCaller {
  signal: AbortSignal;
  /**
   * Called with the progress. `percent` (0–100) is the part of the download that is done. `bytes` is the number of bytes that the host
   * already has, if the number is known.
   */
  onProgress: (percent: number, bytes?: number) => void;
}

/** A request for an image. This shape travels from the machine, cache entry or task through the store to the source of the image. */
export interface ImageRequest extends WaitingCaller {
  /** Format that the Image states for its source. With `Auto`, the content determines the format. */
  format: ImageFormat;
  /** Architecture that is chosen if an image is for several architectures. */
  architecture: 'amd64' | 'arm64';
  /** Name of the Image object (`berth.dev/NAMESPACE/NAME`), in addition to the names that follow from the source. */
  name?: string | undefined;
  /** Credentials of registries. If absent, requests are anonymous. */
  keyring?: Keyring | undefined;
  /** Namespace of the Pod that asks. The import counts in its share of the space for images. */
  tenant: string;
  /** Machine, cache entry or task that needs the image. It needs the image until the call of `release`. */
  holder: Holder;
  /** True to check at the registry whether the tag now names another image, even if this host has an image of that name. */
  refresh?: boolean;
  /** Called with the reason when the fetch must wait for other fetches of this host. */
  onWait: (reason: string) => void;
  /**
   * Called with the repository and the digest that the reference names now, if a registry was asked. It can be the digest of an index for
   * several architectures.
   */
  onResolved?: ((reference: string) => void) | undefined;
}

export class Catalog {
  readonly #layout: StoreLayout;
  readonly #holders: Holders;
  readonly #logger: Logger;
  readonly #images = new Map<ImageId, CatalogEntry>();
  readonly #listeners: (() => void)[] = [];
  #listed = '';
  /** Images whose metadata has changed since its last write, for example because the disk was full. */
  readonly #unsaved = new Set<CatalogEntry>();
  /** Images of `#unsaved` whose failure has been logged. */
  readonly #logged = new WeakSet<CatalogEntry>();
  /** Queue of writes. Only one write runs at a time. Otherwise an older write could end last and store an old state. */
  readonly #writes = new Serial();

  constructor(layout: StoreLayout, holders: Holders, logger: Logger) {
    this.#layout = layout;
    this.#holders = holders;
    this.#logger = logger;
  }

  async load(): Promise<void> {
    const found = await this.#layout.load((problem) => {
      this.#logger.error(problem, 'The metadata of an image cannot be read, and its files stay on the disk');
    });
    for (const stored of found) {
      this.#images.set(stored.id, stored);
      for (const entry of stored.metadata.entries) {
        this.#holders.add(`${ENTRY}${entry}`, stored.id);
      }
    }
    this.#listed = JSON.stringify(this.list());
  }

  get(id: ImageId): CatalogEntry | undefined {
    return this.#images.get(id);
  }

  all(): CatalogEntry[] {
    return [...this.#images.values()];
  }

  /**
   * Returns the image with this name. If the agent crashed while it moved a name from one image to another, both images can have the name.
   * In this case, the function returns the image that was used last.
   */
  byName(name: string, architecture: ImageRequest['architecture']): CatalogEntry | undefined {
    return this.all()
      .filter(({ metadata }) => metadata.names.includes(name) && metadata.architecture === architecture)
      .toSorted((a, b) => b.usedAt - a.usedAt)[0];
  }

  byPath(path: string): CatalogEntry | undefined {
    return this.all().find(({ id }) => this.#layout.disk(id) === path);
  }

  /** Returns the id of the image with this disk. An image with damaged metadata has an id too, although the catalog does not have it. */
  idOf(path: string): ImageId | undefined {
    return this.byPath(path)?.id ?? this.#layout.idOf(path);
  }

  baseOf(stored: CatalogEntry): BaseImage {
    const {
      digest,
      format,
      virtualSizeBytes,
      memory,
      isMemoryShared = false,
      untrustedMemory,
    } = stored.metadata;
    return {
      path: this.#layout.disk(stored.id),
      digest,
      format,
      virtualSizeBytes,
      ...(memory && {
        memory: { ...memory, ...this.#layout.memory(stored.id), ...(isMemoryShared && { isShared: true }) },
      }),
      ...(untrustedMemory && { untrustedMemory }),
    };
  }

  add(id: ImageId, metadata: ImageMetadata): CatalogEntry {
    const stored = { id, metadata, usedAt: Date.now() };
    this.#images.set(id, stored);
    this.#tell();
    return stored;
  }

  /** Sets the time of the image's last use to the present time. Call this function when a holder no longer needs the image. */
  async released(stored: CatalogEntry): Promise<void> {
    stored.usedAt = Date.now();
    await this.#layout.touch(stored.id, new Date(stored.usedAt));
  }

  /**
   * Moves `names` to this image. If the holder is a cache entry, also records that the image belongs to the entry. Resolves
   * when both changes are on the disk, so that they survive a restart of the agent. If the metadata of another image cannot be written, the
   * function does not fail, because this image must be usable. The change to the other image then stays in memory.
   */
  async assign(
    stored: CatalogEntry,
    names: readonly string[],
    { architecture, tenant, holder }: Pick<ImageRequest, 'architecture' | 'tenant' | 'holder'>,
  ): Promise<void> {
    stored.usedAt = Date.now();
    for (const name of names) {
      this.#move(name, architecture, stored);
    }
    const { metadata } = stored;
    if (!metadata.tenants.includes(tenant)) {
      metadata.tenants = [...metadata.tenants, tenant].slice(-TENANTS_LIMIT);
      metadata.isMemoryShared ||= metadata.memoryTenant !== undefined && metadata.memoryTenant !== tenant;
      metadata.memoryTenant ??= tenant;
      this.#unsaved.add(stored);
    }
    if (holder.startsWith(ENTRY)) {
      this.#enter(holder, stored);
    }
    await this.#layout.touch(stored.id, new Date(stored.usedAt));
    // The image that gains a name or a cache entry is saved first. So after a crash, two images can have the same name or entry, but no
    // name or entry is lost.
    if (this.#unsaved.has(stored)) {
      await this.save(stored);
    }
    await this.flush();
    this.#tell();
  }

  /** Saves the changes that earlier calls could not save. A failure is logged once for each image, and the next call tries again. */
  async flush(): Promise<void> {
    // The loop has its own list, because a failed save adds its image to the set again.
    const unsaved = [...this.#unsaved];
    for (const stored of unsaved) {
      try {
        await this.save(stored);
        this.#logged.delete(stored);
      } catch (error) {
        const isNew = !this.#logged.has(stored);
        this.#logged.add(stored);
        if (isNew) {
          this.#logger.error({ err: error, image: stored.id }, 'The metadata of an image cannot be saved');
        }
      }
    }
  }

  /**
   * Records that a cache entry of the namespace `tenant` no longer needs this image. If no other cache entry needs the image, and no other
   * namespace used it, the function also removes the image's names from the catalog. While a machine or a task holds the image, its bytes
   * stay in the share of the namespace. If the metadata cannot be written, the entry still holds the image. A repeated removal of the entry
   * then writes the metadata again.
   */
  async unenter(holder: Holder, stored: CatalogEntry, tenant: string): Promise<void> {
    const { metadata, id } = stored;
    metadata.entries = metadata.entries.filter((entry) => `${ENTRY}${entry}` !== holder);
    this.#holders.drop(holder, id);
    if (!this.#holders.isWanted(id)) {
      metadata.names = isOf(stored, tenant) ? [] : metadata.names;
    }
    if (!this.#holders.isHeld(id)) {
      metadata.tenants = metadata.tenants.filter((one) => one !== tenant);
    }
    try {
      await this.save(stored);
    } catch (error) {
      this.#holders.add(holder, id);
      throw error;
    }
    this.#tell();
  }

  async save(stored: CatalogEntry): Promise<void> {
    await this.#writes.run(async () => await this.#write(stored));
  }

  /** Saves the metadata of an image. If the image is removed before or during the write, no metadata stays on the disk. */
  async #write(stored: CatalogEntry): Promise<void> {
    const isHere = (): boolean => this.#images.get(stored.id) === stored;
    // A change during the write adds the image again.
    this.#unsaved.delete(stored);
    if (!isHere()) {
      return;
    }
    try {
      await this.#layout.save(stored.id, stored.metadata);
    } catch (error) {
      if (isHere()) {
        this.#unsaved.add(stored);
        throw error;
      }
    }
    if (!this.#images.has(stored.id)) {
      await this.#layout.discard(stored.id);
    }
  }

  /**
   * Removes an image from the catalog at once, and then removes its files. When the promise resolves, the image's disk space is free. Its
   * cache entries hold it no longer, also if another namespace brings the same image again.
   */
  async discard(stored: CatalogEntry): Promise<void> {
    this.#images.delete(stored.id);
    for (const entry of stored.metadata.entries) {
      this.#holders.drop(`${ENTRY}${entry}`, stored.id);
    }
    this.#tell();
    await this.#layout.discard(stored.id);
  }

  /** Removes images that have neither a name nor a holder, because nobody can use them. */
  async sweep(): Promise<void> {
    const free = this.all().filter(({ id }) => !this.#holders.isHeld(id));
    const nameless = free.filter(({ metadata }) => metadata.names.length === 0);
    await Promise.all(nameless.map((stored) => this.discard(stored)));
  }

  /** Returns the images that may be removed when disk space is needed, the least recently used image first. */
  evictable(): CatalogEntry[] {
    return this.all()
      .filter(({ id, metadata }) => metadata.sizeBytes > 0 && !this.#holders.isHeld(id))
      .toSorted((a, b) => a.usedAt - b.usedAt);
  }

  /** Returns the images that only cache entries need, the least recently used image first. */
  kept(): CatalogEntry[] {
    return this.all()
      .filter(({ id }) => this.#holders.isWanted(id) && !this.#holders.isUsed(id))
      .toSorted((a, b) => a.usedAt - b.usedAt);
  }

  heldBytes(): number {
    const held = this.all().filter(({ id }) => this.#holders.isHeld(id));
    return held.reduce((sum, { metadata }) => sum + metadata.sizeBytes, 0);
  }

  /** Returns the images that have names, in the order in which a Node lists them. */
  list(): StoredImage[] {
    return listedImages(this.all().map(({ metadata }) => metadata));
  }

  onChange(listener: () => void): void {
    this.#listeners.push(listener);
  }

  /** Moves a name to this image. The image that gains the name is marked first, because {@link flush} saves in this order. */
  #move(name: string, architecture: ImageRequest['architecture'], to: CatalogEntry): void {
    if (!to.metadata.names.includes(name)) {
      to.metadata.names = limited([...to.metadata.names, name]);
      this.#unsaved.add(to);
    }
    for (const other of this.all()) {
      const { metadata } = other;
      if (other !== to && metadata.architecture === architecture && metadata.names.includes(name)) {
        metadata.names = metadata.names.filter((one) => one !== name);
        this.#unsaved.add(other);
      }
    }
  }

  /**
   * Records that this image belongs to a cache entry. An entry has only one image, so its previous image no longer belongs to it.
   */
  #enter(holder: Holder, to: CatalogEntry): void {
    const entry = holder.slice(ENTRY.length);
    if (!to.metadata.entries.includes(entry)) {
      to.metadata.entries = [...to.metadata.entries, entry];
      this.#unsaved.add(to);
    }
    for (const other of this.all()) {
      if (other !== to && other.metadata.entries.includes(entry)) {
        other.metadata.entries = other.metadata.entries.filter((one) => one !== entry);
        this.#holders.drop(holder, other.id);
        this.#unsaved.add(other);
      }
    }
  }

  #tell(): void {
    const listed = JSON.stringify(this.list());
    if (listed === this.#listed) {
      return;
    }
    this.#listed = listed;
    for (const listener of this.#listeners) {
      listener();
    }
  }
}

/** Returns whether no other namespace than `tenant` has used the image. */
export function isOf({ metadata }: CatalogEntry, tenant: string): boolean {
  return metadata.tenants.every((one) => one === tenant);
}

/**
 * Returns the names without one name, if they are too many: the oldest name of the owner with the most names. So many tags of one owner
 * displace no name of another owner.
 */
function limited(names: readonly string[]): string[] {
  const groups = [...Map.groupBy(names, ownerOf).values()].toSorted((a, b) => b.length - a.length);
  const [dropped] = names.length > NAMES_LIMIT ? (groups[0] ?? []) : [];
  return names.filter((name) => name !== dropped);
}

/** Returns the part of a name that stands for its owner: a host with the first part of a path, or the namespace of an Image. */
function ownerOf(name: string): string {
  return untagged(name).split('/').slice(0, 2).join('/');
}

/** Returns a reference without its tag or digest. */
function untagged(name: string): string {
  return name.replace(/[:@][^/]*$/, '');
}

/** Mark at the beginning of an ISO object's name in the store. */
const ISO_MARK = 'iso ';
/**
 * Largest length in characters of all names in the list, and of the names of one image. Users choose the names of images. Without these
 * limits, the names could fill the Node, and the API server would refuse its status. The limit of one image is enough for the most names
 * that an image keeps, if they have usual lengths.
 */
const LIST_LENGTH = 800_000;
const IMAGE_LENGTH = 16_000;
/**
 * Largest length of the digests of one image. References cannot displace them, because the operator compares digests. Without the digest of
 * the index, an Image for several platforms would never count as cached.
 */
const DIGESTS_LENGTH = 2_500;

export interface StoredImage {
  /** Names as in `Node.status.images`: digests, and references of images that everybody may fetch. */
  names: string[];
  sizeBytes: number;
}

/**
 * Returns the name under which the store keeps the content of an ISO object. An Image and an ISO can have the same name. In the store a name
 * belongs to one content, so without the mark each of them would take the name from the other.
 */
export function nameOfISO(name: string): string {
  return `${ISO_MARK}${name}`;
}

/**
 * Returns the images that have names. Images of cache entries come first, because a Node lists only a limited number of images. Among them,
 * namespaces take turns, so that the entries of one displace none of another. The other images follow. Larger images come first, and images
 * of equal size are in the order of their names.
 */
function listedImages(images: readonly ImageMetadata[]): StoredImage[] {
  const length = namesLength(images.length);
  const listed = images
    .map((metadata) => ({ metadata, names: listedNames(metadata, length) }))
    .filter(({ names }) => names.length > 0)
    .toSorted(
      (a, b) =>
        b.metadata.sizeBytes - a.metadata.sizeBytes || (a.names[0] ?? '').localeCompare(b.names[0] ?? ''),
    );
  const ranks = ranksOf(listed.map(({ metadata }) => metadata).filter(({ entries }) => entries.length > 0));
  const rankOf = ({ metadata }: { metadata: ImageMetadata }) =>
    ranks.get(metadata) ?? Number.MAX_SAFE_INTEGER;
  return listed
    .toSorted((a, b) => rankOf(a) - rankOf(b))
    .map(({ names, metadata: { sizeBytes } }) => ({ names, sizeBytes }));
}

/**
 * Returns for each image how many images of the same namespace come before it. An image of several namespaces has the least number, and counts
 * for the namespace with this number alone.
 */
function ranksOf(images: readonly ImageMetadata[]): ReadonlyMap<ImageMetadata, number> {
  const counts = new Map<string, number>();
  const ranks = new Map<ImageMetadata, number>();
  for (const image of images) {
    const countOf = (tenant: string): number => counts.get(tenant) ?? 0;
    const [tenant = ''] = image.tenants.toSorted((a, b) => countOf(a) - countOf(b));
    ranks.set(image, countOf(tenant));
    counts.set(tenant, countOf(tenant) + 1);
  }
  return ranks;
}

/** Returns how many characters the names of one image may have together. `images` is the number of images on the host. */
export function namesLength(images: number): number {
  return Math.min(IMAGE_LENGTH, Math.floor(LIST_LENGTH / Math.min(images, IMAGES_LISTED)));
}

/**
 * Returns the names as in `Node.status.images`. Everybody who reads Nodes sees them, so they tell neither the names of Image objects nor the
 * references of images for which a registry asked for credentials. The digests come first. If the names are longer than `length` together,
 * the newest references are left out.
 */
export function listedNames({ names, digest, repositories }: ImageMetadata, length: number): string[] {
  if (names.length === 0) {
    return [];
  }
  const digests = [digest, ...repositories.flatMap((one) => one.digests)];
  const contents = within(DIGESTS_LENGTH, [...new Set(digests)].map(contentName));
  const open = new Map(repositories.filter((one) => one.open).map((one) => [one.name, one.digests]));
  const references = names.filter((name) => open.has(untagged(name)));
  const pinned = references.flatMap((name) => {
    const repository = untagged(name);
    return (open.get(repository) ?? []).map((one) => `${repository}@${one}`);
  });
  return [...contents, ...within(length - DIGESTS_LENGTH, [...new Set([...references, ...pinned])])];
}

/** Returns the first names, which have at most `length` characters together. */
function within(length: number, names: readonly string[]): string[] {
  let left = length;
  return names.filter((name) => {
    left -= name.length;
    return left >= 0;
  });
}
