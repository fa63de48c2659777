/** A guest that is paused by the agent, or by QEMU because its disk has no room. The test has a small disk of its own. */
import { execFileSync } from 'node:child_process';
import { mkdirSync } from 'node:fs';
import { readdir, rm, statfs, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { mountTmpfs, whyNoTmpfs } from '../../support/tmpfs.ts';
import { unless } from '../../support/unless.ts';
import { waitFor } from '../../../hack/wait.ts';
import { BOOT_DEADLINE_MILLISECONDS, guestBase, TestMachine } from '../../worlds/qemuguest.ts';
import { saveWithMemory } from '../../worlds/warmimage.ts';

const MEBIBYTE = 1024 * 1024;
/** Size of the test's disk. It has room for the guest's memory once, and is soon full. */
const DISK_MEBIBYTES = 320;
/** Room that a full disk gets again. */
const ROOM_BYTES = 48 * MEBIBYTE;
/** Room for the first part of a save with memory: for less than the stream of the memory, and for the stream but not for the files of the image. */
const SAVE_ROOMS_MEBIBYTES = [20, 150];
/** More than the size of the disk. */
const FILL_MEBIBYTES = 1000;
/** A stop that takes half of it would have waited for the guest. */
const GRACE_MILLISECONDS = 120_000;
/** Time after which a guest without an answer counts as paused. A running guest answers within a second, also on a busy machine. */
const SILENCE_MILLISECONDS = 2_000;
const SLOW = { deadlineMilliseconds: BOOT_DEADLINE_MILLISECONDS };

const missing = whyNoTmpfs();

describe('a paused guest', { timeout: 3 * BOOT_DEADLINE_MILLISECONDS, ...unless(missing) }, () => {
  let machine: TestMachine;
  let disk: string;

  beforeAll(async () => {
    machine = await TestMachine.make({ diskSizeBytes: 2 * FILL_MEBIBYTES * MEBIBYTE });
    disk = join(machine.host.directory, 'machines');
    mkdirSync(disk, { mode: 0o700 });
    mountTmpfs(disk, DISK_MEBIBYTES);
    await writeFile(join(disk, 'ballast'), Buffer.alloc(ROOM_BYTES));
    await machine.create(await guestBase('amd64'));
    await machine.start();
    await machine.page();
  }, 300_000);

  afterAll(async () => {
    await machine?.driver.delete(machine.folder);
    execFileSync('umount', [disk]);
    await machine?.host.end();
  });

  async function expectStill(): Promise<void> {
    expect(await machine.state()).toMatchObject({ kind: 'running', guestStarted: false, paused: true });
    const answer = fetch(`http://127.0.0.1:${machine.port}/`, {
      signal: AbortSignal.timeout(SILENCE_MILLISECONDS),
    });
    await expect(answer).rejects.toThrow('aborted due to timeout');
  }

  async function untilStill(): Promise<void> {
    const isStill = async () => {
      const now = await machine.state();
      return now.kind === 'running' && now.paused;
    };
    await waitFor('QEMU to find the disk full', isStill, SLOW);
  }

  async function roomBytes(): Promise<number> {
    const { bavail, bsize } = await statfs(disk);
    return bavail * bsize;
  }

  it('stays paused until it is told to go on, also under another agent', async () => {
    await machine.driver.pause(machine.folder);
    await expectStill();
    await machine.host.restartAgent();
    await expectStill();
    await machine.driver.unpause(machine.folder);
    expect(await machine.state()).toMatchObject({ guestStarted: true, paused: false });
    await machine.page();
  });

  it('can be suspended, and runs after its resume', async () => {
    await machine.driver.pause(machine.folder);
    await machine.driver.suspend(machine.folder);
    expect(await machine.state()).toEqual({ kind: 'suspended' });
    await machine.driver.resume(machine.folder, machine.plan);
    expect(await machine.state()).toMatchObject({ guestStarted: true, paused: false });
    await machine.page();
  });

  it.each(SAVE_ROOMS_MEBIBYTES)(
    'runs on if a save of its memory finds only %i MiB of room, and nothing of the save is left',
    async (mebibytes) => {
      expect(await machine.tell('agent=0')).toBe('listening\n');
      const files = async () => [
        (await readdir(disk)).toSorted(),
        (await readdir(machine.folder.path)).toSorted(),
      ];
      const before = [await files(), (await machine.page())['boot_id']];
      const filler = join(disk, 'filler');
      await writeFile(filler, Buffer.alloc((await roomBytes()) - mebibytes * MEBIBYTE));
      const { driver, folder } = machine;
      const saving = saveWithMemory({ driver, directory: disk }, folder, 'image');
      await expect(saving).rejects.toThrow(
        /^The disk was not copied: |^A clone of the VM was not prepared: /,
      );
      await rm(filler);
      expect([await files(), (await machine.page())['boot_id']]).toEqual(before);
    },
  );

  it('continues its write when a full disk has room again', async () => {
    await machine.tell(`fill=${FILL_MEBIBYTES}`);
    await untilStill();
    await machine.host.restartAgent();
    await expectStill();
    await rm(join(disk, 'ballast'));
    await machine.driver.unpause(machine.folder);
    // The disk may be full again before the guest has answered a request.
    await waitFor('the guest to write on', async () => (await roomBytes()) < ROOM_BYTES / 2, SLOW);
    await untilStill();
  });

  it('loses its power at once at a stop, on a disk without a free block', async () => {
    const { bsize } = await statfs(disk);
    const rest = Buffer.alloc((await roomBytes()) + bsize);
    await expect(writeFile(join(disk, 'rest'), rest)).rejects.toMatchObject({ code: 'ENOSPC' });
    await expectStill();
    const began = performance.now();
    await machine.stop(GRACE_MILLISECONDS);
    expect(performance.now() - began).toBeLessThan(GRACE_MILLISECONDS / 2);
    expect(await machine.state()).toEqual({ kind: 'stopped' });
  });
});
