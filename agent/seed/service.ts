/**
 * Returns the pages from which a guest reads its seed over HTTP: `/metadata/KEY`, and the files of cloud-init's NoCloud for
 * `ds=nocloud;s=http://169.254.169.254/`.
 */
import { join } from 'node:path';
import { type SeedDocuments, seedDocuments } from './documents.ts';

/** Returns a function that takes a machine's uid and the path of a page, and returns the text of the page. */
export function seedPages(
  machinesDirectory: string,
): (uid: string, path: string) => Promise<string | undefined> {
  return async (uid, path) => {
    const documents = await seedDocuments({ path: join(machinesDirectory, uid) });
    return documents && seedPage(documents, path);
  };
}

/** Returns the text of a page. The result is undefined if the seed has no such page. */
export function seedPage(documents: SeedDocuments, path: string): string | undefined {
  switch (path) {
    case '/meta-data':
      return documents.metaData;
    // cloud-init requires `/user-data`, and asks ten times for a `/vendor-data` that is missing. So both pages exist, even if they are
    // empty.
    case '/user-data':
      return documents.userData ?? '';
    case '/vendor-data':
      return documents.vendorData ?? '';
    case '/metadata/':
      return Object.keys(documents.values)
        .toSorted()
        .map((key) => `${key}\n`)
        .join('');
    default:
      return valueAt(documents.values, path);
  }
}

function valueAt(values: SeedDocuments['values'], path: string): string | undefined {
  const [, key] = /^\/metadata\/([^/]+)$/.exec(path) ?? [];
  return key !== undefined && Object.hasOwn(values, key) ? values[key] : undefined;
}
