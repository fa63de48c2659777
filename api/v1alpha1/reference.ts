/** References of images: how they differ from names of Image objects, their normal form, and their parts. */
import { ReasonedError } from './reasons.ts';

/** Longest reference or name accepted, in characters. */
export const IMAGE_NAME_LENGTH = 512;

/** The parts of a reference, each checked: they can stand in a URL as they are. */
export interface Reference {
  /** Host, and port if it has one: `ghcr.io`, `registry.example:5000`. */
  registry: string;
  repository: string;
  tag?: string;
  /** `sha256:<hex>`; goes before the tag. */
  digest?: string;
}

const REGISTRY_DEFAULT = 'docker.io';
const TAG_DEFAULT = 'latest';
/** The registry of Docker Hub answers under another name than its references have. */
const API_HOSTS: Readonly<Record<string, string>> = { [REGISTRY_DEFAULT]: 'registry-1.docker.io' };

const LABEL = '[a-z0-9]([a-z0-9-]*[a-z0-9])?';
const REGISTRY = new RegExp(String.raw`^(${LABEL}(\.${LABEL})*|\[[0-9a-f:.]+\])(:\d{1,5})?$`);
const REPOSITORY = /^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(\/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*$/;
const TAG = /^\w[\w.-]{0,127}$/;
const SHA256 = /^sha256:[0-9a-f]{64}$/;
/** A URL leaves out the default port of its scheme. */
const HTTP_PORT = 80;
/** How much of a text that is too long its refusal quotes, in characters. */
const QUOTED_LENGTH = 64;

/** `image` and `iso` of a VM name a registry's image when they contain `/`, `:` or `@`; else an Image or ISO object. */
export function isImageReference(text: string): boolean {
  return /[/:@]/.test(text);
}

export function isSha256(digest: string): boolean {
  return SHA256.test(digest);
}

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

/** The parts of a reference in any spelling. @throws ReasonedError `ImageSourceUnsupported`, which says why it is none. */
export function parseReference(text: string): Reference {
  const reference = readReference(text);
  if (typeof reference === 'string') {
    const quoted = text.length > IMAGE_NAME_LENGTH ? text.slice(0, QUOTED_LENGTH) : text;
    throw new ReasonedError('ImageSourceUnsupported', `"${quoted}" is no image reference: ${reference}`);
  }
  return reference;
}

/** The parts of a reference in any spelling, or why it is none, as words that follow a colon. */
export function readReference(text: string): Reference | string {
  if (text.length > IMAGE_NAME_LENGTH) {
    return `longer than ${IMAGE_NAME_LENGTH}`;
  }
  const [named = '', digest, ...more] = normaliseImageName(text).split('@');
  const slash = named.indexOf('/');
  const [repository = '', tag, ...rest] = named.slice(slash + 1).split(':');
  if (more.length > 0 || rest.length > 0) {
    return 'more than one tag or digest';
  }
  const reference: Reference = {
    registry: named.slice(0, slash),
    repository,
    ...(tag !== undefined && { tag }),
    ...(digest !== undefined && { digest }),
  };
  return mistakeIn(reference) ?? reference;
}

function mistakeIn({ registry, repository, tag, digest }: Reference): string | undefined {
  if (!isRegistry(registry)) {
    return `"${registry}" is no name of a registry`;
  }
  if (!REPOSITORY.test(repository)) {
    return `"${repository}" is no name of a repository`;
  }
  if (tag !== undefined && !TAG.test(tag)) {
    return `"${tag}" is no tag`;
  }
  return digest === undefined || isSha256(digest) ? undefined : digestMistake(digest);
}

/** A name that URLs read as another host (`0x7f.1` is 127.0.0.1 to them) or refuse (port 70000) is no name of a registry. */
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
    ? `"${digest}" is no digest (sha256: and 64 digits of 0-9a-f)`
    : `digests of ${algorithm} are not supported, only sha256`;
}

/** `registry/repository`, without tag and digest. */
export function repositoryName({ registry, repository }: Reference): string {
  return `${registry}/${repository}`;
}

/** `NAME:TAG` or `NAME@DIGEST`, for messages. */
export function join(name: string, tagOrDigest: string): string {
  return `${name}${tagOrDigest.includes(':') ? '@' : ':'}${tagOrDigest}`;
}

/** Host and port of a registry's API. */
export function apiHost(registry: string): string {
  return API_HOSTS[registry] ?? registry;
}
