import { writeFile } from 'node:fs/promises';
import { delimiter, join } from 'node:path';
import { expect, it } from 'vitest';
import { placeOf } from './session.ts';
import { makeFolder } from '../../test/support/folder.ts';

it('is in the first file of KUBECONFIG that exists, otherwise in the last one', async () => {
  const folder = makeFolder();
  const files = ['absent', 'mine', 'other'].map((name) => join(folder, name));
  const environment = { KUBECONFIG: files.join(delimiter) };
  expect(placeOf({ environment }, {}, {})).toEqual({ file: files[2], context: 'berth' });
  await Promise.all(files.slice(1).map(async (file) => await writeFile(file, '')));
  expect(placeOf({ environment }, {}, {}).file).toBe(files[1]);
  const empty = { kubeconfig: '', context: '' };
  expect(placeOf({ environment }, empty, {})).toEqual({ file: files[1], context: 'berth' });
  expect(placeOf({ environment }, { kubeconfig: files[0] ?? '' }, { context: 'ci' })).toEqual({
    file: files[0],
    context: 'ci',
  });
  expect(placeOf({ environment: { HOME: folder } }, {}, {}).file).toBe(join(folder, '.kube', 'config'));
});
