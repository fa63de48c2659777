import { expect, test } from 'vitest';
import { IMAGE_FIELD_ROWS } from '../../api/v1alpha1/imagefields.ts';
import { readSurfaces } from '../fields.ts';
import { fieldsPage, surfaceMistakes } from './surfaces.ts';

test('a field of a VM or an Image has its place on each surface, or a reason why it has none', () => {
  const page = fieldsPage();
  expect(page).toMatch(/^\| `diskSize` \| • \| `diskSize` \| `--disk-size` \|$/m);
  expect(page).toMatch(/^\| `network` \| • \| No: .+ \| No: .+ \|$/m);
  expect(page).toMatch(/^\| `source\.http\.url` \| • \| `url` \| `--url` \|$/m);
  expect(page).toMatch(/^\| `source\.empty\.size` \|  \| `size` \| `--size` \|$/m);
  const row = { name: 'new', type: 'time', description: '', http: 'new' } as const;
  expect(() => fieldsPage([row])).toThrow('The field new needs http and flag');
});

test('each cell names what its surface has', async () => {
  expect(surfaceMistakes(await readSurfaces())).toEqual([]);
});

test.each([
  [
    'a row that is missing',
    IMAGE_FIELD_ROWS.filter(({ path }) => path !== 'os'),
    ['Image.os has no row', 'ISO.os has no row', 'image: os has no row', 'image: --os has no row'],
  ],
  [
    'a row of nothing',
    [...IMAGE_FIELD_ROWS, { path: 'colour', isImageOnly: true, http: 'os', flag: ['--os', ''] }] as const,
    ['Image.colour is no field of a spec'],
  ],
  [
    'a name that no surface has',
    [
      ...IMAGE_FIELD_ROWS.filter(({ path }) => path !== 'format'),
      {
        path: 'format',
        isImageOnly: true,
        elsewhere: { http: '`POST …/images/{name}/paint`', flag: '`berth image paint`, `--paint`' },
      },
    ] as const,
    ['`POST …/images/{name}/paint`', '`berth image paint`', '`--paint`'].map(
      (name) => `images: the row of format names ${name.slice(1, -1)}, which does not exist`,
    ),
  ],
])('%s is found', async (_, rows, mistakes) => {
  expect(surfaceMistakes(await readSurfaces(), rows)).toEqual(expect.arrayContaining(mistakes));
});
