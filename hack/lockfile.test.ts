import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';

interface Lockfile {
  packages: Record<string, { integrity?: string }>;
}

test('every package of the lockfile has an integrity, so that no registry can give another content', () => {
  const file = join(import.meta.dirname, '../package-lock.json');
  const { packages } = JSON.parse(readFileSync(file, 'utf8')) as Lockfile;
  // The entry without a name is Berth itself.
  const names = Object.keys(packages).filter((name) => name !== '');
  const unpinned = names.filter(
    (name) => !/^sha512-[A-Za-z0-9+/]{86}==$/.test(packages[name]?.integrity ?? ''),
  );
  expect(names.length).toBeGreaterThan(0);
  expect(unpinned).toEqual([]);
});
