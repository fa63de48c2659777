import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { pino } from 'pino';
import { expect, test } from 'vitest';
import { configSchema } from './config.ts';
import { createParts } from './parts.ts';
import { makeFolder } from '../test/support/folder.ts';

test('a fault of the folder of the image storage does not keep the agent from starting', async () => {
  const folder = makeFolder();
  // The mode of this folder cannot be set, as that of a folder on a faulty file server.
  await writeFile(join(folder, 'file'), '');
  const config = configSchema.parse({
    nodeName: 'host',
    dataDirectory: join(folder, 'data'),
    address: '127.0.0.1',
    bootstrapKubeconfig: '/nowhere/kubeconfig',
    network: { driver: 'user' },
    images: { storageFolder: join(folder, 'file', 'storage') },
  });
  const lines: string[] = [];
  const logger = pino({ level: 'error' }, { write: (line: string) => void lines.push(line) });
  const { images } = await createParts(config, logger);
  expect(images.images()).toEqual([]);
  await expect.poll(() => lines.join('')).toContain('ENOTDIR');
});
