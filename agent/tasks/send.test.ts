import { mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { ReasonedError } from '../../api/v1alpha1/reasons.ts';
import { TASK_API_VERSION } from '../../api/v1alpha1/task.ts';
import type { BaseImage } from '../disks/disk.ts';
import type { DiskHost } from './disks.ts';
import type { TaskContext } from './runner.ts';
import { send } from './send.ts';

const BYTES = 64 * 1024;

it('a download ends when the disk of its host becomes full, and its copy is removed', async () => {
  const [folder, store] = await Promise.all([1, 2].map(() => mkdtemp(join(tmpdir(), 'berth-send-'))));
  const path = join(store ?? '', 'disk');
  await writeFile(path, Buffer.alloc(BYTES));
  const full = new AbortController();
  const withRoom: DiskHost['images']['withRoom'] = async (_claim, signal, work) =>
    await work(AbortSignal.any([signal, full.signal]));
  const log = (line: string): void => {
    if (line.startsWith('Sending')) {
      full.abort(new ReasonedError('DiskFull', 'no room'));
    }
  };
  const context = { folder, log, signal: new AbortController().signal, takeCallers: () => undefined };
  const base: BaseImage = { path, format: 'raw', virtualSizeBytes: BYTES, digest: 'sha256:d' };
  const task = {
    apiVersion: TASK_API_VERSION,
    type: 'send',
    image: { source: { type: 'registry', reference: 'r.example/i:1' }, format: 'Auto', name: 'n' },
    format: 'qcow2',
  } as const;
  const host = { images: { withRoom } } as unknown as DiskHost;
  const sent = send(host, task, context as unknown as TaskContext, async (use) => await use(base));
  await expect(sent).rejects.toMatchObject({ reason: 'DiskFull' });
  expect(await readdir(folder ?? '')).toEqual([]);
  await Promise.all([folder, store].map(async (one = '') => await rm(one, { recursive: true })));
});
