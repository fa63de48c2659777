/** Finds pieces of an image that is fetched in the images that are on this host already. */
import { existsSync } from 'node:fs';
import { dirname, join } from 'node:path';
import type { Catalog, Stored } from './catalog.ts';
import { lookupIn, readChunkTable } from '../layouts/chunks.ts';
import type { ContentLookup } from '../layouts/pull.ts';

/** Those used last: more are seldom of the same family, and their tables are read each time. */
const BASES_LIMIT = 8;
const TABLE = 'chunks.json';

/**
 * Looks in images of the same repository and in those that everybody may have (`isOpen`): a digest alone must not bring out what
 * somebody else's image holds.
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
    // It may have been removed since.
    return place !== undefined && catalog.byPath(place.path) !== undefined ? place : undefined;
  };
}

type Origin = Stored['metadata']['repositories'][number];

async function filterAsync<T>(items: readonly T[], test: (item: T) => Promise<boolean>): Promise<T[]> {
  const passed = await Promise.all(items.map(test));
  return items.filter((_, index) => passed[index]);
}

/** Judged by what is known without asking a registry. */
function mayGive({ metadata }: Stored, repository: string): boolean {
  return metadata.repositories.some(({ name, open }) => open || name === repository);
}

function folderOf(stored: Stored, catalog: Catalog): string {
  return dirname(catalog.baseOf(stored).path);
}
