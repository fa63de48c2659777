/**
 * The origins of an image on this host (the repositories that it came from), and the names under which the store finds it. Both depend on
 * whether the connection to the registry is secure.
 */
import type { MachineImageSource } from '../../../api/v1alpha1/machine.ts';
import {
  normaliseImageName,
  parseReference,
  type Reference,
  repositoryName,
} from '../../../api/v1alpha1/reference.ts';
import type { Stored } from '../local/catalog.ts';
import type { Metadata } from '../local/layout.ts';
import type { Keyring } from '../oci/credentials.ts';
import { scopeOf } from '../oci/route.ts';
import type { ResolvedManifest } from '../oci/manifests.ts';

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

export type Origin = Metadata['repositories'][number];

export function originOf({ metadata }: Stored, name: string): Origin | undefined {
  return metadata.repositories.find((one) => one.name === name);
}

export function digestsOf({ digest, tagDigest }: ResolvedManifest): string[] {
  return digest === tagDigest ? [digest] : [digest, tagDigest];
}

/** Adds a repository and its digests to the metadata of an image. Returns true if the metadata changed and must be saved. */
export function noteOrigin(stored: Stored, seen: Origin): boolean {
  const known = originOf(stored, seen.name);
  if (known === undefined) {
    stored.metadata.repositories = [...stored.metadata.repositories, seen].slice(-ORIGINS_LIMIT);
    return true;
  }
  const digests = [...new Set([...known.digests, ...seen.digests])].slice(-DIGESTS_LIMIT);
  const isNew = seen.digests.some((digest) => !known.digests.includes(digest));
  const changed = isNew || (seen.open && !known.open);
  known.digests = digests;
  known.open ||= seen.open;
  return changed;
}

/**
 * Returns the prefix for an image's id, for its names, and for the names of its repositories. If the connection to the registry is secure,
 * the prefix is empty. If the connection is insecure, the prefix restricts the image to the requester's namespace.
 */
export function scopeFor({ registry }: Reference, keyring: Keyring | undefined): string {
  return scopeOf(keyring?.routeTo(registry));
}

/**
 * Returns the name that a repository has in the list of an image's origins. If the connection to the registry is insecure, the name
 * contains the requester's namespace, because other namespaces must not trust this origin.
 */
export function originName(reference: Reference, keyring: Keyring | undefined): string {
  return `${scopeFor(reference, keyring)}${repositoryName(reference)}`;
}

/**
 * Returns the names under which later requests can find the image of `source` in the store. `object` is the name of the Image or ISO
 * object.
 *
 * @throws ReasonedError `ImageSourceUnsupported` when a reference is wrong.
 */
export function namesOf(
  source: MachineImageSource,
  object: string | undefined,
  keyring: Keyring | undefined,
): string[] {
  const names = object === undefined ? [] : [object];
  switch (source.type) {
    case 'registry': {
      const scope = scopeFor(parseReference(source.reference), keyring);
      const name = normaliseImageName(source.reference);
      // Other namespaces can find an image by the name of its Image object. So an image that came over an insecure connection does not get
      // this name.
      return scope === '' ? [name, ...names] : [`${scope}${name}`];
    }
    case 'storedArtifact':
      return [normaliseImageName(source.reference), ...names];
    case 'http':
      return object === undefined ? [`sha256:${source.sha256.toLowerCase()}`] : names;
    default:
      return names;
  }
}
