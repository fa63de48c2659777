/** Snapshots that stay with a machine, with a real guest that writes all the time. */
import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { constants } from 'node:fs';
import { appendFile, mkdir, readdir, readFile, readlink, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest';
import type { BaseImage } from '../../../agent/disks/disk.ts';
import { unlessMissing } from '../../../agent/disks/diskio.ts';
import type { DiskSnapshot } from '../../../agent/drivers/driver.ts';
import { readMachineFile } from '../../../agent/drivers/qemu/state.ts';
import { pause } from '../../../base/time.ts';
import { waitFor } from '../../../hack/wait.ts';
import { makeCopyDisk, markerOn } from '../../fixtures/copydisk.ts';
import { mountTmpfs, whyNoTmpfs } from '../../support/tmpfs.ts';
import { unless } from '../../support/unless.ts';
import { BOOT_DEADLINE_MILLISECONDS, guestBase, TestMachine } from '../../worlds/qemuguest.ts';
import { inGuest as runInGuest } from '../../worlds/warmimage.ts';
import { BEGINS, type SnapshotJob } from './snapshotagent.ts';

/** Times after the beginning of a snapshot at which its agent is killed. A snapshot takes about 100 ms here. */
const DEATHS_MILLISECONDS = [5, 25, 60, 120];
/** The same for one with memory: before the pause, in it, and while the files of the memory are made. It takes a second or two. */
const MEMORY_DEATHS_MILLISECONDS = [150, 450, 1_000];
/** Smallest size of the files with the memory of a guest. */
const LEAST_MEMORY_BYTES = 10 * 1024 ** 2;
/** Bits of the flags of an open file that say whether it can be read and written. */
const ACCESS_MODE = constants.O_RDONLY | constants.O_WRONLY | constants.O_RDWR;
const { signal } = new AbortController();

/** Returns the disks, layers and memories in the folder of a machine, and those that its state file names. */
async function filesOf({ folder }: TestMachine): Promise<{ found: string[]; named: string[] }> {
  const found = (await readdir(folder.path)).filter((name) => /\.qcow2$|memory/.test(name)).toSorted();
  const { disk = 'disk.qcow2', layers = [] } = (await readMachineFile(folder.path)) ?? {};
  const ofLayers = layers.flatMap(({ file, snapshot: { memory } = {} }) =>
    memory === undefined ? [file] : [file, memory.ram, memory.state],
  );
  return { found, named: [disk, ...ofLayers].toSorted() };
}

/** Checks that nobody but root could write to a layer, and that the hypervisor has none open for writing. */
async function expectSealed({ folder }: TestMachine, pid: number): Promise<void> {
  const { layers = [] } = (await readMachineFile(folder.path)) ?? {};
  const paths = layers.map(({ file }) => join(folder.path, file));
  for (const path of process.getuid?.() === 0 ? paths : []) {
    const { uid, gid, mode } = await stat(path);
    expect([uid, gid, mode & 0o777]).toEqual([0, 0, 0o444]);
  }
  const writable: string[] = [];
  for (const number of await readdir(`/proc/${pid}/fd`)) {
    const path = (await unlessMissing(readlink(`/proc/${pid}/fd/${number}`))) ?? '';
    if (paths.includes(path)) {
      const text = await readFile(`/proc/${pid}/fdinfo/${number}`, 'utf8');
      const flags = Number.parseInt(/^flags:\s*(\d+)/m.exec(text)?.[1] ?? '', 8);
      writable.push(...((flags & ACCESS_MODE) === constants.O_RDONLY ? [] : [path]));
    }
  }
  expect(writable).toEqual([]);
}

describe('snapshots of a machine', { timeout: 4 * BOOT_DEADLINE_MILLISECONDS }, () => {
  let machine: TestMachine;
  let base: BaseImage;
  /** Numbers that the guest had certainly written when a snapshot began, by the uid of the snapshot. */
  const least = new Map<string, number>();

  beforeAll(async () => {
    machine = await TestMachine.make();
    base = await makeCopyDisk((await guestBase('amd64')).path, join(machine.host.directory, 'base.raw'));
    await machine.create(base);
    await machine.start();
    await machine.page();
    expect(await machine.tell('write')).toBe('writing\n');
    expect(await machine.tell('agent=0')).toBe('listening\n');
  }, 300_000);

  afterAll(async () => await machine.host.end());

  async function number(): Promise<number> {
    return Number(await machine.tell('number'));
  }

  async function take(uid: string): Promise<void> {
    expect(await machine.tell(`marker=${uid}`)).toBe('saved\n');
    least.set(uid, await number());
    const taken = await machine.driver.takeSnapshot(machine.folder, uid, signal);
    expect(taken).toMatchObject({ consistency: 'FileSystem', sizeBytes: base.virtualSizeBytes });
  }

  /** Resets the disk, boots, and checks that the guest finds what it had written when the snapshot was taken. */
  async function revert(uid: string): Promise<void> {
    await machine.driver.revert(machine.folder, machine.plan, base, uid);
    await machine.start();
    expect(await machine.page()).toMatchObject({ marker: uid });
    await expectWritten(least.get(uid) ?? 0);
  }

  /** Checks that no number up to the last one is missing, and that the last one is at least `atLeast`. */
  async function expectWritten(atLeast: number): Promise<void> {
    const text = await machine.tell('numbers');
    const numbers = (text.match(/^\d+$/gm) ?? []).map(Number).toSorted((a, b) => a - b);
    const last = numbers.at(-1) ?? 0;
    expect(last).toBeGreaterThanOrEqual(atLeast);
    expect(numbers.slice(-5)).toEqual([4, 3, 2, 1, 0].map((less) => last - less));
  }

  /** Checks that the machine has this number of files for its disk and snapshots, and that its state file names each of them. */
  async function expectFiles(count: number): Promise<void> {
    const { found, named } = await filesOf(machine);
    expect([found, found.length]).toEqual([named, count]);
  }

  /** Copies the disk of a snapshot while the guest runs, and checks that the copy has the marker of that moment. */
  async function expectCopied(uid: string): Promise<void> {
    const target = join(machine.host.directory, 'copy-of-snapshot.raw');
    const options = { target, snapshot: uid, signal, onProgress: () => undefined };
    const copy = await machine.driver.copyDisk(machine.folder, options);
    expect(copy).toEqual({ consistency: 'FileSystem', virtualSizeBytes: base.virtualSizeBytes });
    expect(await markerOn(target)).toBe(uid);
    expect(await machine.driver.copyBytes(machine.folder, uid)).toBeGreaterThan(0);
    const missing = machine.driver.copyDisk(machine.folder, { ...options, snapshot: 'another' });
    await expect(missing).rejects.toMatchObject({ reason: 'SnapshotNotFound' });
  }

  it('ten in a chain of a guest that writes all the time: it runs on, and each that it is reverted to has what it had written', async () => {
    const before = (await machine.page())['boot_id'];
    for (let index = 0; index < 10; index += 1) {
      await take(`snapshot-${index}`);
    }
    expect(await machine.page()).toMatchObject({ boot_id: before, marker: 'snapshot-9' });
    await expectCopied('snapshot-3');
    // Back and forth, so that no disk is on the layer of the disk before it. The last one is the seventh.
    for (const index of [0, 9, 1, 8, 2, 7, 3, 5, 4, 6]) {
      await revert(`snapshot-${index}`);
    }
    const refused = machine.driver.revert(machine.folder, machine.plan, base, 'another');
    await expect(refused).rejects.toMatchObject({ reason: 'SnapshotNotFound' });
    expect(await machine.page()).toMatchObject({ marker: 'snapshot-6' });
    // The new disk is on the seventh layer. The last three are removed with their snapshots.
    await machine.driver.keepSnapshots(machine.folder, new Set(['snapshot-1']));
    await expectFiles(8);
  });

  it('whose layers are merged, by a machine that runs and while it is off, show what they showed, and the guest runs on', async () => {
    const { driver, folder } = machine;
    const { boot_id } = await machine.page();
    await driver.mergeLayers(folder, signal);
    // The disk, the layer directly under it, and the one of the snapshot that is left.
    await expectFiles(3);
    expect(await machine.page()).toMatchObject({ boot_id, marker: 'snapshot-6' });
    await revert('snapshot-1');
    expect(await machine.tell('agent=0')).toBe('listening\n');
    await take('later');
    await take('latest');
    await driver.keepSnapshots(folder, new Set(['latest']));
    // The process opened the lowest of these layers at its start, and froze the others.
    await expectSealed(machine, await machine.pid());
    expect(await driver.mergeLayers(folder, signal)).toBe(true);
    await expectFiles(2);
    await expectSealed(machine, await machine.pid());
    await take('again');
    await machine.stop(0);
    await driver.keepSnapshots(folder, new Set(['again']));
    await driver.mergeLayers(folder, signal);
    await expectFiles(2);
    await revert('again');
  });

  async function inGuest(script: string): Promise<string> {
    return await runInGuest(machine.driver, machine.folder, script);
  }

  async function takeWithMemory(uid: string): Promise<DiskSnapshot> {
    return await machine.driver.takeSnapshot(machine.folder, uid, signal, { memory: true });
  }

  it('with memory: the guest of that moment goes on with other random numbers, and boots if it cannot be renewed', async () => {
    const { driver, folder, plan } = machine;
    expect(await machine.tell('agent=0')).toBe('listening\n');
    expect(await machine.tell('marker=in-memory')).toBe('saved\n');
    expect(await inGuest('hostname kept; echo kept >/etc/machine-id; echo there >/proof')).toBe('');
    const { boot_id } = await machine.page();
    const taken = await takeWithMemory('memory');
    expect(taken).toMatchObject({ consistency: 'FileSystem', memory: { cpu: 1, bytes: plan.memoryBytes } });
    expect(taken.storageBytes).toBeGreaterThan(LEAST_MEMORY_BYTES);
    expect(await machine.page()).toMatchObject({ boot_id, marker: 'in-memory' });
    expect(await inGuest('mv /etc/berth/reseed /etc/berth/away')).toBe('');
    await expect(takeWithMemory('refused')).rejects.toMatchObject({
      reason: 'MemoryNotSaved',
      message: expect.stringMatching(/could not be renewed.*nor \/etc\/berth\/reseed/) as string,
    });
    const random = new Set<string>();
    for (const _ of ['once', 'twice']) {
      expect(await machine.tell('marker=later')).toBe('saved\n');
      await driver.revert(folder, plan, base, 'memory');
      await driver.startFromMemory(folder, plan, undefined);
      expect(await machine.page()).toMatchObject({ boot_id, marker: 'in-memory' });
      expect(await inGuest('cat /proof /etc/machine-id; hostname')).toBe('there\nkept\nkept');
      random.add(await inGuest('head -c 64 /dev/urandom | sha256sum'));
    }
    expect(random.size).toBe(2);
    const hook = String.raw`printf '#!/bin/sh\nexit 7\n' >/etc/berth/renew.d/fails && chmod 755 /etc/berth/renew.d/fails`;
    expect(await inGuest(hook)).toBe('');
    await takeWithMemory('unrenewed');
    expect(await machine.tell('marker=later')).toBe('saved\n');
    await driver.revert(folder, plan, base, 'unrenewed');
    const smaller = { ...plan, memoryBytes: plan.memoryBytes / 2 };
    await expect(driver.startFromMemory(folder, smaller, undefined)).rejects.toMatchObject({
      reason: 'SizeDiffers',
    });
    await expect(driver.startFromMemory(folder, plan, undefined)).rejects.toMatchObject({
      reason: 'RenewalFailed',
    });
    await machine.start();
    const booted = await machine.page();
    expect(booted).toMatchObject({ marker: 'in-memory' });
    expect(booted['boot_id']).not.toBe(boot_id);
    await driver.keepSnapshots(folder, new Set());
    const left = (await readdir(folder.path)).filter((name) => /memory/.test(name));
    expect(left).toEqual([]);
  });

  /** Kills an agent this long after it has begun a snapshot. The next agent finds the guest running, and takes another snapshot. */
  async function killAgent(name: string, milliseconds: number, memory: boolean): Promise<void> {
    await machine.driver.close();
    const uids = [`${name}-killed`];
    const job: SnapshotJob = { dataDirectory: machine.host.directory, folder: machine.folder, uids, memory };
    const script = new URL('./snapshotagent.ts', import.meta.url).pathname;
    const agent = spawn(process.execPath, [script, JSON.stringify(job)], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    const ended = once(agent, 'exit');
    let output = '';
    agent.stdout.on('data', (data: Buffer) => (output += data.toString()));
    await waitFor('a snapshot to begin', () => output.includes(BEGINS), { intervalMilliseconds: 1 });
    await pause(milliseconds);
    agent.kill('SIGKILL');
    await ended;
    await machine.host.restartAgent();
    expect(await machine.state()).toMatchObject({ kind: 'running', guestStarted: true });
    const taken = await machine.driver.takeSnapshot(machine.folder, `${name}-after`, signal, { memory });
    expect(taken.memory !== undefined).toBe(memory);
    const { found, named } = await filesOf(machine);
    expect(found).toEqual(named);
  }

  it('whose agent dies at any moment leave nothing but whole snapshots, and the guest loses nothing', async () => {
    await machine.tell('write');
    expect(await machine.tell('agent=0')).toBe('listening\n');
    for (const milliseconds of DEATHS_MILLISECONDS) {
      await killAgent(`disk-${milliseconds}`, milliseconds, false);
    }
    for (const milliseconds of MEMORY_DEATHS_MILLISECONDS) {
      await killAgent(`memory-${milliseconds}`, milliseconds, true);
    }
    const least = await number();
    await waitFor('the guest to write on', async () => (await number()) > least + 1);
    const { driver, folder, plan } = machine;
    const { boot_id } = await machine.page();
    await driver.revert(folder, plan, base, `memory-${MEMORY_DEATHS_MILLISECONDS.at(-1)}-after`);
    await driver.startFromMemory(folder, plan, undefined);
    expect(await machine.page()).toMatchObject({ boot_id });
    const kept = await number();
    await machine.stop(0);
    await machine.start();
    await machine.page();
    await expectWritten(kept);
  });
});

it('a snapshot on a full disk is refused, and nothing changes', unless(whyNoTmpfs()), async () => {
  const machine = await TestMachine.make({ diskSizeBytes: 1024 ** 3 });
  await mkdir(machine.folder.path, { recursive: true });
  mountTmpfs(machine.folder.path, 4);
  onTestFinished(async () => {
    execFileSync('umount', [machine.folder.path]);
    await machine.host.end();
  });
  await machine.create(undefined);
  const before = await readMachineFile(machine.folder.path);
  const filler = join(machine.folder.path, 'filler');
  const fill = async (): Promise<never> => {
    await appendFile(filler, Buffer.alloc(4096));
    return await fill();
  };
  await expect(fill()).rejects.toMatchObject({ code: 'ENOSPC' });
  const refused = machine.driver.takeSnapshot(machine.folder, 'full', signal);
  await expect(refused).rejects.toMatchObject({ reason: 'SnapshotNotTaken' });
  expect(await readMachineFile(machine.folder.path)).toEqual(before);
  await rm(filler);
  await machine.driver.takeSnapshot(machine.folder, 'room', signal);
  const { found, named } = await filesOf(machine);
  expect([found, found.length]).toEqual([named, 2]);
});
