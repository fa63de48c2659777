/**
 * Images from registries. If an image is on this host and the requester has the right to use it, the agent uses this image. Otherwise the
 * agent fetches the image. It copies content from other images on this host where possible, to save downloads.
 */
import { existsSync } from 'node:fs';
import { dirname, join } from 'node:path';
import {
  normaliseImageName,
  parseReference,
  type Reference,
  repositoryName,
} from '../../../api/v1alpha1/reference.ts';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { isMissing } from '../../../base/errors.ts';
import { planPull } from '../layouts/index.ts';
import { CHUNK_TABLE, type Chunk, lookupIn, readChunkTable } from '../layouts/chunks.ts';
import type { ContentLookup, PullPlan } from '../layouts/pull.ts';
import type { Stored } from '../local/catalog.ts';
import type { Import, ImageRequest, SourceParts, Waiting } from '../local/importing.ts';
import { manifestId } from '../local/layout.ts';
import type { Keyring } from '../oci/credentials.ts';
import type { ResolvedManifest } from '../oci/manifests.ts';
import type { Repository } from '../oci/repository.ts';
import type { Access } from '../oci/access.ts';
import { digestsOf, noteOrigin, type Origin, originName, originOf, scopeFor } from './origins.ts';

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

export interface RegistryRequest extends ImageRequest {
  reference: string;
  keyring: Keyring | undefined;
  /** True to resolve the tag at the registry, even if this host has an image of that name. */
  refresh: boolean;
  /**
   * True when the operator has already checked the requester's right to use the image. The keyring then contains the host's own
   * credentials.
   */
  trusted: boolean;
  /** Called with the digest of the manifest or index that the registry has for the reference. */
  onResolved?: ((digest: string) => void) | undefined;
}

export type RegistrySourceParts = SourceParts & { access: Access };

interface Found {
  reference: Reference;
  repository: Repository;
  resolved: ResolvedManifest;
}

export class RegistrySource {
  readonly #parts: RegistrySourceParts;

  constructor(parts: RegistrySourceParts) {
    this.#parts = parts;
  }

