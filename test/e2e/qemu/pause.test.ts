/** A guest that stands still: because the agent says so, or because QEMU found no room for what it wrote. On a small disk of its own. */
import { execFileSync } from 'node:child_process';
import { mkdirSync } from 'node:fs';
import { rm, statfs, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { LaunchPlan } from '../../../agent/drivers/driver.ts';
import { freePort } from '../../../hack/cluster/ports.ts';
import { mountTmpfs, whyNoTmpfs } from '../../support/tmpfs.ts';
import { unless } from '../../support/unless.ts';
import { waitFor } from '../../../hack/wait.ts';
import {
  BOOT_DEADLINE_MILLISECONDS,
  folderOf,
  guestBase,
  type Host,
  makeHost,
  page,
  planFor,
  tell,
} from '../../worlds/qemuguest.ts';

const MEBIBYTE = 1024 * 1024;
/** Holds the guest's memory once, and is soon full. */
const DISK_MEBIBYTES = 320;
const BALLAST_MEBIBYTES = 48;
/** More than the disk. */
const FILL_MEBIBYTES = 1000;
const GRACE_MILLISECONDS = 30_000;
/** A guest that runs answers within milliseconds, on a busy machine within a second. */
const SILENCE_MILLISECONDS = 2_000;
const SLOW = { deadlineMilliseconds: BOOT_DEADLINE_MILLISECONDS };

const missing = whyNoTmpfs();

describe('a guest that stands still', { timeout: 3 * BOOT_DEADLINE_MILLISECONDS, ...unless(missing) }, () => {
  let host: Host;
  let plan: LaunchPlan;
  let port: number;
  let disk: string;
  const folder = () => folderOf(host, '0b7e5c1a-9d7f-4a57-8d3b-5f1f6f0c0042');
  const state = async () => await host.driver.inspect(folder());

  beforeAll(async () => {
    host = await makeHost();
    disk = join(host.directory, 'machines');
    mkdirSync(disk, { mode: 0o700 });
    mountTmpfs(disk, DISK_MEBIBYTES);
    await writeFile(join(disk, 'ballast'), Buffer.alloc(BALLAST_MEBIBYTES * MEBIBYTE));
    port = await freePort();
    plan = planFor('amd64', port, 2 * FILL_MEBIBYTES * MEBIBYTE);
    await host.driver.create(folder(), plan, await guestBase('amd64'));
    await host.driver.start(folder(), plan);
    await page(port);
  }, 300_000);

  afterAll(async () => {
    await host?.driver.delete(folder());
    execFileSync('umount', [disk]);
    await host?.end();
  });

  async function expectStill(): Promise<void> {
    expect(await state()).toMatchObject({ kind: 'running', guestStarted: false, paused: true });
    const answer = fetch(`http://127.0.0.1:${port}/`, {
      signal: AbortSignal.timeout(SILENCE_MILLISECONDS),
    });
    await expect(answer).rejects.toThrow('aborted due to timeout');
  }

  async function untilStill(): Promise<void> {
    const isStill = async () => {
      const now = await state();
      return now.kind === 'running' && now.paused;
    };
    await waitFor('QEMU to find the disk full', isStill, SLOW);
  }

  it('does so until it is to go on, also under another agent', async () => {
    await host.driver.pause(folder());
    await expectStill();
    await host.restartAgent();
    await expectStill();
    await host.driver.unpause(folder());
    expect(await state()).toMatchObject({ guestStarted: true, paused: false });
    await page(port);
  });

  it('can be suspended, and runs once it is resumed', async () => {
    await host.driver.pause(folder());
    await host.driver.suspend(folder());
    expect(await state()).toEqual({ kind: 'suspended' });
    await host.driver.resume(folder(), plan);
    expect(await state()).toMatchObject({ guestStarted: true, paused: false });
    await page(port);
  });

  it('for want of room goes on with its write when there is some', async () => {
    await tell(port, `fill=${FILL_MEBIBYTES}`);
    await untilStill();
    await host.restartAgent();
    await expectStill();
    await rm(join(disk, 'ballast'));
    await host.driver.unpause(folder());
    await page(port);
    await untilStill();
  });

  it('loses its power at once when it is stopped, on a disk without a free block', async () => {
    const { bavail, bsize } = await statfs(disk);
    const rest = Buffer.alloc((bavail + 1) * bsize);
    await expect(writeFile(join(disk, 'rest'), rest)).rejects.toMatchObject({ code: 'ENOSPC' });
    await expectStill();
    const began = performance.now();
    await host.driver.stop(folder(), { graceMilliseconds: GRACE_MILLISECONDS });
    expect(performance.now() - began).toBeLessThan(GRACE_MILLISECONDS / 2);
    expect(await state()).toEqual({ kind: 'stopped' });
  });
});
