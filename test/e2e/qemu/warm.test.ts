/** Starts from the memory of an image, with real guests. */
import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { constants, link, readdir, readFile, readlink, rm, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type MemoryFiles, SECTOR_BYTES } from '../../../agent/disks/disk.ts';
import type { MachineFolder, VmLaunchPlan } from '../../../agent/drivers/driver.ts';
import { findByArgument } from '../../../agent/processes/process.ts';
import { freePort } from '../../../hack/cluster/ports.ts';
import { isMissing, undefinedIf } from '../../../base/errors.ts';
import { waitFor } from '../../../hack/wait.ts';
import {
  expectDifferent,
  expectEqual,
  expectRightClock,
  IDENTITY_SCRIPT,
  LARGER_SYSTEM,
  OWN_PARTS,
  readIdentity,
  SHARED_PARTS,
} from '../../worlds/guestidentity.ts';
import {
  BOOT_DEADLINE_MILLISECONDS,
  folderOf,
  guestBase,
  page,
  planFor,
  TestMachine,
  tell,
} from '../../worlds/qemuguest.ts';
import { inGuest as runInGuest, namedPlan, saveWithMemory, type WarmImage } from '../../worlds/warmimage.ts';
import type { WarmJob } from './warmagent.ts';

/** Time in which a start ends whose machine is deleted. It is short of the time limits of a guest agent, on a busy machine too. */
const PROMPT_MILLISECONDS = 3_000;
/** Command that writes to half of the memory of a guest. The rest is in use. */
const FILL = 'dd if=/dev/urandom of=/filled bs=1M count=30; dd if=/dev/zero of=/dev/null bs=30M count=1';
/** Bits of the flags of an open file that say how it was opened. */
const ACCESS_BITS = 0o3;
/** Room above the own memory of a hypervisor: less than the memory of the image, which it reads as a whole. */
const READ_ROOM_BYTES = 32 * 1024 ** 2;
/** Names of files that a save makes in the folder of a machine, and that must be gone after it. */
const LEFT = ['image-memory', 'memory', 'copy'];

