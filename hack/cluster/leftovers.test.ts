import { chmod, mkdir, readFile, writeFile } from 'node:fs/promises';
import { delimiter, join } from 'node:path';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { networkNames } from '../../agent/networkdriver.ts';
import { removeNetworks } from './leftovers.ts';
import { makeFolder } from '../../test/support/folder.ts';

let root: string;
let directory: string;

beforeEach(async () => {
  root = makeFolder();
  directory = join(root, 'cluster');
  for (const name of ['one', 'two', 'pki']) {
    await mkdir(join(directory, name), { recursive: true });
  }
  vi.stubEnv('PATH', `${root}${delimiter}${process.env['PATH']}`);
});

afterEach(async () => {
  vi.unstubAllEnvs();
});

/** Makes a program that the tests use in place of nft. It writes its input to a file. */
async function fakeNft(list: string): Promise<void> {
  const program = `#!/bin/sh\nif [ "$1" = list ]; then ${list}; else cat >> '${join(root, 'loaded')}'; fi\n`;
  await writeFile(join(root, 'nft'), program);
  await chmod(join(root, 'nft'), 0o755);
}

it('removes the tables of the agents of a cluster, and no others', async () => {
  const { guardTable } = networkNames(join(directory, 'one'));
  const { guardTable: other } = networkNames(join(root, 'one'));
  await fakeNft(`printf 'table inet ${other}\\ntable inet ${guardTable}\\ntable ip nat\\n'`);
  await removeNetworks(directory);
  expect(await readFile(join(root, 'loaded'), 'utf8')).toBe(
    `add table inet ${guardTable}\ndelete table inet ${guardTable}\n`,
  );
});

it('succeeds if this process may not use nft', async () => {
  await fakeNft('echo Operation not permitted >&2; exit 1');
  await expect(removeNetworks(directory)).resolves.toBeUndefined();
});
