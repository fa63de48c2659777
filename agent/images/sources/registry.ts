/**
 * Images from registries. If an image is on this host and the requester has the right to use it, the agent uses this image. Otherwise the
 * agent fetches the image. It copies content from other images on this host where possible, to save downloads.
 *
 * The origins of an image are the repositories that it came from. They, and the names under which the store finds the image, depend on
 * whether the connection to the registry is secure.
 */
import { existsSync } from 'node:fs';
import { dirname, join } from 'node:path';
import {
  formatReference,
  parseReference,
  type Reference,
  repositoryName,
} from '../../../api/v1alpha1/reference.ts';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { isMissing } from '../../../base/errors.ts';
import { CHUNK_TABLE, type Chunk, lookupIn, readChunkTable } from '../layouts/chunks.ts';
import { planPull } from '../layouts/index.ts';
import type { ContentLookup, PullPlan } from '../layouts/pull.ts';
import type { ImageRequest, CatalogEntry, WaitingCaller } from '../local/catalog.ts';
import type { Import, SourceImage, SourceParts } from '../local/importing.ts';
import { type ImageId, manifestId, type ImageMetadata } from '../local/layout.ts';
import type { Access } from '../oci/access.ts';
import { scopeOf } from '../oci/credentials.ts';
import type { ResolvedManifest } from '../oci/manifests.ts';
import type { Repository } from '../oci/repository.ts';

/**
 * A pull searches at most this number of images on this host for content to copy. It searches the most recently used images. The number is
 * small, because a search reads the chunk table of each image, and older images seldom share content.
 */
const BASES_LIMIT = 8;
/**
 * A pull waits at most this time, in milliseconds, until a registry confirms that everybody has the right to use an image. The time is
 * short, because a confirmation only saves a download.
 */
const OPEN_TIMEOUT_MILLISECONDS = 5_000;

/**
 * Largest number of digests that are remembered for an image in one repository. One is the digest of the image's manifest. The others are
 * the digests of indexes that list this manifest.
 */
const DIGESTS_LIMIT = 16;
/**
 * The store remembers at most this number of repositories for one image, and forgets the oldest first. If a request names a forgotten
 * repository, the agent fetches the image again.
 */
const ORIGINS_LIMIT = 64;

type Origin = ImageMetadata['repositories'][number];

export type RegistryParts = SourceParts & { access: Access };

/** One requested image of a registry. */
export class RegistryImage implements SourceImage {
  readonly names: readonly string[];
  readonly #parts: RegistryParts;
  readonly #reference: Reference;
  readonly #request: ImageRequest;
  readonly #trusted: boolean;
  /**
   * Whether the host also fetches the memory of the image. A hypervisor does not check the memory, so it must come from the cluster's own
   * image storage, whose digest the operator names. A disk with memory and the same disk without it are two images of the store.
   */
  readonly #takesMemory: boolean;
  /**
   * Prefix of the image's id and names, and of the names of its repositories. If the connection to the registry is secure, the prefix is
   * empty. If the connection is insecure, the prefix restricts the image to the requester's namespace.
   */
  readonly #scope: string;
  /**
   * Name of the repository in the list of an image's origins. If the connection to the registry is insecure, the name contains the
   * requester's namespace, because other namespaces must not trust this origin.
   */
  readonly #repository: string;

  /**
   * `trusted` is true when the operator has already checked the requester's right to use the image. The keyring of the request then contains
   * the host's own credentials.
   */
  constructor(parts: RegistryParts, reference: Reference, request: ImageRequest, trusted: boolean) {
    this.#parts = parts;
    this.#reference = reference;
    this.#request = request;
    this.#trusted = trusted;
    this.#takesMemory = trusted && reference.digest !== undefined;
    this.#scope = scopeOf(request.keyring?.routeTo(reference.registry));
    this.#repository = `${this.#scope}${repositoryName(reference)}`;
    const { name } = request;
    // Other namespaces can find an image by the name of its Image object. So an image that came over an insecure connection does not get
    // this name.
    const object = name === undefined || this.#scope !== '' ? [] : [name];
    // The Node lists the references of images that everybody may fetch. The reference of an Image object can be an address in the image
    // storage, which tells the name and namespace of the object.
    this.names = object.length > 0 ? object : [`${this.#scope}${formatReference(reference)}`];
  }

