/** Sources of images as people are told them, in Events, conditions, statuses and logs. */
import type { MachineImageSource } from './machine.ts';

/**
 * An address without what may be a credential: the user and password before its host, and its query, where signed addresses
 * have their signature.
 */
export function describeUrl(text: string | URL): string {
  const url = URL.parse(String(text));
  if (url === null) {
    return 'a URL that cannot be read';
  }
  const query = url.search === '' ? '' : '?…';
  return `${url.protocol}//${url.host}${url.pathname}${query}`;
}

/** Whether an address shows more than {@link describeUrl} tells of it. */
export function mayHoldCredentials(text: string): boolean {
  const url = URL.parse(text);
  return url === null || url.search !== '' || url.username !== '' || url.password !== '';
}

export function describeSource(source: MachineImageSource): string {
  switch (source.type) {
    case 'registry':
    case 'storedArtifact':
      return source.reference;
    case 'http':
      return describeUrl(source.url);
    case 'sharedFile':
    case 'storedFile':
      return source.path;
    case 'empty':
      return 'an empty disk';
    default:
      return source.description;
  }
}
