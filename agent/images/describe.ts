/** A source's name for people. */
import type { BaseImageSource } from './store.ts';

export function describeSource(source: BaseImageSource): string {
  switch (source.type) {
    case 'registry':
    case 'storedArtifact':
      return source.reference;
    case 'http':
      return source.url;
    case 'sharedFile':
    case 'storedFile':
      return source.path;
    default:
      return source.description;
  }
}
