/** Machines of the driver tart, with the stand-in for that program. Nothing here ran with the real program. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import type { BaseImage } from '../../../agent/disks/disk.ts';
import { homeOf } from '../../../agent/drivers/tart/driver.ts';
import { environment } from '../../../agent/drivers/tart/program.ts';
import { findByArgument, type ProcessIdentity } from '../../../agent/processes/process.ts';
import { TartHost, tartPlan } from '../../worlds/tarthost.ts';

const IMAGE = { type: 'ipsw', url: 'https://images.example/restore.ipsw', sha256: '0' } as const;
/** ECID of the images of these tests. */
const OF_IMAGE = 'ZWNpZA==';

let host: TartHost;

beforeEach(() => {
  host = new TartHost();
});

afterEach(async () => await host[Symbol.asyncDispose]());

function configOf(name: string): { ecid?: string; macAddress?: string; os?: string } {
  return JSON.parse(readFileSync(join(dirname(host.disk(name)), 'config.json'), 'utf8')) as object;
}

async function identityOf(name: string): Promise<unknown> {
  const state = await host.driver.inspect(host.folder(name));
  return state.kind === 'running' ? state.identity : undefined;
}

/** Returns an IPSW of this content, as the store of the agent has it. */
function ipsw(content: string): BaseImage {
  const path = join(host.directory, 'restore.ipsw');
  writeFileSync(path, content);
  return { path, digest: 'sha256:0', format: 'raw', virtualSizeBytes: content.length };
}

test('gives a VM with a dynamic identity an ECID of its own, which it keeps when its disk is reset', async () => {
  const plan = tartPlan('mac1', 'MacOS', { hardwareIdentity: 'Dynamic' });
  const folder = host.folder('mac1');
  await host.driver.create(folder, plan, host.images.darwin);
  const { ecid: own } = configOf('mac1');
  expect(own).not.toBe(OF_IMAGE);
  await host.driver.start(folder, plan);
  expect(await identityOf('mac1')).toMatchObject({ ready: true, reason: 'IdentityNew' });
  await host.driver.revert(folder, plan, host.images.darwin);
  expect(configOf('mac1').ecid).toBe(own);
});

test('installs macOS from an IPSW, and gives the machine its MAC address', async () => {
  const plain = tartPlan('mac1', 'MacOS', { image: IMAGE });
  const plan = { ...plain, cpu: 4, guest: { ...plain.guest, diskSizeBytes: 1_500_000_000 } };
  await host.driver.create(host.folder('mac1'), plan, ipsw('PK\x03\x04'));
  await host.driver.start(host.folder('mac1'), plan);
  const calls = host.tart.calls.map((call) => call.join(' ').replaceAll(host.directory, ''));
  expect(calls.filter((call) => call.startsWith('create'))).toEqual([
    'create berth-mac1 --from-ipsw /restore.ipsw --disk-size 2',
  ]);
  expect(configOf('mac1')).toMatchObject({ os: 'darwin', macAddress: '52:54:00:12:34:56' });
  expect(await identityOf('mac1')).toMatchObject({ ready: false, reason: 'IdentityOfHypervisor' });
  expect(host.tart.faults).toEqual([]);
});

test('says why macOS could not be installed, and begins no installation for a VM that is deleted', async () => {
  const folder = host.folder('mac1');
  const plan = tartPlan('mac1', 'MacOS', { image: IMAGE });
  await expect(host.driver.create(folder, plan, ipsw('<html>'))).rejects.toMatchObject({
    reason: 'CreateFailed',
    message: expect.stringContaining('the restore image cannot be loaded') as string,
  });
  const { length } = host.tart.calls;
  const gone = AbortSignal.abort(new Error('not wanted'));
  await expect(host.driver.create(folder, plan, ipsw('PK'), gone)).rejects.toThrow('not wanted');
  expect(host.tart.calls).toHaveLength(length);
  await host.driver.delete(folder);
  expect(existsSync(dirname(host.disk('mac1')))).toBe(false);
});

/** Returns the process that installs macOS for the machine mac1. */
async function installation(): Promise<ProcessIdentity | undefined> {
  return await findByArgument('create', 'berth-mac1');
}

test.each(['nobody wants it any more', 'its agent stops'])(
  'the installation of a reset ends when %s',
  async (why) => {
    const [folder, plan, base] = [
      host.folder('mac1'),
      tartPlan('mac1', 'MacOS', { image: IMAGE }),
      ipsw('PK'),
    ];
    await host.driver.create(folder, plan, base);
    host.tart.give('install-lasts');
    const unwanted = new AbortController();
    const reset = host.driver.revert(folder, plan, base, undefined, unwanted.signal);
    reset.catch(() => undefined);
    await expect.poll(installation).toBeDefined();
    if (why === 'its agent stops') {
      await host.restartAgent();
      await expect(reset).rejects.toMatchObject({ reason: 'Interrupted' });
    } else {
      unwanted.abort(new Error('not wanted'));
      await expect(reset).rejects.toThrow('not wanted');
    }
    expect(await installation()).toBeUndefined();
    host.tart.take('install-lasts');
    await host.driver.revert(folder, plan, base);
    expect(configOf('mac1')).toMatchObject({ macAddress: '52:54:00:12:34:56' });
  },
);

test('a deletion ends the installation of a reset that has outlived its agent', async () => {
  const [folder, base] = [host.folder('mac1'), ipsw('PK')];
  await host.driver.create(folder, tartPlan('mac1', 'MacOS', { image: IMAGE }), base);
  host.tart.give('install-lasts');
  const parameters = ['create', 'berth-mac1', '--from-ipsw', base.path, '--disk-size', '1'];
  const orphan = spawn(host.program, parameters, { env: environment(homeOf(host.directory)) });
  const ended = once(orphan, 'exit');
  await expect.poll(installation).toBeDefined();
  await host.driver.delete(folder);
  expect(await ended).toEqual([null, 'SIGKILL']);
  expect(existsSync(dirname(host.disk('mac1')))).toBe(false);
});
