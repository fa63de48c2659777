/** Finds chunks of an image that is being fetched in the images that are already on this host. */
import { existsSync } from 'node:fs';
import { dirname, join } from 'node:path';
import type { Catalog, Stored } from './catalog.ts';
import { lookupIn, readChunkTable } from '../layouts/chunks.ts';
import type { ContentLookup } from '../layouts/pull.ts';

/**
 * Limit of the images that are searched, those used last. Other images seldom share content, and the table of each image is
 * read every time.
 */
const BASES_LIMIT = 8;
const TABLE = 'chunks.json';

/**
 * Returns a lookup in images of the same repository and in images that everybody may have (`isOpen`). Other images are not
 * searched, because a digest alone must not give access to another user's image.
 */
export async function contentFor(
  repository: string,
  catalog: Catalog,
  isOpen: (stored: Stored, origin: Origin) => Promise<boolean>,
): Promise<ContentLookup> {
  const latest = catalog
    .all()
    .filter((stored) => mayGive(stored, repository) && existsSync(join(folderOf(stored, catalog), TABLE)))
    .toSorted((a, b) => b.usedAt - a.usedAt)
    .slice(0, BASES_LIMIT);
  const bases = await filterAsync(latest, async (stored) => {
    const { repositories } = stored.metadata;
    if (repositories.some(({ name }) => name === repository)) {
      return true;
    }
    return (await filterAsync(repositories, (origin) => isOpen(stored, origin))).length > 0;
  });
  const disks = await Promise.all(
    bases.map(async (stored) => ({
      disk: catalog.baseOf(stored).path,
      chunks: await readChunkTable(folderOf(stored, catalog)),
    })),
  );
  const find = lookupIn(disks);
  return (...asked) => {
    const place = find(...asked);
    // The image may have been removed since the search.
    return place !== undefined && catalog.byPath(place.path) !== undefined ? place : undefined;
  };
}

type Origin = Stored['metadata']['repositories'][number];

async function filterAsync<T>(items: readonly T[], test: (item: T) => Promise<boolean>): Promise<T[]> {
  const passed = await Promise.all(items.map(test));
  return items.filter((_, index) => passed[index]);
}

/** Returns whether an image may give content, as far as known without a request to a registry. */
function mayGive({ metadata }: Stored, repository: string): boolean {
  return metadata.repositories.some(({ name, open }) => open || name === repository);
}

function folderOf(stored: Stored, catalog: Catalog): string {
  return dirname(catalog.baseOf(stored).path);
}
