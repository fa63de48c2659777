/** References of images, taken apart. */
import { IMAGE_NAME_LENGTH, normaliseImageName } from '../../../api/v1alpha1/imagename.ts';
import { ImageError } from '../local/types.ts';

export interface Reference {
  /** Host, and port where there is one: `ghcr.io`, `registry.example:5000`. */
  registry: string;
  repository: string;
  tag?: string;
  /** `sha256:<hex>`; goes before the tag. */
  digest?: string;
}

/** Docker Hub's registry answers under another name than its references have. */
const API_HOSTS: Readonly<Record<string, string>> = { 'docker.io': 'registry-1.docker.io' };

const LABEL = '[a-z0-9]([a-z0-9-]*[a-z0-9])?';
const REGISTRY = new RegExp(String.raw`^(${LABEL}(\.${LABEL})*|\[[0-9a-f:.]+\])(:\d{1,5})?$`);
const REPOSITORY = /^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(\/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*$/;
const TAG = /^\w[\w.-]{0,127}$/;
/** A URL leaves its scheme's own port out. */
const HTTP_PORT = 80;
const SHA256 = /^sha256:[0-9a-f]{64}$/;

export function isSha256(digest: string): boolean {
  return SHA256.test(digest);
}

/** Any spelling of a reference. @throws ImageError that names what is wrong with it. */
export function parseReference(text: string): Reference {
  if (text.length > IMAGE_NAME_LENGTH) {
    throw bad(text.slice(0, 64), `longer than ${IMAGE_NAME_LENGTH}`);
  }
  const [named = '', digest, ...more] = normaliseImageName(text).split('@');
  const slash = named.indexOf('/');
  const [repository = '', tag, ...rest] = named.slice(slash + 1).split(':');
  if (more.length > 0 || rest.length > 0) {
    throw bad(text, 'more than one tag or digest');
  }
  const reference: Reference = { registry: named.slice(0, slash), repository };
  if (tag !== undefined) {
    reference.tag = tag;
  }
  if (digest !== undefined) {
    reference.digest = digest;
  }
  const mistake = mistakeIn(reference);
  if (mistake !== undefined) {
    throw bad(text, mistake);
  }
  return reference;
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
  return digest === undefined || SHA256.test(digest) ? undefined : digestMistake(digest);
}

/** What URLs read as another host (`0x7f.1` is 127.0.0.1 to them) or refuse (port 70000) is no name of a registry. */
function isRegistry(text: string): boolean {
  if (!REGISTRY.test(text)) {
    return false;
  }
  const [, host = '', port = ''] = /^(.*?)(?::(\d+))?$/.exec(text) ?? [];
  const url = URL.parse(`http://${text}`);
  return url?.hostname === host && (port === '' || Number(url.port || HTTP_PORT) === Number(port));
}

/** Host and port that a registry's API is at. */
export function apiHost(registry: string): string {
  return API_HOSTS[registry] ?? registry;
}

/** `NAME:TAG` or `NAME@DIGEST`, for messages. */
export function join(name: string, reference: string): string {
  return `${name}${reference.includes(':') ? '@' : ':'}${reference}`;
}

function digestMistake(digest: string): string {
  const algorithm = digest.split(':')[0] ?? '';
  return algorithm === 'sha256' || !digest.includes(':')
    ? `"${digest}" is no digest (sha256: and 64 digits of 0-9a-f)`
    : `digests of ${algorithm} are not supported, only sha256`;
}

function bad(text: string, mistake: string): ImageError {
  return new ImageError('ImageSourceUnsupported', `"${text}" is no image reference: ${mistake}`);
}
