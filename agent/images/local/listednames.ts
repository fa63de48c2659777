/** Determines the names under which a Node lists an image of the store. */
import type { Metadata } from './layout.ts';

/** Prefix of the names of Image and ISO objects. All other names are references, which begin with the host of a registry. */
const OBJECT = 'berth.dev/';
/**
 * Largest length of all names of one image together, in characters. A Node lists 200 images, and users choose their names. Without this
 * limit, the names could fill the Node, and the API server would refuse its status. The limit has room for dozens of names of usual length.
 */
const NAMES_LENGTH = 4_000;

/**
 * Returns the names as in `Node.status.images`. If the names are too long together, the last ones are left out: first names with a digest,
 * then the newest names of Image objects, then the newest references.
 */
export function listedNames({ names, digest, repositories }: Metadata): string[] {
  if (names.length === 0) {
    return [];
  }
  const references = names.filter((name) => !name.startsWith(OBJECT));
  const objects = names.filter((name) => name.startsWith(OBJECT)).map((name) => `${name}@${digest}`);
  const pinned = repositories.flatMap(({ name, digests }) => digests.map((one) => `${name}@${one}`));
  let left = NAMES_LENGTH;
  return [...new Set([...references, ...objects, ...pinned])].filter((name) => {
    left -= name.length;
    return left >= 0;
  });
}
