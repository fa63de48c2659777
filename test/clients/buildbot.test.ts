/**
 * A real master and a real worker of Buildbot. Their builds run in real guests by the example of a configuration. Only `make clients` runs
 * this file, because its first run installs Buildbot from PyPI.
 */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { VM_CONFIGS } from '../../api/v1alpha1/resources.ts';
import { waitFor } from '../../hack/wait.ts';
import { ShortLife, UNTIL_GONE } from '../support/shortlife.ts';
import { BerthCommand } from '../wires/berth.ts';
import { BuildbotSite, RESULTS } from '../worlds/buildbot.ts';
import { SET_UP_MILLISECONDS, World } from '../worlds/vm.ts';

let folder: string;
let world: World;
let command: BerthCommand;
let life: ShortLife;
let site: BuildbotSite;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-buildbot-'));
  world = await World.start({ name: 'buildbot', architecture: 'amd64', hosts: { host: '127.0.0.1' } });
  const metadata = { name: 'ci-small', namespace: world.vms.namespace };
  await world.cluster
    .client()
    .create(VM_CONFIGS, { metadata, spec: { image: 'guest', cpu: 1, memory: '256Mi' } });
  command = await BerthCommand.make(world.cluster.kubeconfig);
  life = await ShortLife.make(command, folder);
  site = await BuildbotSite.make(folder, life.environment);
  await site.start();
}, SET_UP_MILLISECONDS);

afterAll(async () => {
  await site?.[Symbol.asyncDispose]();
  await command?.[Symbol.asyncDispose]();
  await world?.[Symbol.asyncDispose]();
  await rm(folder, { recursive: true, force: true });
});

it('each build runs in a VM of its own, with its sources and its exit code', async () => {
  const boot = 'cat /proc/sys/kernel/random/boot_id';
  await site.push('good', boot);
  await site.push('bad', `${boot}; exit 3`);
  const good = await site.waitForBuild('good', 'done', ({ results }) => results !== null);
  const bad = await site.waitForBuild('bad', 'done', ({ results }) => results !== null);
  expect([good.results, bad.results]).toEqual([RESULTS.success, RESULTS.failure]);
  expect(bad.log).toContain('program finished with exit code 3');
  const boots = [good, bad].map(({ log }) => /^[0-9a-f-]{36}$/m.exec(log)?.[0]);
  expect(new Set([...boots, undefined]).size).toBe(3);
  await waitFor('no VM to be left', async () => (await world.vms.list()).length === 0);
});

it('a build that is killed with its command leaves no VM: the worker, the master, or both', async () => {
  const cases = [
    { branch: 'worker', programs: ['worker'], killsCommand: true },
    // A worker that loses its master kills its commands.
    { branch: 'master', programs: ['master'], killsCommand: false },
    { branch: 'both', programs: ['worker', 'master'], killsCommand: true },
  ] as const;
  for (const { branch, programs, killsCommand } of cases) {
    await site.start();
    await site.push(branch, 'echo begun; sleep 600');
    await site.waitForBuild(branch, 'begun', ({ log }) => /^begun$/m.test(log));
    for (const program of programs) {
      await site.kill(program);
    }
    if (killsCommand) {
      await life.killLast();
    }
    await waitFor('no VM to be left', async () => (await world.vms.list()).length === 0, UNTIL_GONE);
    // Buildbot repeats the build when its programs are back.
    await site.commit(branch, 'true');
  }
});