  async ensure(): Promise<CatalogEntry> {
    const known = this.#request.refresh === true ? undefined : await this.#known();
    return known ?? (await this.#resolve());
  }

  /**
   * Returns the image on this host with the name of the reference, if the requester has the right to use this image. Returns undefined when
   * the registry must resolve the name.
   */
  async #known(): Promise<CatalogEntry | undefined> {
    const stored = this.#find();
    const origin = stored === undefined ? undefined : this.#originOf(stored);
    if (stored === undefined || origin === undefined) {
      return undefined;
    }
    try {
      return await this.#holding(stored.id, async () => {
        await this.#check(stored, origin);
        return stored;
      });
    } catch (error) {
      // If the registry no longer finds the digest of the stored image, the tag might now name another image. So the registry must resolve
      // the tag.
      if (error instanceof ReasonedError && error.reason === 'ImageNotFound') {
        return undefined;
      }
      throw error;
    }
  }

  #find(): CatalogEntry | undefined {
    const { catalog } = this.#parts;
    const { architecture } = this.#request;
    const named = catalog.byName(`${this.#scope}${formatReference(this.#reference)}`, architecture);
    const { digest } = this.#reference;
    if (named !== undefined && this.#fits(named)) {
      return named;
    }
    return catalog.all().find((stored) => {
      const digests = digest === undefined ? [] : (this.#originOf(stored)?.digests ?? []);
      return (
        stored.metadata.architecture === architecture &&
        this.#fits(stored) &&
        digests.some((one) => one === digest)
      );
    });
  }

  /** Returns whether the image was fetched with its memory if this request takes memory, and without it if not. */
  #fits({ metadata: { memory, untrustedMemory } }: CatalogEntry): boolean {
    return this.#takesMemory ? untrustedMemory === undefined : memory === undefined;
  }

  /** Checks that the requester has the right to use the image. @throws ReasonedError when the requester does not have this right. */
  async #check(stored: CatalogEntry, origin: Origin): Promise<void> {
    const { access, catalog } = this.#parts;
    const { keyring, signal } = this.#request;
    if (this.#trusted || access.isKnown(this.#reference, keyring) || (await this.#isOpen(stored, origin))) {
      return;
    }
    const { digest } = stored.metadata;
    const { credential } = await access.ask(this.#reference, keyring, (one) => one.head(digest, signal));
    if (credential !== undefined || this.#scope !== '') {
      return;
    }
    origin.open = true;
    await catalog.save(stored);
  }

  /** Returns whether everybody has the right to use the image from this repository. */
  async #isOpen(stored: CatalogEntry, origin: Origin, signal = this.#request.signal): Promise<boolean> {
    if (!origin.open) {
      return false;
    }
    const { access, catalog } = this.#parts;
    const { digest } = stored.metadata;
    const reference = parseReference(`${origin.name}@${digest}`);
    if (await access.isStillOpen(reference, digest, signal)) {
      return true;
    }
    origin.open = false;
    await catalog.save(stored);
    return false;
  }

  async #resolve(): Promise<CatalogEntry> {
    const { access, catalog } = this.#parts;
    const { architecture, keyring, signal, onResolved } = this.#request;
    const reference = this.#reference;
    const { answer, repository, credential } = await access.ask(reference, keyring, (one) => {
      return one.resolve(reference.digest ?? reference.tag ?? 'latest', architecture, signal);
    });
    onResolved?.(`${repositoryName(reference)}@${answer.tagDigest}`);
    // Trusted images come from the image storage. Earlier releases labelled them with the architecture of the host that stored them.
    // Because this label can be wrong, it is not checked.
    const resolved = this.#trusted ? { ...answer, architecture: undefined } : answer;
    // An answer over an insecure connection proves nothing, so it never makes an image public.
    const open = credential === undefined && this.#scope === '';
    const id = this.#idOf(resolved.digest);
    return await this.#holding(id, async () => {
      const present = catalog.get(id);
      // A digest alone does not prove that this repository has the content. So the image is reused only if it came from this repository
      // before.
      const isHere = present !== undefined && this.#originOf(present) !== undefined;
      const stored = isHere ? present : await this.#pull(repository, resolved);
      // An image that was fetched for another architecture was checked only for that architecture. So it is checked again here.
      if (stored.metadata.architecture !== architecture) {
        await planPull(repository, resolved, signal);
      }
      const digests = [...new Set([resolved.digest, resolved.tagDigest])];
      if (this.#noteOrigin(stored, { name: this.#repository, open, digests })) {
        await catalog.save(stored);
      }
      return stored;
    });
  }

  #idOf(digest: string): ImageId {
    return manifestId(digest, this.#takesMemory ? `memory ${this.#scope}` : this.#scope);
  }

  async #holding(id: ImageId, work: () => Promise<CatalogEntry>): Promise<CatalogEntry> {
    return await this.#parts.holders.during(this.#request.holder, id, work);
  }

  #originOf({ metadata }: CatalogEntry): Origin | undefined {
    return metadata.repositories.find(({ name }) => name === this.#repository);
  }

  /** Adds the repository and its digests to the metadata of an image. Returns true if the metadata changed and must be saved. */
  #noteOrigin(stored: CatalogEntry, seen: Origin): boolean {
    const known = this.#originOf(stored);
    if (known === undefined) {
      stored.metadata.repositories = [...stored.metadata.repositories, seen].slice(-ORIGINS_LIMIT);
      return true;
    }
    const isNew = seen.digests.some((digest) => !known.digests.includes(digest));
    const changed = isNew || (seen.open && !known.open);
    known.digests = [...new Set([...known.digests, ...seen.digests])].slice(-DIGESTS_LIMIT);
    known.open ||= seen.open;
    return changed;
  }

  async #pull(repository: Repository, resolved: ResolvedManifest): Promise<CatalogEntry> {
    const source = `${resolved.digest} ${this.#repository}${this.#takesMemory ? ' memory' : ''}`;
    return await this.#parts.importing.ensure(source, this.#request, async (signal, onProgress) => {
      return await this.#plan(repository, resolved, { signal, onProgress });
    });
  }

  async #plan(
    repository: Repository,
    resolved: ResolvedManifest,
    { signal, onProgress }: WaitingCaller,
  ): Promise<Import> {
    const plan = await planPull(repository, resolved, signal, { withMemory: this.#takesMemory });
    const lookup = await this.#content(signal);
    const options = { ...this.#counted(plan, onProgress), lookup };
    return {
      id: this.#idOf(resolved.digest),
      what: `${repositoryName(this.#reference)}@${resolved.digest}`,
      roomBytes: plan.roomBytes,
      metadata: {
        digest: resolved.digest,
        architecture: this.#request.architecture,
        ...(plan.memory && (this.#takesMemory ? { memory: plan.memory } : { untrustedMemory: true })),
      },
      run: (target, watched) => plan.run(target, { ...options, signal: watched.signal }),
    };
  }

  /**
   * Returns a function that finds content in images of this host. It searches only images that came from the same repository, and images
   * that everybody has the right to use. Otherwise a user who knows only a digest could get the content of another user's image.
   */
  async #content(signal: AbortSignal): Promise<ContentLookup> {
    const { catalog } = this.#parts;
    const folderOf = (stored: CatalogEntry): string => dirname(catalog.baseOf(stored).path);
    const latest = catalog
      .all()
      .filter(({ metadata }) =>
        metadata.repositories.some(({ name, open }) => open || name === this.#repository),
      )
      .filter((stored) => existsSync(join(folderOf(stored), CHUNK_TABLE)))
      .toSorted((a, b) => b.usedAt - a.usedAt)
      .slice(0, BASES_LIMIT);
    const bases = await Promise.all(
      latest.map(async (stored) => {
        const isAllowed =
          this.#originOf(stored) !== undefined || (await this.#isOpenAnywhere(stored, signal));
        const { path } = catalog.baseOf(stored);
        return isAllowed ? [{ disk: path, chunks: await this.#chunksIn(folderOf(stored)) }] : [];
      }),
    );
    const find = lookupIn(bases.flat());
    return (content) => {
      const place = find(content);
      // If the image was removed after its chunk table was read, its content cannot be copied.
      return place !== undefined && catalog.byPath(place.path) !== undefined ? place : undefined;
    };
  }

  /** Returns the chunks of a disk. If their table cannot be read, returns an empty list. More bytes are then downloaded. */
  async #chunksIn(folder: string): Promise<Chunk[]> {
    try {
      return await readChunkTable(folder);
    } catch (error) {
      if (!isMissing(error)) {
        this.#parts.logger.warn({ err: error, folder }, 'The chunk table of an image cannot be read');
      }
      return [];
    }
  }

  /**
   * Returns whether everybody has the right to use the image. Asks all origins of the image at the same time. The result is true if one of
   * them confirms the right in time.
   */
  async #isOpenAnywhere(stored: CatalogEntry, signal: AbortSignal): Promise<boolean> {
    const { promise, resolve, reject } = Promise.withResolvers<boolean>();
    const timer = setTimeout(resolve, OPEN_TIMEOUT_MILLISECONDS, false);
    const asked = stored.metadata.repositories.map(async (origin) => {
      if (await this.#isOpen(stored, origin, signal)) {
        resolve(true);
      }
    });
    // An answer or failure after the time limit has no effect on this result, but a late answer is stored for later pulls.
    Promise.all(asked).then(() => resolve(false), reject);
    try {
      return await promise;
    } finally {
      clearTimeout(timer);
    }
  }

  #counted(
    { downloadBytes }: PullPlan,
    onProgress: WaitingCaller['onProgress'],
  ): { onBytes: (count: number) => void; onSpared: (count: number) => void } {
    const { metrics } = this.#parts;
    let done = 0;
    const onSpared = (count: number): void => {
      done += count;
      onProgress(downloadBytes === 0 ? 100 : Math.min(100, (done * 100) / downloadBytes), done);
    };
    return {
      onSpared,
      onBytes: (count) => {
        metrics.pulledBytes.inc(count);
        onSpared(count);
      },
    };
  }
}
