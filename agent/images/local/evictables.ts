/** Content of the image store that may be removed when its disk space is needed. */
import type { Catalog } from './catalog.ts';
import type { Layout } from './layout.ts';

export interface Evictable {
  readonly sizeBytes: number;
  readonly remove: () => Promise<void>;
}

interface EvictableParts {
  catalog: Catalog;
  layout: Layout;
  onEviction: () => void;
}

/** Returns these fetches that are not running, and then the images that nobody needs, the least recently used image first. */
export function evictablesOf(
  partials: Awaited<ReturnType<Layout['partials']>>,
  { catalog, layout, onEviction }: EvictableParts,
): Evictable[] {
  return [
    ...partials.map(({ folder, sizeBytes }) => ({ sizeBytes, remove: () => layout.dropPartial(folder) })),
    ...catalog.evictable().map((stored) => ({
      sizeBytes: stored.metadata.sizeBytes,
      remove: async () => {
        // If a caller has requested the image since the list was made, the image stays.
        if (!catalog.evictable().includes(stored)) {
          return;
        }
        onEviction();
        await catalog.discard(stored);
      },
    })),
  ];
}