  async ensure(request: RegistryRequest): Promise<Stored> {
    const reference = parseReference(request.reference);
    const known = request.refresh ? undefined : await this.#known(reference, request);
    return known ?? (await this.#resolve(reference, request));
  }

  /**
   * Returns the image on this host with the name `reference`, if the requester has the right to use this image. Returns undefined when the
   * registry must resolve the name.
   */
  async #known(reference: Reference, request: RegistryRequest): Promise<Stored | undefined> {
    const stored = this.#find(reference, request);
    const name = originName(reference, request.keyring);
    const origin = stored === undefined ? undefined : originOf(stored, name);
    if (stored === undefined || origin === undefined) {
      return undefined;
    }
    try {
      return await request.holding(stored.id, async () => {
        await this.#check(stored, origin, reference, request);
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

  #find(reference: Reference, request: RegistryRequest): Stored | undefined {
    const { architecture, reference: text, keyring } = request;
    const { catalog } = this.#parts;
    const scope = scopeFor(reference, keyring);
    const named = catalog.byName(`${scope}${normaliseImageName(text)}`, architecture);
    const { digest } = reference;
    if (named !== undefined || digest === undefined) {
      return named;
    }
    const name = originName(reference, keyring);
    return catalog.all().find((stored) => {
      const digests = originOf(stored, name)?.digests;
      return stored.metadata.architecture === architecture && digests?.includes(digest) === true;
    });
  }

  /** Checks that the requester has the right to use the image. @throws ReasonedError when the requester does not have this right. */
  async #check(
    stored: Stored,
    origin: Origin,
    reference: Reference,
    { keyring, trusted, signal }: RegistryRequest,
  ): Promise<void> {
    const { access, catalog } = this.#parts;
    if (trusted || access.isKnown(reference, keyring) || (await this.#isOpen(stored, origin, signal))) {
      return;
    }
    const { digest } = stored.metadata;
    const { credential } = await access.ask(reference, keyring, (one) => one.head(digest, signal));
    if (credential !== undefined || scopeFor(reference, keyring) !== '') {
      return;
    }
    origin.open = true;
    await catalog.save(stored);
  }

  /** Returns whether everybody has the right to use the image from this repository. */
  async #isOpen(stored: Stored, origin: Origin, signal: AbortSignal): Promise<boolean> {
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

  async #resolve(reference: Reference, request: RegistryRequest): Promise<Stored> {
    const { access, catalog } = this.#parts;
    const { architecture, keyring, trusted, signal } = request;
    const opened = await access.ask(reference, keyring, (one) => {
      return one.resolve(reference.digest ?? reference.tag ?? 'latest', architecture, signal);
    });
    const { answer, repository, credential } = opened;
    request.onResolved?.(answer.tagDigest);
    // Trusted images come from the image storage. Earlier releases labelled them with the architecture of the host that stored them.
    // Because this label can be wrong, it is not checked.
    const resolved = trusted ? { ...answer, architecture: undefined } : answer;
    const scope = scopeFor(reference, keyring);
    const name = originName(reference, keyring);
    // An answer over an insecure connection proves nothing, so it never makes an image public.
    const open = credential === undefined && scope === '';
    const id = manifestId(resolved.digest, scope);
    return await request.holding(id, async () => {
      const present = catalog.get(id);
      // A digest alone does not prove that this repository has the content. So the image is reused only if it came from this repository
      // before.
      const isHere = present !== undefined && originOf(present, name) !== undefined;
      const stored = isHere ? present : await this.#pull({ reference, repository, resolved }, request);
      // An image that was fetched for another architecture was checked only for that architecture. So it is checked again here.
      if (stored.metadata.architecture !== architecture) {
        await planPull(repository, resolved, signal);
      }
      if (noteOrigin(stored, { name, open, digests: digestsOf(resolved) })) {
        await catalog.save(stored);
      }
      return stored;
    });
  }

  async #pull(found: Found, request: RegistryRequest): Promise<Stored> {
    const source = `${found.resolved.digest} ${originName(found.reference, request.keyring)}`;
    return await this.#parts.importing.ensure(source, request, async (signal, onProgress) => {
      return await this.#plan(found, request, { signal, onProgress });
    });
  }

  async #plan(
    { reference, repository, resolved }: Found,
    { architecture, keyring }: RegistryRequest,
    { signal, onProgress }: Waiting,
  ): Promise<Import> {
    const plan = await planPull(repository, resolved, signal);
    const name = repositoryName(reference);
    const lookup = await this.#contentFor(originName(reference, keyring), signal);
    const options = { ...this.#counted(plan, onProgress), lookup };
    return {
      id: manifestId(resolved.digest, scopeFor(reference, keyring)),
      what: `${name}@${resolved.digest}`,
      roomBytes: plan.roomBytes,
      metadata: { digest: resolved.digest, architecture },
      run: (target, watched) => plan.run(target, { ...options, signal: watched.signal }),
    };
  }

  /**
   * Returns a function that finds content in images of this host. It searches only images that came from `repository`, and images that
   * everybody has the right to use. Otherwise a user who knows only a digest could get the content of another user's image.
   */
  async #contentFor(repository: string, signal: AbortSignal): Promise<ContentLookup> {
    const { catalog } = this.#parts;
    const folderOf = (stored: Stored): string => dirname(catalog.baseOf(stored).path);
    const latest = catalog
      .all()
      .filter(({ metadata }) => metadata.repositories.some(({ name, open }) => open || name === repository))
      .filter((stored) => existsSync(join(folderOf(stored), CHUNK_TABLE)))
      .toSorted((a, b) => b.usedAt - a.usedAt)
      .slice(0, BASES_LIMIT);
    const bases = await Promise.all(
      latest.map(async (stored) => {
        const isAllowed =
          originOf(stored, repository) !== undefined || (await this.#isOpenAnywhere(stored, signal));
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
  async #isOpenAnywhere(stored: Stored, signal: AbortSignal): Promise<boolean> {
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
    onProgress: Waiting['onProgress'],
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