/** Size of a disk that is larger than that of the image. */
const LARGER_BYTES = 96 * 1024 ** 2;
describe('machines from the memory of an image', { timeout: 3 * BOOT_DEADLINE_MILLISECONDS }, () => {
  let source: TestMachine;
  let image: WarmImage;

  beforeAll(async () => {
    source = await TestMachine.make();
    await source.create(await guestBase('amd64'));
    await source.start();
    await source.page();
    expect(await source.tell('agent=0')).toBe('listening\n');
    expect(await source.tell('marker=template')).toBe('saved\n');
    // What a hook prints must not be taken for the answer of the renewal.
    const hook = String.raw`printf '#!/bin/sh\necho "renewed by a hook"\n' >/etc/berth/renew.d/says && chmod 755 /etc/berth/renew.d/says`;
    expect(await inGuest(source.folder, hook)).toBe('');
    expect(await inGuest(source.folder, LARGER_SYSTEM)).toBe('');
    for (const name of ['20-second', '10-first']) {
      await addHook(`save.d/${name}`, `echo ${name} >>/prepared; hostname >>/prepared`);
    }
    image = await save('image');
  }, 300_000);

  afterAll(async () => await source.host.end());

  async function save(name: string): Promise<WarmImage> {
    return await saveWithMemory(source.host, source.folder, name);
  }

  /** Makes a machine from the image, with a name and a MAC address of its own. */
  async function clone(
    number: number,
    diskSizeBytes?: number,
  ): Promise<{ folder: MachineFolder; plan: VmLaunchPlan; port: number }> {
    const port = await freePort();
    const plan = namedPlan(
      planFor('amd64', port, diskSizeBytes),
      `clone-${number}`,
      `52:54:00:00:00:0${number}`,
    );
    const folder = folderOf(source.host, `clone-${number}-${process.pid}`);
    await source.driver.create(folder, plan, image);
    return { folder, plan, port };
  }

  async function inGuest(folder: MachineFolder, script: string): Promise<string> {
    return await runInGuest(source.driver, folder, script);
  }

  /** Returns the SSH host keys of a guest by their types. The first one is there at once, and the others soon after the start. */
  async function hostKeys(folder: MachineFolder): Promise<Record<string, string>> {
    const read = async () => await inGuest(folder, 'cd /etc/ssh && grep -H . ssh_host_*');
    expect(await read()).toMatch(/^ssh_host_ed25519_key:[0-9a-f-]{36}$/m);
    const all = await waitFor('the key of the type rsa', async () => {
      const text = await read();
      return text.includes('rsa') && text;
    });
    return Object.fromEntries(
      all.split('\n').map((line) => line.replace(/^ssh_host_(.*)_key:/, '$1 ').split(' ')),
    ) as Record<string, string>;
  }

  /** Makes a program in the folder /etc/berth of the saved guest. */
  async function addHook(path: string, script: string): Promise<void> {
    const file = `/etc/berth/${path}`;
    const lines = `mkdir -p ${dirname(file)}; cat >${file} <<'END'\n#!/bin/sh\n${script}\nEND\nchmod 755 ${file}`;
    expect(await inGuest(source.folder, lines)).toBe('');
  }

  /** Checks that the saved guest goes on, and that neither files nor processes of the save are left. */
  async function expectNothingLeft(): Promise<void> {
    expect(await source.page()).toMatchObject({ boots: '1', marker: 'template' });
    const files = await readdir(source.folder.path);
    expect(files.filter((name) => LEFT.includes(name))).toEqual([]);
    expect(await findByArgument(`guest=berth-${source.folder.uid}-memory`)).toBeUndefined();
  }

  it('the saved guest goes on without a run of its hooks, and nothing of the save is left', async () => {
    await expectNothingLeft();
    expect(await inGuest(source.folder, 'ls /prepared 2>&1 || ls /etc/berth/save.d')).toContain('10-first');
  });

  it('a save hook that fails is named, and the image is not made', async () => {
    await addHook('save.d/30-fails', 'printf "to the cache:\\033[31m"; echo "no way" >&2; exit 7');
    await expect(save('failed')).rejects.toMatchObject({
      reason: 'SaveHookFailed',
      message: 'The save hook /etc/berth/save.d/30-fails ended with code 7: to the cache: [31mno way',
    });
    expect(await inGuest(source.folder, 'rm /etc/berth/save.d/30-fails')).toBe('');
    await expectNothingLeft();
    expect((await readdir(source.host.directory)).filter((name) => name.startsWith('failed'))).toEqual([]);
  });

  it('an image from which no guest can be renewed is not made', async () => {
    expect(await inGuest(source.folder, 'mv /etc/berth/reseed /etc/berth/away')).toBe('');
    await expect(save('failed')).rejects.toMatchObject({
      reason: 'MemoryNotSaved',
      message: expect.stringMatching(
        /^A VM does not start from the memory: .*nor \/etc\/berth\/reseed/,
      ) as string,
    });
    expect(await inGuest(source.folder, 'mv /etc/berth/away /etc/berth/reseed')).toBe('');
    await expectNothingLeft();
  });

  it('a save whose agent dies while a clone runs leaves nothing, and the saved guest goes on', async () => {
    await addHook('save.d/40-waits', 'sleep 600');
    const at = (end: string): string => join(source.host.directory, `killed.${end}`);
    await source.driver.close();
    const { folder } = source;
    const agent = startAgent({
      dataDirectory: source.host.directory,
      folder,
      copy: { target: at('raw'), memory: { ram: at('ram'), state: at('state') } },
    });
    await waitFor('the hooks of the clone', async () => {
      const state = await undefinedIf(
        isMissing,
        readFile(join(folder.path, 'image-memory/state.json'), 'utf8'),
      );
      return state?.includes('"process"');
    });
    await kill(agent);
    await source.host.restartAgent();
    await waitFor('the clone to end', async () => {
      await source.driver.inspect(folder);
      return (await findByArgument(`guest=berth-${folder.uid}-memory`)) === undefined;
    });
    await expectNothingLeft();
    expect(await inGuest(folder, 'rm /etc/berth/save.d/40-waits')).toBe('');
    expect((await readdir(source.host.directory)).filter((name) => name.startsWith('killed'))).toEqual([]);
  });

  it('two that start at once continue the saved guest, and are computers of their own', async () => {
    const clones = [await clone(1), await clone(2, LARGER_BYTES)] as const;
    await Promise.all(
      clones.map(async ({ folder, plan }) => await source.driver.startFromMemory(folder, plan, image.memory)),
    );
    const reports = await Promise.all(
      clones.map(async ({ folder }) => ({
        identity: readIdentity(await inGuest(folder, IDENTITY_SCRIPT)),
        boots: await inGuest(folder, 'cat /var/run/boots'),
        hosts: await inGuest(folder, 'cat /etc/hosts'),
        sectors: await inGuest(folder, 'cat /sys/block/vda/size'),
        keys: await hostKeys(folder),
        generation: await generationOf(folder),
        prepared: await inGuest(folder, 'echo $(cat /prepared)'),
      })),
    );
    const prepared = '10-first berth-guest 20-second berth-guest';
    const sectors = [image.virtualSizeBytes, LARGER_BYTES].map((bytes) => String(bytes / SECTOR_BYTES));
    expect(reports).toMatchObject([
      { identity: { hostName: 'clone-1', left: '' }, boots: '1', prepared, sectors: sectors[0] },
      { identity: { hostName: 'clone-2', left: '' }, boots: '1', prepared, sectors: sectors[1] },
    ]);
    expect(reports[0]?.hosts).toBe(
      '127.0.0.1 localhost\n127.0.1.1 clone-1.example clone-1\n10.0.0.1 berth-guest-of-others',
    );
    const keys = reports.flatMap((report) => Object.entries(report.keys));
    expect(keys.map(([name]) => name)).toEqual(['ed25519', 'rsa', 'ed25519', 'rsa']);
    expect(new Set(keys.map(([, key]) => key)).size).toBe(keys.length);
    const guests = [
      readIdentity(await inGuest(source.folder, IDENTITY_SCRIPT)),
      ...reports.map(({ identity }) => identity),
    ];
    expect(guests[0]?.left).toContain('random-seed');
    expectDifferent(guests, OWN_PARTS);
    // The network of each machine is one of its own, so equal addresses disturb nobody.
    expectEqual(guests, [...SHARED_PARTS, 'mac', 'address']);
    const generations = [await generationOf(source.folder), ...reports.map(({ generation }) => generation)];
    expect(new Set([undefined, ...generations]).size).toBe(4);
    for (const { folder } of clones) {
      await expectRightClock(async (script) => await inGuest(folder, script));
    }
    for (const { port } of clones) {
      expect(await page(port)).toMatchObject({ boots: '1', marker: 'template' });
    }
    // Each writes to its own disk and memory alone.
    expect(await tell(clones[0].port, 'marker=first')).toBe('saved\n');
    expect(await page(clones[1].port)).toMatchObject({ marker: 'template' });
    await source.driver.suspend(clones[0].folder);
    await source.driver.resume(clones[0].folder, clones[0].plan);
    expect(await page(clones[0].port)).toMatchObject({ boots: '1', marker: 'first' });
    for (const { folder } of clones) {
      await source.driver.delete(folder);
    }
  });

  async function generationOf({ path }: MachineFolder): Promise<string | undefined> {
    return /"generation":"([^"]*)"/.exec(await readFile(join(path, 'state.json'), 'utf8'))?.[1];
  }

  it('cannot change the memory of the image: by writes, an image of their own, a crash, a suspend, a revert, or its removal while they run', async () => {
    const { driver } = source;
    const removed = { ...image.memory, ram: join(source.host.directory, 'removed') };
    await link(image.memory.ram, removed.ram);
    const before = await digestOf(image.memory.ram);
    const clones = [await clone(3), await clone(9)] as const;
    for (const { folder, plan } of clones) {
      await driver.startFromMemory(folder, plan, removed);
    }
    await expectPrivate(clones[0].folder, removed.ram);
    await rm(removed.ram);
    for (const { folder, port } of clones) {
      await page(port);
      await inGuest(folder, FILL);
    }
    const [{ folder, plan, port }, other] = clones;
    await saveWithMemory(source.host, other.folder, 'again');
    await driver.suspend(folder);
    await driver.resume(folder, plan);
    await inGuest(folder, FILL);
    const state = await driver.inspect(other.folder);
    process.kill(state.kind === 'running' ? state.pid : 0, 'SIGKILL');
    await waitFor('the crash', async () => (await driver.inspect(other.folder)).kind === 'exited');
    await driver.revert(folder, plan, image);
    await driver.startFromMemory(folder, plan, image.memory);
    expect(await page(port)).toMatchObject({ boots: '1', marker: 'template' });
    expect(await digestOf(image.memory.ram)).toBe(before);
    for (const one of clones) {
      await driver.delete(one.folder);
    }
  });

  /** Checks how the hypervisor has the memory of the image. An old QEMU keeps the file open for writing. */
  async function expectPrivate(folder: MachineFolder, ram: string): Promise<void> {
    const state = await source.driver.inspect(folder);
    const process = `/proc/${state.kind === 'running' ? state.pid : 0}`;
    const maps = (await readFile(`${process}/maps`, 'utf8')).split('\n').filter((line) => line.endsWith(ram));
    expect(maps.map((line) => line.split(' ')[1])).toEqual(['rw-p']);
    const command = await readFile(`${process}/cmdline`, 'utf8');
    const access = command.includes('readonly=on,rom=off') ? constants.O_RDONLY : constants.O_RDWR;
    const files = await readdir(`${process}/fd`);
    const targets = await Promise.all(
      files.map(async (fd) => await undefinedIf(isMissing, readlink(`${process}/fd/${fd}`))),
    );
    const opened = files.filter((_, index) => targets[index] === ram);
    for (const fd of opened) {
      const flags = /flags:\s*(\d+)/.exec(await readFile(`${process}/fdinfo/${fd}`, 'utf8'))?.[1] ?? '';
      expect(Number.parseInt(flags, 8) & ACCESS_BITS).toBe(access);
    }
    expect(opened).toHaveLength(1);
  }

  it('are not killed at their limit for memory of the image that they only read', async () => {
    const { driver } = source;
    const { folder, plan, port } = await clone(2);
    await driver.startFromMemory(folder, plan, image.memory);
    const before = await page(port);
    const state = await driver.inspect(folder);
    const pid = state.kind === 'running' ? state.pid : 0;
    // The group that first reads the file is charged for its part in the cache, which is now nobody's.
    execFileSync('dd', [`of=${image.memory.ram}`, 'oflag=nocache', 'conv=notrunc,fdatasync', 'count=0'], {
      stdio: 'pipe',
    });
    const [, kibibytes] = /^RssAnon:\s*(\d+) kB$/m.exec(await readFile(`/proc/${pid}/status`, 'utf8')) ?? [];
    const { limit, reached } = await memoryLimitFiles(pid, folder);
    await writeFile(limit, String(Number(kibibytes) * 1024 + READ_ROOM_BYTES));
    // A snapshot with memory reads all of it.
    await driver.takeSnapshot(folder, 'reads', new AbortController().signal, { memory: true });
    expect(Number(/^(?:max )?(\d+)$/m.exec(await readFile(reached, 'utf8'))?.[1])).toBeGreaterThan(0);
    expect(await driver.inspect(folder)).toMatchObject({ kind: 'running', pid });
    expect((await page(port))['boot_id']).toBe(before['boot_id']);
    await driver.delete(folder);
  });

  /** Returns the files with the limit of a machine's memory, and with the number of times that it reached the limit, in either version of control groups. */
  async function memoryLimitFiles(
    pid: number,
    { uid }: MachineFolder,
  ): Promise<{ limit: string; reached: string }> {
    const groups = (await readFile(`/proc/${pid}/cgroup`, 'utf8')).split('\n').map((line) => line.split(':'));
    const own = groups.filter(([, , path]) => path?.endsWith(`/berth/${uid}`));
    const legacy = own.find(([, controllers]) => controllers?.split(',').includes('memory'));
    const [, controllers = '', path = ''] = legacy ?? own.find(([, names]) => names === '') ?? [];
    expect(path, 'the machine has a group of its own').not.toBe('');
    const group = join('/sys/fs/cgroup', controllers, path);
    const [limit, reached] =
      legacy === undefined ? ['memory.max', 'memory.events'] : ['memory.limit_in_bytes', 'memory.failcnt'];
    return { limit: join(group, limit), reached: join(group, reached) };
  }

  it('with another size or other devices are refused, and boot from the disk; so are those that have run', async () => {
    const { folder, plan, port } = await clone(4);
    const larger = { ...plan, memoryBytes: 2 * plan.memoryBytes };
    await expect(source.driver.startFromMemory(folder, larger, image.memory)).rejects.toMatchObject({
      reason: 'SizeDiffers',
    });
    const withScreen = {
      ...plan,
      guest: { ...plan.guest, vm: { ...plan.guest.vm, vnc: { enabled: true } } },
    };
    await expect(source.driver.startFromMemory(folder, withScreen, image.memory)).rejects.toMatchObject({
      reason: 'KeyDiffers',
      message: 'The list of devices differs from the saved VM',
    });
    await source.driver.start(folder, larger);
    expect(await page(port)).toMatchObject({ boots: '2', marker: 'template' });
    // The guest has written to the disk by now.
    await source.driver.stop(folder, { graceMilliseconds: 0 });
    await expect(source.driver.startFromMemory(folder, plan, image.memory)).rejects.toMatchObject({
      reason: 'NotSupported',
      message: 'The VM has run before, so its disk no longer fits the memory',
    });
    await source.driver.delete(folder);
  });

  it('whose memory files are missing or cut are refused, and leave no file', async () => {
    const { folder, plan } = await clone(7);
    const { directory } = source.host;
    const cut = join(directory, 'cut');
    await writeFile(cut, 'too short');
    const [before, own] = [await readdir(directory), await readdir(folder.path)];
    const refused = { name: 'WarmStartRefused', reason: 'NotSupported' };
    for (const other of [
      { ram: join(directory, 'away') },
      { ram: cut },
      { state: join(directory, 'away') },
    ]) {
      const memory = { ...image.memory, ...other };
      await expect(source.driver.startFromMemory(folder, plan, memory)).rejects.toMatchObject(refused);
    }
    expect([await readdir(directory), await readdir(folder.path)]).toEqual([before, own]);
    const wrong = { ...image.memory, state: cut };
    await expect(source.driver.startFromMemory(folder, plan, wrong)).rejects.toMatchObject({
      reason: 'RenewalFailed',
      message: expect.stringContaining('Not a migration stream') as string,
    });
    expect(await source.driver.inspect(folder)).toEqual({ kind: 'stopped' });
    expect(await readdir(folder.path)).not.toContain('migration.sock');
    await source.driver.delete(folder);
    await rm(cut);
  });

  it('whose guest cannot be renewed boot from a new disk', async () => {
    await addHook('renew.d/late', '[ "$(hostname)" = berth-proof ]');
    const broken = await save('broken');
    const { folder, plan, port } = await clone(5);
    await expect(source.driver.startFromMemory(folder, plan, broken.memory)).rejects.toMatchObject({
      reason: 'RenewalFailed',
    });
    expect(await source.driver.inspect(folder)).toEqual({ kind: 'stopped' });
    await source.driver.start(folder, plan);
    expect(await page(port)).toMatchObject({ boots: '2' });
    await source.driver.delete(folder);
  });

  it('whose agent dies before they are renewed end, and start again from a new disk, from memory or not', async () => {
    await addHook(
      'renew.d/late',
      '[ "$(hostname)" = berth-proof ] || { echo late-hook >/dev/console; sleep 600; }',
    );
    const slow = await save('slow');
    await expectPromptEnd(slow.memory);
    const [booted, warm] = [await clone(6), await clone(7)];
    for (const [{ folder, plan }, moment] of [
      [booted, 'the hypervisor has started'],
      [warm, 'the hooks run'],
    ] as const) {
      await dieInRenewal({ dataDirectory: source.host.directory, folder, plan, memory: slow.memory }, moment);
      // Stands for what the guest has written until then. No machine can start from it.
      await writeFile(join(folder.path, 'disk.qcow2'), 'written by the guest');
    }
    await source.driver.start(booted.folder, booted.plan);
    expect(await page(booted.port)).toMatchObject({ boots: '2' });
    await source.driver.startFromMemory(warm.folder, warm.plan, image.memory);
    expect(await page(warm.port)).toMatchObject({ boots: '1', marker: 'template' });
    for (const { folder } of [booted, warm]) {
      await source.driver.delete(folder);
    }
  });

  /** Checks that a start whose machine is deleted during the renewal ends soon, and leaves a machine that is off. */
  async function expectPromptEnd(memory: MemoryFiles): Promise<void> {
    const { folder, plan } = await clone(8);
    const deleted = new AbortController();
    const starting = source.driver.startFromMemory(folder, plan, memory, deleted.signal);
    await waitFor('the guest to be renewed', async () => (await inGuest(folder, 'hostname')) === 'clone-8');
    const began = performance.now();
    deleted.abort(new Error('the machine is deleted'));
    await expect(starting).rejects.toThrow('the machine is deleted');
    expect(performance.now() - began).toBeLessThan(PROMPT_MILLISECONDS);
    expect(await source.driver.inspect(folder)).toEqual({ kind: 'stopped' });
    await source.driver.delete(folder);
  }

  /** Lets an agent begin to renew a machine, kills the agent, and waits until the next agent has ended the machine. */
  async function dieInRenewal(
    job: WarmJob & { plan: VmLaunchPlan },
    moment: 'the hypervisor has started' | 'the hooks run',
  ): Promise<void> {
    const { folder } = job;
    const agent = startAgent(job);
    await waitFor('the guest to be renewed', async () => {
      const state = await readFile(join(folder.path, 'state.json'), 'utf8');
      const isBegun = state.includes('"renewing":true') && state.includes('"process"');
      return isBegun && (moment !== 'the hooks run' || (await consoleOf(folder)).includes('late-hook'));
    });
    await kill(agent);
    // On a busy host, the hypervisor can be too slow for an inspection, and the next one ends it.
    await waitFor('the hypervisor to end', async () => {
      return (await source.driver.inspect(folder)).kind === 'stopped';
    });
  }
});

async function digestOf(path: string): Promise<string> {
  return createHash('sha256')
    .update(await readFile(path))
    .digest('hex');
}

/** Returns all output of a guest's console. */
async function consoleOf({ path }: MachineFolder): Promise<string> {
  const files = (await readdir(path)).filter((name) => /^serial\..*\.log$/.test(name));
  return (await Promise.all(files.map(async (name) => await readFile(join(path, name), 'utf8')))).join('');
}

function startAgent(job: WarmJob): ChildProcess {
  const script = new URL('./warmagent.ts', import.meta.url).pathname;
  return spawn(process.execPath, [script, JSON.stringify(job)], { stdio: 'ignore' });
}

async function kill(agent: ChildProcess): Promise<void> {
  agent.kill('SIGKILL');
  await once(agent, 'exit');
}
