import { pino } from 'pino';
import { expect, it } from 'vitest';
import { Catalog } from './catalog.ts';
import { Holders } from './holders.ts';
import type { ImageId, Layout, Metadata } from './layout.ts';

const ID: ImageId = 'file/a';
const OTHER: ImageId = 'file/b';

/**
 * A catalog with two images. `saved` has the metadata on the disk, which is full while `isFull` is set. The folders of the images in
 * `damaged` cannot be written.
 */
function newCatalog() {
  const disk = { isFull: false, saved: new Map<ImageId, Metadata>(), damaged: new Set<ImageId>() };
  const layout = {
    touch: async () => undefined,
    save: async (id: ImageId, metadata: Metadata) => {
      if (disk.isFull) {
        throw new Error('the disk is full');
      }
      if (disk.damaged.has(id)) {
        throw new Error('the folder is damaged');
      }
      disk.saved.set(id, structuredClone(metadata));
    },
    disk: (id: ImageId) => `/${id}`,
  } as unknown as Layout;
  const holders = new Holders();
  const log: string[] = [];
  const logger = pino({ level: 'error' }, { write: (line: string) => log.push(line) });
  const catalog = new Catalog(layout, holders, logger);
  const [image, other] = [ID, OTHER].map((id) =>
    catalog.add(id, {
      architecture: 'amd64',
      names: [],
      repositories: [],
      urls: [],
      entries: [],
      tenants: [],
      sizeBytes: 1,
    } as unknown as Metadata),
  );
  return { disk, log, holders, catalog, image: image!, other: other! };
}

it('an assignment that could not be saved is saved by the next one, although the image has its name already', async () => {
  const { disk, catalog, image, other } = newCatalog();
  const asked = { names: ['x'], architecture: 'amd64', holder: 'entry/e', tenant: 'team' } as const;
  await catalog.assign(other, asked);
  disk.isFull = true;
  await expect(catalog.assign(image, asked)).rejects.toThrow('full');
  disk.isFull = false;
  await catalog.assign(image, asked);
  expect(disk.saved.get(ID)).toMatchObject({ names: ['x'], entries: ['e'] });
  expect(disk.saved.get(OTHER)).toMatchObject({ names: [], entries: [] });
});

it('the end of an entry that could not be saved is saved later, and until then the entry holds the image', async () => {
  const { disk, holders, catalog, image } = newCatalog();
  holders.add('entry/e', ID);
  await catalog.assign(image, { names: ['x'], architecture: 'amd64', holder: 'entry/e', tenant: 'team' });
  disk.isFull = true;
  await expect(catalog.unenter('entry/e', image)).rejects.toThrow('full');
  expect(holders.imagesOf('entry/e')).toEqual([ID]);
  disk.isFull = false;
  await catalog.flush();
  expect(disk.saved.get(ID)).toMatchObject({ names: [], entries: [] });
});

it('an image that cannot be saved does not prevent the assignment of others, is logged once, and is saved later', async () => {
  const { disk, log, catalog, image, other } = newCatalog();
  const asked = { names: ['x'], architecture: 'amd64', holder: 'machine/a', tenant: 'team' } as const;
  await catalog.assign(other, asked);
  disk.damaged.add(OTHER);
  await catalog.assign(image, asked);
  await catalog.assign(image, { ...asked, names: ['y'] });
  await catalog.flush();
  expect(disk.saved.get(ID)).toMatchObject({ names: ['x', 'y'] });
  expect(log).toEqual([
    expect.stringMatching(/the folder is damaged.*file\/b|file\/b.*the folder is damaged/),
  ]);
  disk.damaged.clear();
  await catalog.flush();
  expect(disk.saved.get(OTHER)).toMatchObject({ names: [] });
});

it('many tags of one owner displace each other, and not the name of another tenant', async () => {
  const { catalog, image } = newCatalog();
  const assign = async (name: string): Promise<void> =>
    await catalog.assign(image, {
      names: [name],
      architecture: 'amd64',
      holder: 'machine/m',
      tenant: 'team',
    });
  await assign('berth.dev/team/image');
  for (let tag = 0; tag < 70; tag += 1) {
    await assign(`registry.example/many/image:${tag}`);
  }
  expect(image.metadata.names).toHaveLength(64);
  expect(image.metadata.names).toContain('berth.dev/team/image');
  expect(image.metadata.names).toContain('registry.example/many/image:69');
});
