/**
 * The whole life of a macOS-shaped image on an Apple host: pulled in the layout of Tart, cloned, run, suspended, resumed under the next agent,
 * saved as Berth's own artifact, pulled back and run. The program is the stand-in for `tart`, whose machines sleep. Nothing here ran with the
 * real program.
 */
import { randomBytes } from 'node:crypto';
import { readFile, truncate, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import type { BaseImage } from '../../agent/disks/disk.ts';
import { machineBeside, machineIn } from '../../agent/images/layouts/artifactmachine.ts';
import { publishDisk } from '../../agent/images/layouts/publish.ts';
import { Keyring } from '../../agent/images/oci/credentials.ts';
import { Publisher } from '../../agent/images/publisher.ts';
import { pushTart, tartImage } from '../fixtures/tart.ts';
import { listedCalls, unlistedCalls, usedCalls } from '../support/tartcalls.ts';
import { pull, PullWorld, registriesFor } from '../worlds/pulls.ts';
import { makeSoftnetProgram, readGuest, TartHost, tartPlan, writeGuest } from '../worlds/tarthost.ts';

const MIB = 1024 * 1024;
const DISK_BYTES = 2 * MIB;
/** Variables of a firmware, more than one chunk of an artifact, with zeros at their end as Apple's have them. */
const VARIABLES = Buffer.concat([Buffer.from('first'), Buffer.alloc(17 * MIB), Buffer.from('last')]);
const IDENTITY = { ecid: 'ZWNpZA==', hardwareModel: 'bW9kZWw=' };
const { signal } = new AbortController();
const onProgress = (): void => undefined;

let world: PullWorld;
let host: TartHost;

beforeAll(async () => {
  world = await PullWorld.start();
  host = new TartHost();
});

afterAll(async () => {
  await host?.[Symbol.asyncDispose]();
  await world?.[Symbol.asyncDispose]();
});

/** Pulls an image as the store of an agent has it. */
async function pulled(name: string): Promise<BaseImage> {
  const { disk } = await pull(world.repository(name), {
    folder: await world.folder(),
    architecture: 'arm64',
  });
  return { path: disk, digest: 'sha256:0', format: 'raw', virtualSizeBytes: DISK_BYTES };
}

it('a disk with its machine is pushed as `tart push` does, with the same parts and annotations', async () => {
  const folder = await world.folder();
  const path = join(folder, 'disk.raw');
  await writeFile(
    path,
    Buffer.concat([randomBytes(MIB), Buffer.alloc(MIB / 2, 'text'), Buffer.alloc(MIB / 2)]),
  );
  const machine = machineIn(folder);
  const theirs = await tartImage(path, {
    architecture: 'arm64',
    nvram: VARIABLES,
    machine: { os: 'darwin' },
  });
  await writeFile(machine.config, theirs.layers[0]?.bytes ?? '');
  await writeFile(machine.variables, VARIABLES);
  const repository = world.repository('as-tart');
  const registries = registriesFor(world.registry);
  const publisher = new Publisher({ registries, storageFolder: undefined });
  const keyring = Keyring.parse([world.registry.dockerConfigJson()]);
  const to = { reference: `${world.registry.host}/as-tart:latest`, keyring };
  const percents: number[] = [];
  const options = { signal, onProgress: (percent: number) => void percents.push(percent) };
  const { digest } = await publisher.push(to, { path, virtualSizeBytes: DISK_BYTES, machine }, options);
  await registries.close();
  expect(percents.at(-1)).toBe(100);
  const { manifest, digest: found } = await repository.resolve('latest', 'arm64', signal);
  expect(found).toBe(digest);
  expect(manifest.annotations).toEqual({
    ...theirs.annotations,
    'org.cirruslabs.tart.upload-time': expect.stringMatching(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/) as string,
  });
  const shapes = ({ mediaType, annotations }: { mediaType: string; annotations?: object }): object => ({
    mediaType,
    annotations,
  });
  expect(manifest.layers.map(shapes)).toEqual(theirs.layers.map(shapes));
  expect(manifest.config.mediaType).toBe(theirs.config.mediaType);
  const shown = await repository.blob(manifest.config, MIB, signal);
  expect(JSON.parse(shown.toString())).toEqual(JSON.parse(theirs.config.bytes.toString()));
  const back = await pulled('as-tart');
  expect((await readFile(back.path)).equals(await readFile(path))).toBe(true);
  expect((await readFile(machineIn(dirname(back.path)).variables)).equals(VARIABLES)).toBe(true);
  expect(await readFile(machineIn(dirname(back.path)).config)).toEqual(theirs.layers[0]?.bytes);
});

it('a macOS image is pulled, cloned, run, suspended, resumed under the next agent, saved, pulled back and run', async () => {
  const source = join(world.root, 'macos.raw');
  await writeFile(source, '');
  await truncate(source, DISK_BYTES);
  writeGuest(source, { boots: 0, boot_id: '', marker: 'as pushed' });
  await pushTart(world.registry, 'macos:latest', source, {
    architecture: 'arm64',
    nvram: VARIABLES,
    machine: { os: 'darwin', cpuCountMin: 1, ...IDENTITY },
  });
  const base = await pulled('macos');
  const plan = tartPlan('mac', 'MacOS');
  const folder = host.folder('mac');
  await host.driver.create(folder, plan, base);
  await host.driver.start(folder, plan);
  writeGuest(host.disk('mac'), { ...readGuest(host.disk('mac')), marker: 'worked' });
  const target = join(await world.folder(), 'disk.raw');
  const machine = machineIn(dirname(target));
  const copying = { target, machine, signal, onProgress };
  await expect(host.driver.copyDisk(folder, copying)).rejects.toThrow('Stop the VM');
  await host.driver.suspend(folder);
  await host.restartAgent();
  await host.driver.resume(folder, plan);
  expect(readGuest(host.disk('mac'))).toMatchObject({ boots: 1, marker: 'worked' });
  await host.driver.stop(folder, { graceMilliseconds: 0 });
  expect(await host.driver.copyDisk(folder, copying)).toEqual({
    consistency: 'Stopped',
    virtualSizeBytes: DISK_BYTES,
    machine,
  });
  await publishDisk(
    {
      path: target,
      virtualSizeBytes: DISK_BYTES,
      architecture: 'arm64',
      os: 'MacOS',
      machine,
      repository: world.repository('saved'),
      tag: 'latest',
    },
    { signal, onBytes: () => undefined },
  );
  await host.driver.delete(folder);
  const saved = await pulled('saved');
  expect(await machineBeside(saved.path)).toEqual(machineIn(dirname(saved.path)));
  expect((await readFile(machineIn(dirname(saved.path)).variables)).equals(VARIABLES)).toBe(true);
  const next = host.folder('next');
  await host.driver.create(next, plan, saved);
  await host.driver.start(next, plan);
  expect(readGuest(host.disk('next'))).toMatchObject({ boots: 2, marker: 'worked' });
  const config = JSON.parse(
    await readFile(join(dirname(host.disk('next')), 'config.json'), 'utf8'),
  ) as object;
  expect(config).toMatchObject({ os: 'darwin', ...IDENTITY });
  expect(unlistedCalls(host.tart.calls)).toEqual([]);
  expect(host.tart.faults).toEqual([]);
});

it('the driver uses each command and option of its page, and no other', async () => {
  await using all = new TartHost();
  makeSoftnetProgram(all.directory);
  await all.driver.probe();
  const display = { displayWidth: 1600, displayHeight: 900, displayDPI: 72 };
  const plain = tartPlan('all', 'MacOS', { vnc: { enabled: true }, hardwareIdentity: 'Dynamic', ...display });
  const filter = { mayReach: [], mayNotReach: ['169.254.0.0/16'] };
  const plan = {
    ...plain,
    guest: { ...plain.guest, diskSizeBytes: 1_000_000_000 },
    network: { ...plain.network, filter } as typeof plain.network,
    seed: { disk: 'seed.iso' },
  };
  const folder = all.folder('all');
  await all.driver.create(folder, plan, all.images.darwin);
  await writeFile(join(folder.path, 'seed.iso'), '');
  await all.driver.start(folder, plan);
  await all.driver.address('all');
  await all.driver.suspend(folder);
  const path = join(all.directory, 'restore.ipsw');
  await writeFile(path, 'PK');
  const image = { type: 'ipsw', url: 'https://images.example/restore.ipsw', sha256: '0' } as const;
  const ipsw = { path, digest: 'sha256:0', format: 'raw', virtualSizeBytes: 2 } as const;
  await all.driver.create(all.folder('new'), tartPlan('new', 'MacOS', { image }), ipsw);
  expect([...usedCalls(all.tart.calls)].toSorted()).toEqual([...listedCalls()].toSorted());
});
