/** Describes image sources for people, in Events, conditions, statuses and logs. */
import type { MachineImageSource } from './machine.ts';

/**
 * Returns a web address without the parts that can contain credentials. These parts are the user and the password before the host, and the
 * query, because the query of a signed address contains the signature.
 */
export function describeUrl(text: string | URL): string {
  const url = URL.parse(String(text));
  if (url === null) {
    return 'a URL that cannot be read';
  }
  const query = url.search === '' ? '' : '?…';
  return `${url.protocol}//${url.host}${url.pathname}${query}`;
}

/** Reports whether a web address has parts that can contain credentials. {@link describeUrl} leaves out these parts. */
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
