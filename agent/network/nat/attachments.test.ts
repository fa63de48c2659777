import { readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { beforeEach, expect, test } from 'vitest';
import { AttachmentFiles } from './attachments.ts';
import { makeFolder } from '../../../test/support/folder.ts';

let directory: string;

beforeEach(() => {
  directory = makeFolder();
});

const MACHINE = { uid: 'vm', macAddress: '52:54:00:00:00:01', address: '10.213.0.20', tap: 'bt1', ports: [] };
const PROGRAM = {
  uid: 'emulator',
  address: '198.18.213.20',
  device: 'bn1',
  exposedPort: 5555,
  peer: 'vm',
  ports: [],
};
/** File that an earlier release writes. It has only the attachments of machines, because that release has no namespaces. */
const EARLIER = JSON.stringify({ attachments: [MACHINE] });

test('a release without namespaces reads and writes its file, and the next release still knows machines and programs', async () => {
  const files = new AttachmentFiles(directory);
  const wanted = { machines: [MACHINE], namespaces: [PROGRAM] };
  await files.save(wanted);
  const machines = join(directory, 'attachments.json');
  expect(JSON.parse(await readFile(machines, 'utf8'))).toEqual(JSON.parse(EARLIER));
  await writeFile(machines, EARLIER);
  expect(await new AttachmentFiles(directory).load()).toEqual(wanted);
});

test('the file of a release without namespaces has machines and no programs', async () => {
  await writeFile(join(directory, 'attachments.json'), EARLIER);
  expect(await new AttachmentFiles(directory).load()).toEqual({ machines: [MACHINE], namespaces: [] });
});

test('a host without programs has no file for them', async () => {
  const files = new AttachmentFiles(directory);
  await files.save({ machines: [MACHINE], namespaces: [PROGRAM] });
  await files.save({ machines: [MACHINE], namespaces: [] });
  expect(await readdir(directory)).toEqual(['attachments.json']);
  await files.remove();
  expect(await readdir(directory)).toEqual([]);
});
