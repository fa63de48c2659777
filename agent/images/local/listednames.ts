/** Determines the names under which a Node lists an image of the store. */
import type { Metadata } from './layout.ts';

/** Prefix of the names of Image and ISO objects. All other names are references, which begin with the host of a registry. */
const OBJECT = 'berth.dev/';
/**
 * Largest length of all references and names of objects of one image together, in characters. A Node lists 200 images, and users choose
 * their names. Without this limit, the names could fill the Node, and the API server would refuse its status. The limit has room for dozens
 * of names of usual length.
 */
const NAMES_LENGTH = 4_000;
/**
 * Largest length of all names with a digest in a repository. These names have a limit of their own, so that other names cannot displace
 * them. The operator compares digests. Without the digest of the index, an Image for several platforms would never count as cached. The
 * limit has room for all digests of one repository.
 */
const DIGESTS_LENGTH = 2_500;

/**
 * Returns the names as in `Node.status.images`. If the references and the names of objects are too long together, the newest names of
 * objects are left out first, then the newest references. If the names with a digest are too long, those of the newest repositories are
 * left out.
 */
export function listedNames({ names, digest, repositories }: Metadata): string[] {
  if (names.length === 0) {
    return [];
  }
  const references = names.filter((name) => !name.startsWith(OBJECT));
  const objects = names.filter((name) => name.startsWith(OBJECT)).map((name) => `${name}@${digest}`);
  const pinned = repositories.flatMap(({ name, digests }) => digests.map((one) => `${name}@${one}`));
  return [
    ...new Set([...within(NAMES_LENGTH, [...references, ...objects]), ...within(DIGESTS_LENGTH, pinned)]),
  ];
}

/** Returns the first names, which have at most `length` characters together. */
function within(length: number, names: readonly string[]): string[] {
  let left = length;
  return names.filter((name) => {
    left -= name.length;
    return left >= 0;
  });
}
