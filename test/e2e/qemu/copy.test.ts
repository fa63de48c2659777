/** Copies of a machine's disk, with a real guest that writes all the time and runs Debian's guest agent. */
import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { access, mkdir, readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { isMissing } from '../../../base/errors.ts';
import type { DiskCopy } from '../../../agent/drivers/driver.ts';
import type { BaseImage } from '../../../agent/disks/disk.ts';
import { findByArgument, type ProcessIdentity } from '../../../agent/processes/process.ts';
import { freePort } from '../../../hack/cluster/ports.ts';
import { waitFor } from '../../../hack/wait.ts';
import { type CopyJob, UNDER_WAY } from './copyagent.ts';
import {
  bytesOnDisk,
  COPY_DATA_LIMIT_BYTES,
  COPY_DISK_BYTES,
  isClean,
  makeCopyDisk,
  markerOn,
} from '../../fixtures/copydisk.ts';
import {
  BOOT_DEADLINE_MILLISECONDS,
  folderOf,
  guestBase,
  page,
  planFor,
  tell,
  TestMachine,
} from '../../worlds/qemuguest.ts';

/** Time that the driver waits for a guest agent which is not there, with less and more time for other steps on a busy machine. */
const SYNC_LIMIT_MILLISECONDS = 3_000;
const EARLY_MILLISECONDS = 2_000;
const LATE_MILLISECONDS = 20_000;
/** Script that the guest agent runs before a freeze and after a thaw, and a line for it that delays the answer to a thaw. */
const HOOK = '/etc/qemu/fsfreeze-hook';
const SLOW_THAW = '[ "$1" = freeze ] || sleep 1';

describe('a copy of a disk', { timeout: 3 * BOOT_DEADLINE_MILLISECONDS }, () => {
  let machine: TestMachine;
  let base: BaseImage;
  let target: string;

  beforeAll(async () => {
    machine = await TestMachine.make();
    base = await makeCopyDisk((await guestBase('amd64')).path, join(machine.host.directory, 'base.raw'));
    await mkdir(join(machine.host.directory, 'copies'));
    target = join(machine.host.directory, 'copies', 'disk.raw');
    await machine.create(base);
    await machine.start();
    await machine.page();
    expect(await machine.tell('write')).toBe('writing\n');
  }, 300_000);

  afterAll(async () => await machine.host.end());

  /** Copies the disk. `onMoment` is called after the moment that the copy shows. */
  async function copy(
    onMoment: () => void = () => undefined,
    { to = target, signal = new AbortController().signal } = {},
  ): Promise<DiskCopy> {
    return await machine.driver.copyDisk(machine.folder, {
      target: to,
      signal,
      onProgress: (percent) => {
        if (percent === 0) {
          onMoment();
        }
      },
    });
  }

  /** Resolves when the copy reads. The result has the promise of its end. */
  async function begun(
    options: { to?: string; signal?: AbortSignal } = {},
  ): Promise<{ end: Promise<DiskCopy | Error> }> {
    const moment = Promise.withResolvers<void>();
    const end = copy(moment.resolve, options).catch((error: unknown) => error as Error);
    await Promise.race([moment.promise, end]);
    return { end };
  }

  /** Checks that no file of a copy is left. The guest goes on writing. */
  async function expectNothingLeft(): Promise<void> {
    await expect(access(target)).rejects.toThrow('ENOENT');
    const files = await readdir(machine.folder.path);
    expect(files.filter((name) => name.startsWith('copy'))).toEqual([]);
  }

  async function expectWriting(): Promise<void> {
    const before = await number();
    await waitFor('the guest to write on', async () => (await number()) > before + 1);
  }

  async function number(): Promise<number> {
    return Number(await machine.tell('number'));
  }

  /** Returns the process that reads the disk for the running copy. */
  async function reader(): Promise<ProcessIdentity | undefined> {
    return await findByArgument(`throttle-group,id=berth-copy-${machine.folder.uid}`);
  }

  /** Runs a script in the guest by its guest agent. */
  async function inGuest(script: string): Promise<void> {
    const { signal } = new AbortController();
    const command = { path: '/bin/sh', arguments: ['-c', script], signal, reserve: () => true };
    expect(await machine.driver.execute(machine.folder, command)).toMatchObject({ exitCode: 0 });
  }

  async function freezes(): Promise<string[]> {
    return (await machine.tell('freezes')).trim().split('\n');
  }

  /**
   * Lets an agent in a process of its own copy the disk, and kills it once `when` returns true. The driver of the test is closed before.
   */
  async function killedAgent(when: (output: string) => boolean | Promise<boolean>): Promise<void> {
    await machine.driver.close();
    const job: CopyJob = { dataDirectory: machine.host.directory, folder: machine.folder, target };
    const script = new URL('./copyagent.ts', import.meta.url).pathname;
    const child = spawn(process.execPath, [script, JSON.stringify(job)], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    const ended = once(child, 'exit');
    try {
      let output = '';
      child.stdout.on('data', (data: Buffer) => {
        output += data.toString();
      });
      await waitFor('the copy', async () => child.exitCode !== null || (await when(output)), {
        intervalMilliseconds: 10,
      });
    } finally {
      child.kill('SIGKILL');
    }
    expect(await ended).toEqual([null, 'SIGKILL']);
    await machine.host.restartAgent();
  }

  function underWay(output: string): boolean {
    return output.includes(UNDER_WAY);
  }

  async function mayBeFrozen(): Promise<boolean> {
    try {
      const note = await readFile(join(machine.folder.path, 'copy.json'), 'utf8');
      return (JSON.parse(note) as { frozen: boolean }).frozen;
    } catch (error) {
      if (isMissing(error)) {
        return false;
      }
      throw error;
    }
  }

  it('of a running machine shows one moment and has its holes; the guest runs on', async () => {
    const before = await machine.page();
    await machine.tell('marker=before');
    const least = await number();
    const started = performance.now();
    const { end } = await begun();
    const waited = performance.now() - started;
    const { pid } = await waitFor('the reader', reader, { intervalMilliseconds: 1 });
    process.kill(pid, 'SIGSTOP');
    await machine.tell('marker=after');
    const most = await number();
    process.kill(pid, 'SIGCONT');
    expect(await end).toEqual({ consistency: 'Crash', virtualSizeBytes: COPY_DISK_BYTES });
    expect(waited).toBeGreaterThan(SYNC_LIMIT_MILLISECONDS - EARLY_MILLISECONDS);
    expect(waited).toBeLessThan(SYNC_LIMIT_MILLISECONDS + LATE_MILLISECONDS);
    expect(await bytesOnDisk(target)).toBeLessThan(COPY_DATA_LIMIT_BYTES);
    expect(await markerOn(target)).toBe('before');
    expect(await machine.page()).toMatchObject({ boot_id: before['boot_id'], marker: 'after' });
    await expectWriting();
    await expectWholeGuest(least, most);
  });

  /** Checks that the copy boots, that its file system recovers, and that it has everything written up to one moment. */
  async function expectWholeGuest(least: number, most: number): Promise<void> {
    const other = folderOf(machine.host, '0b7e5c1a-9d7f-4a57-8d3b-5f1f6f0c0007');
    const otherPort = await freePort();
    const otherPlan = planFor('amd64', otherPort);
    await machine.driver.create(other, otherPlan, { ...base, path: target });
    await machine.driver.start(other, otherPlan);
    expect(await page(otherPort)).toMatchObject({ boots: '2', marker: 'before' });
    const text = await tell(otherPort, 'numbers');
    await machine.driver.delete(other);
    expect(text).toContain('recovery complete');
    const numbers = (text.match(/^\d+$/gm) ?? []).map(Number).toSorted((a, b) => a - b);
    const last = numbers.at(-1) ?? 0;
    // On a busy machine the guest may have written fewer than 19 numbers.
    const shown = Math.min(19, last);
    expect(numbers.slice(-19)).toEqual(Array.from({ length: shown }, (_, index) => last - shown + 1 + index));
    expect(last).toBeGreaterThan(0);
    expect(last).toBeGreaterThanOrEqual(least);
    expect(last).toBeLessThanOrEqual(most + 1);
  }

  it('has file systems that the guest agent froze, and thawed', async () => {
    await machine.tell('agent=0');
    expect(await copy()).toEqual({ consistency: 'FileSystem', virtualSizeBytes: COPY_DISK_BYTES });
    expect(await freezes()).toEqual(['freeze', 'thaw']);
    expect(await isClean(target)).toBe(true);
    await expectWriting();
  });

  it('that is cancelled while the guest freezes leaves it thawed', async () => {
    await machine.tell('agent=2');
    const abort = new AbortController();
    const end = copy(undefined, {
      to: join(machine.host.directory, 'copies', 'other'),
      signal: abort.signal,
    });
    await waitFor('the freeze', mayBeFrozen);
    abort.abort(new Error('not wanted'));
    await expect(end).rejects.toThrow('not wanted');
    expect(await freezes()).toEqual(['freeze', 'thaw', 'freeze', 'thaw']);
    await expectWriting();
  });

  it('goes on without a freeze that takes too long, and ends the freeze', async () => {
    await machine.tell('agent=10');
    expect(await copy()).toMatchObject({ consistency: 'Crash' });
    expect(await isClean(target)).toBe(false);
    expect((await freezes()).slice(4)).toEqual(['freeze', 'thaw']);
    await expectWriting();
    await machine.tell('agent=1');
  });

  it('that is cancelled leaves nothing', async () => {
    const abort = new AbortController();
    const { end } = await begun({ signal: abort.signal });
    abort.abort(new Error('not wanted'));
    expect(await end).toMatchObject({ message: 'not wanted' });
    await expectNothingLeft();
    await expectWriting();
  });

  it('is removed when the agent died in its middle, also with a frozen guest', async () => {
    await killedAgent(underWay);
    expect(await machine.state()).toMatchObject({ kind: 'running', guestStarted: true });
    await expectNothingLeft();
    await expectWriting();
    // The agent must die before it notes the thaw. Otherwise that moment can be over between two looks of the test.
    await inGuest(`echo '${SLOW_THAW}' >>${HOOK}`);
    const before = await freezes();
    // The note is written first. So an agent that is killed in between thaws a guest that was never frozen.
    await killedAgent(async () => (await mayBeFrozen()) && (await freezes()).length > before.length);
    expect(await machine.state()).toMatchObject({ kind: 'running', guestStarted: true });
    await expectNothingLeft();
    const [frozen, ...thaws] = (await freezes()).slice(before.length);
    expect(frozen).toBe('freeze');
    // The killed agent may have thawed the guest and not noted it. The next agent then thaws it once more.
    expect([['thaw'], ['thaw', 'thaw']]).toContainEqual(thaws);
    await inGuest(`sed '$d' ${HOOK} >/var/run/hook && cat /var/run/hook >${HOOK}`);
    await expectWriting();
    expect(await copy()).toMatchObject({ consistency: 'FileSystem' });
  });

  it('waits for another copy of the same machine', async () => {
    const order: string[] = [];
    const first = copy(() => order.push('first begins')).then(() => order.push('first ends'));
    const to = join(machine.host.directory, 'copies', 'other');
    await copy(() => order.push('second begins'), { to });
    await first;
    expect(order).toEqual(['first begins', 'first ends', 'second begins']);
  });

  it('of a suspended machine looks as after a loss of power, and a resume waits for it', async () => {
    const before = await machine.page();
    await machine.driver.suspend(machine.folder);
    const order: string[] = [];
    const { end } = await begun();
    const copied = end.finally(() => order.push('the copy ends'));
    await machine.driver.resume(machine.folder, machine.plan);
    order.push('it runs');
    expect(order).toEqual(['the copy ends', 'it runs']);
    expect(await copied).toEqual({ consistency: 'Crash', virtualSizeBytes: COPY_DISK_BYTES });
    expect(await machine.page()).toMatchObject({ boot_id: before['boot_id'] });
    await expectWriting();
  });

  it('fails if the machine is stopped meanwhile', async () => {
    const { end } = await begun();
    await machine.stop(0);
    expect(await machine.state()).toEqual({ kind: 'stopped' });
    expect(await end).toMatchObject({ name: 'ReasonedError', reason: 'Interrupted' });
    await expectNothingLeft();
  });

  it('of a stopped machine continues at a start, which waits, and after the death of an agent', async () => {
    await machine.stop(0);
    await killedAgent(underWay);
    expect(await reader()).toBeDefined();
    await machine.start();
    await expectNothingLeft();
    await machine.stop(0);
    const { end } = await begun();
    const started = machine.start();
    expect(await end).toEqual({ consistency: 'Stopped', virtualSizeBytes: COPY_DISK_BYTES });
    await started;
    expect(await machine.state()).toMatchObject({ kind: 'running' });
    expect(await markerOn(target)).toBe('after');
    expect(await bytesOnDisk(target)).toBeLessThan(COPY_DATA_LIMIT_BYTES);
  });

  it('fails if the machine is deleted meanwhile', async () => {
    const { end } = await begun();
    await machine.driver.delete(machine.folder);
    expect(await end).toMatchObject({ name: 'ReasonedError', reason: 'Interrupted' });
    await expect(access(target)).rejects.toThrow('ENOENT');
    expect(await machine.driver.list()).toEqual([]);
    expect(await copy().catch((error: unknown) => error)).toMatchObject({ reason: 'NoMachine' });
  });

  it('does not read the files that the disk names', async () => {
    const secret = join(machine.host.directory, 'secret');
    await writeFile(secret, 'secret'.padEnd(4096));
    await machine.driver.create(
      machine.folder,
      { guest: { ...machine.plan.guest, diskSizeBytes: 4096 } },
      undefined,
    );
    const disk = join(machine.folder.path, 'disk.qcow2');
    execFileSync('qemu-img', ['create', '-q', '-f', 'qcow2', '-F', 'raw', '-b', secret, disk]);
    expect(await copy()).toEqual({ consistency: 'Stopped', virtualSizeBytes: 4096 });
    expect(await readFile(target)).toEqual(Buffer.alloc(4096));
    const dataFile = `data_file=${secret},data_file_raw=on`;
    execFileSync('qemu-img', ['create', '-q', '-f', 'qcow2', '-o', dataFile, disk, '4096']);
    await writeFile(secret, 'secret'.padEnd(4096));
    await expect(copy()).rejects.toThrow('names a data file');
    await expect(machine.start()).rejects.toThrow('names a data file');
  });

  it('of a machine without a disk is refused', async () => {
    await machine.create(undefined);
    expect(await copy().catch((error: unknown) => error)).toMatchObject({
      name: 'ReasonedError',
      reason: 'NoDisk',
    });
  });
});
