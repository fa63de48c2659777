/** Names of images: OCI references, told from the names of Image objects, and their normal form. */

/** Longest reference or name accepted. */
export const IMAGE_NAME_LENGTH = 512;

/** `image` and `iso` of a VM name a registry's image when they contain `/`, `:` or `@`; else an Image or ISO object. */
export function isImageReference(text: string): boolean {
  return /[/:@]/.test(text);
}

const REGISTRY_DEFAULT = 'docker.io';
const TAG_DEFAULT = 'latest';

/**
 * The one spelling of an image's name: trimmed, `docker.io` (with `library/` for its one-word names) and `:latest` made
 * explicit, a digest kept. Two spellings of one image give the same text; normalising twice changes nothing.
 */
export function normaliseImageName(name: string): string {
  const [named, digest] = split(name.trim(), '@');
  const [registry, rest] = splitRegistry(named);
  const [path, tag] = split(rest, ':');
  const repository = registry === REGISTRY_DEFAULT && !path.includes('/') ? `library/${path}` : path;
  const canonical = `${registry}/${repository}`;
  if (digest === undefined) {
    return `${canonical}:${tag ?? TAG_DEFAULT}`;
  }
  return tag === undefined ? `${canonical}@${digest}` : `${canonical}:${tag}@${digest}`;
}

/** The part before the first slash is a registry when it looks like a host: with a dot, a port or a capital, or localhost. */
function splitRegistry(named: string): [string, string] {
  const [first, rest] = split(named, '/');
  const isHost = /[.:A-Z]/.test(first) || first === 'localhost';
  return rest !== undefined && isHost ? [canonicalRegistry(first), rest] : [REGISTRY_DEFAULT, named];
}

/** Docker Hub's other host name; host names are the same in any case. */
function canonicalRegistry(registry: string): string {
  const host = registry.toLowerCase();
  return host === 'index.docker.io' ? REGISTRY_DEFAULT : host;
}

/** The text before and after the first `separator`; no second part when there is none. */
function split(text: string, separator: string): [string, string?] {
  const at = text.indexOf(separator);
  return at < 0 ? [text] : [text.slice(0, at), text.slice(at + 1)];
}
