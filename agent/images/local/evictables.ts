/** Content of the image store that may be removed when its disk space is needed. */
import type { Catalog, Stored } from './catalog.ts';
import type { Layout } from './layout.ts';
import type { Use } from './shares.ts';

/**
 * Time in milliseconds after its last use for which an image counts as wanted by its tenants. Afterwards everybody may remove it. Otherwise the
 * images of a tenant that no longer uses the host would keep space from the others for ever. A day lets an image outlast a night.
 */
const WANTED_MILLISECONDS = 24 * 3_600_000;

export interface Evictable extends Use {
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
    ...partials.map(({ folder, sizeBytes }) => ({
      tenants: [],
      sizeBytes,
      remove: () => layout.dropPartial(folder),
    })),
    ...catalog.evictable().map((stored) => ({
      tenants: isWanted(stored) ? stored.metadata.tenants : [],
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

function isWanted({ usedAt }: Stored): boolean {
  return Date.now() - usedAt < WANTED_MILLISECONDS;
}
