import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { appendedLog } from '../../console/logwriter.ts';
import { startError } from './lastwords.ts';

let folder: string;

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-lastwords-'));
});

afterEach(async () => {
  await rm(folder, { recursive: true });
});

const UNREADABLE = "Could not open 'disk.qcow2': Permission denied";

test('the last words of a hypervisor show why it did not start', async () => {
  await writeFile(join(folder, appendedLog('hypervisor')), `${UNREADABLE}\n`);
  const message = `The hypervisor ended with code 1: ${UNREADABLE}`;
  expect(await startError(folder, 'The hypervisor ended with code 1')).toMatchObject({
    reason: 'DiskInvalid',
    message,
  });
});

test('an answer of a hypervisor to a command does not make a failed start final', async () => {
  expect(await startError(folder, UNREADABLE)).toMatchObject({
    reason: 'StartFailed',
    message: UNREADABLE,
  });
});
