/** Descriptions of image sources for people, in Events, conditions, statuses and logs. */
import type { MachineImageSource } from './machine.ts';

/**
 * Returns an address without the parts that can contain credentials. These parts are the user and password before the host, and the query,
 * which contains the signature of a signed address.
 */
export function describeUrl(text: string | URL): string {
  const url = URL.parse(String(text));
  if (url === null) {
    return 'a URL that cannot be read';
  }
  const query = url.search === '' ? '' : '?…';
  return `${url.protocol}//${url.host}${url.pathname}${query}`;
}

/** Reports whether an address has parts that {@link describeUrl} leaves out because they can contain credentials. */
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
