/** Normalizes and checks references of images, splits them into their parts, and bounds the images in the status of a Node. */
import { ReasonedError } from './reasons.ts';

/** Largest length of a reference or name, in characters. */
export const IMAGE_NAME_LENGTH = 512;

/** The parts of a reference. Each part has been checked, so that a URL can contain the part unchanged. */
export interface Reference {
  /** Host of the registry, and its port if the reference contains one: `ghcr.io`, `registry.example:5000`. */
  registry: string;
  repository: string;
  tag?: string;
  /** Digest in the form `sha256:<hex>`. If the reference has both a digest and a tag, only the digest counts. */
  digest?: string;
}

const REGISTRY_DEFAULT = 'docker.io';
const TAG_DEFAULT = 'latest';
/**
 * Host names of the APIs of registries. The key is the host name in a reference. A registry is listed only if the host name of its API
 * differs from the host name in references.
 */
const API_HOSTS: Readonly<Record<string, string>> = { [REGISTRY_DEFAULT]: 'registry-1.docker.io' };

const LABEL = '[a-z0-9]([a-z0-9-]*[a-z0-9])?';
const REGISTRY = new RegExp(String.raw`^(${LABEL}(\.${LABEL})*|\[[0-9a-f:.]+\])(:\d{1,5})?$`);
const REPOSITORY = /^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(\/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*$/;
const TAG = /^\w[\w.-]{0,127}$/;
const SHA256 = /^sha256:[0-9a-f]{64}$/;
/** Default port of http. The URL parser leaves it out of a URL. */
const HTTP_PORT = 80;
/** Largest number of characters of a reference that an error message quotes. The rest of a longer reference is left out. */
const QUOTED_LENGTH = 64;

/**
 * Reports whether `image` or `iso` of a VM names an image in a registry. A text with `/`, `:` or `@` names such an image. Any other text
 * names an Image or ISO object.
 */
export function isImageReference(text: string): boolean {
  return /[/:@]/.test(text);
}

export function isSha256(digest: string): boolean {
  return SHA256.test(digest);
}

/**
 * Returns the normalized spelling of an image's name, so that different spellings of the same image give the same result. The text is
 * trimmed. `docker.io`, the prefix `library/` of a one-word name, and `:latest` are added if they are absent. A digest is kept, and
 * `:latest` is not added to a name with a digest. A normalized name does not change if it is normalized again.
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

/**
 * Separates the registry from the rest of a name. The part before the first slash is a registry if it is `localhost`, or contains a dot, a
 * colon or a capital letter.
 */
function splitRegistry(named: string): [string, string] {
  const [first, rest] = split(named, '/');
  const isHost = /[.:A-Z]/.test(first) || first === 'localhost';
  return rest !== undefined && isHost ? [canonicalRegistry(first), rest] : [REGISTRY_DEFAULT, named];
}

/**
 * Returns the registry in lower case, because upper and lower case mean the same in host names. `index.docker.io`, the second name of
 * Docker Hub, becomes `docker.io`.
 */
function canonicalRegistry(registry: string): string {
  const host = registry.toLowerCase();
  return host === 'index.docker.io' ? REGISTRY_DEFAULT : host;
}

/** Returns the short name of an image for people, without registry, digest and the prefix `library/` of Docker Hub. */
export function shortImageName(name: string): string {
  const [named] = split(name.trim(), '@');
  const [registry, rest] = splitRegistry(named);
  return registry === REGISTRY_DEFAULT ? rest.replace(/^library\//, '') : rest;
}

/** Returns the text before and after the first `separator`. The second part is absent if the text does not contain the separator. */
function split(text: string, separator: string): [string, string?] {
  const at = text.indexOf(separator);
  return at < 0 ? [text] : [text.slice(0, at), text.slice(at + 1)];
}

/**
 * Returns the parts of a reference in any spelling.
 *
 * @throws ReasonedError with the reason `ImageSourceUnsupported` when the text is not a reference. The message describes the mistake.
 */
export function parseReference(text: string): Reference {
  const reference = readReference(text);
  if (typeof reference === 'string') {
    const quoted = text.length > IMAGE_NAME_LENGTH ? text.slice(0, QUOTED_LENGTH) : text;
    throw new ReasonedError('ImageSourceUnsupported', `"${quoted}" is not an image reference: ${reference}`);
  }
  return reference;
}

/**
 * Returns the parts of a reference in any spelling. If the text is not a reference, returns a phrase that describes the mistake. The phrase
 * can follow a colon in a message.
 */
export function readReference(text: string): Reference | string {
  if (text.length > IMAGE_NAME_LENGTH) {
    return `it is longer than ${IMAGE_NAME_LENGTH} characters`;
  }
  if (text.includes('://')) {
    return 'it contains "://". Leave out the scheme, for example https://';
  }
  const [named = '', digest, ...more] = normaliseImageName(text).split('@');
  const slash = named.indexOf('/');
  const [repository = '', tag, ...rest] = named.slice(slash + 1).split(':');
  if (more.length > 0 || rest.length > 0) {
    return 'it has more than one tag or digest';
  }
  const reference: Reference = {
    registry: named.slice(0, slash),
    repository,
    ...(tag !== undefined && { tag }),
    ...(digest !== undefined && { digest }),
  };
  return mistakeIn(reference) ?? reference;
}

/**
 * Returns a phrase that describes why nothing can be pushed under this reference. The result is undefined if a registry can take the push.
 * The phrase can follow a colon in a message.
 */
export function pushMistake(text: string): string | undefined {
  const reference = readReference(text);
  if (typeof reference === 'string') {
    return reference;
  }
  return reference.tag === undefined ? 'it has no tag. Add the tag of the new image' : undefined;
}

function mistakeIn({ registry, repository, tag, digest }: Reference): string | undefined {
  if (!isRegistry(registry)) {
    return `"${registry}" is not the name of a registry`;
  }
  if (!REPOSITORY.test(repository)) {
    return `"${repository}" is not the name of a repository`;
  }
  if (tag !== undefined && !TAG.test(tag)) {
    return `"${tag}" is not a tag`;
  }
  return digest === undefined || isSha256(digest) ? undefined : digestMistake(digest);
}

/**
 * Reports whether the text is a valid name of a registry, and stays the same when a URL parser reads it. For example, the result is false
 * for `0x7f.1`, because the parser reads this text as the host 127.0.0.1. The result is also false for a port 70000, because the parser
 * refuses it.
 */
function isRegistry(text: string): boolean {
  if (!REGISTRY.test(text)) {
    return false;
  }
  const [, host = '', port = ''] = /^(.*?)(?::(\d+))?$/.exec(text) ?? [];
  const url = URL.parse(`http://${text}`);
  return url?.hostname === host && (port === '' || Number(url.port || HTTP_PORT) === Number(port));
}

function digestMistake(digest: string): string {
  const algorithm = digest.split(':')[0] ?? '';
  return algorithm === 'sha256' || !digest.includes(':')
    ? `"${digest}" is not a digest (sha256: and 64 digits of 0-9a-f)`
    : `digests of ${algorithm} are not supported, only sha256`;
}

/** Returns the normalized spelling of a reference, like {@link normaliseImageName}. */
export function formatReference(reference: Reference): string {
  const { tag, digest } = reference;
  const tagged = tag === undefined ? repositoryName(reference) : `${repositoryName(reference)}:${tag}`;
  return digest === undefined ? tagged : `${tagged}@${digest}`;
}

/** Returns `registry/repository` of a reference, without tag and digest. */
export function repositoryName({ registry, repository }: Reference): string {
  return `${registry}/${repository}`;
}

/** Returns `NAME:TAG` or `NAME@DIGEST` for messages. The function recognizes a digest by its colon, because tags contain no colon. */
export function join(name: string, tagOrDigest: string): string {
  return `${name}${tagOrDigest.includes(':') ? '@' : ':'}${tagOrDigest}`;
}

/** Returns the host of a registry's API, and the port if the registry has a port. */
export function apiHost(registry: string): string {
  return API_HOSTS[registry] ?? registry;
}

/**
 * Largest number of images in the Node's status. A list of this length has about 50 KiB. The agent limits the names of each image, so that
 * users cannot make the list too large. A kubelet lists 50 images, but that limit could leave out an image of an ImageCacheEntry.
 */
export const IMAGES_LISTED = 200;
/** Largest number of names of one image. More names for the same content come from a mistake or an attack. */
const NAMES_LISTED = 256;
/** Largest length of a name in characters. It is enough for the longest reference with a digest. */
const NAME_LENGTH = 2 * IMAGE_NAME_LENGTH;

interface Listed {
  /** The API server writes null if the host reported the image without names. */
  readonly names: readonly string[] | null;
}

/** Returns the images with their names. Leaves out images and names beyond the bounds. */
export function listedImages<Image extends Listed>(
  images: readonly Image[] = [],
): (Image & { names: string[] })[] {
  return images.slice(0, IMAGES_LISTED).map((image) => ({
    ...image,
    names: (image.names ?? []).slice(0, NAMES_LISTED).filter(({ length }) => length <= NAME_LENGTH),
  }));
}
