/**
 * Jobs of CI systems that end in a real guest. The runners of GitLab and Buildkite cannot be installed here, so `runner.sh` stands in for
 * them. The calls of the Jenkins and TeamCity plug-ins are the replays in test/fixtures/clients, with a job over SSH. Only `make clients`
 * runs this file.
 */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { VM_CONFIGS } from '../../api/v1alpha1/resources.ts';
import { run } from '../../base/exec.ts';
import type { ServerProcess } from '../../hack/cluster/program.ts';
import { makeKey, sshOptions } from '../../hack/login.ts';
import { waitFor } from '../../hack/wait.ts';
import * as jenkins from '../fixtures/clients/agentcontroller.ts';
import * as teamcity from '../fixtures/clients/cloudagents.ts';
import type { Machine } from '../fixtures/clients/java.ts';
import { ALIASES, FIXED_NAMESPACE, type Site } from '../fixtures/clients/site.ts';
import { accountToken } from '../support/members.ts';
import { BerthCommand } from '../wires/berth.ts';
import { HTTPClient } from '../wires/httpapi.ts';
import { BOOT, SET_UP_MILLISECONDS, World } from '../worlds/vm.ts';

const NAMESPACE = 'platform-default';
/** Time limit of a login over SSH that does not wait. */
const LOGIN_MILLISECONDS = 60_000;

let folder: string;
let key: string;
let world: World;
let server: ServerProcess;
let command: BerthCommand;
let site: Site;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-jobs-'));
  key = join(folder, 'key');
  const sshAuthorizedKeys = [await makeKey(key)];
  world = await World.start({ name: 'jobs', architecture: 'amd64', hosts: { host: '127.0.0.1' } });
  const spec = { image: 'guest', cpu: 1, memory: '256Mi', sshAuthorizedKeys };
  await world.cluster.client().create(VM_CONFIGS, { metadata: { name: 'ci', namespace: NAMESPACE }, spec });
  server = await world.cluster.startServer({ config: { http: { aliases: ALIASES } } });
  command = await BerthCommand.make(world.cluster.kubeconfig);
  const token = await accountToken(
    world.cluster,
    { namespace: NAMESPACE, name: 'ci' },
    { role: 'berth-role-dev' },
  );
  site = { client: new HTTPClient(server), token, namespace: FIXED_NAMESPACE };
  await waitFor('the rights', async () => (await teamcity.listConfigNames(site)).includes('ci'));
}, SET_UP_MILLISECONDS);

afterAll(async () => {
  await site?.client.close();
  await command?.[Symbol.asyncDispose]();
  await server?.process.stop();
  await world?.[Symbol.asyncDispose]();
  await rm(folder, { recursive: true, force: true });
});

it.each([
  ['the custom executor of GitLab', 'executor', /^hello\nSuccessfully deleted vm job\n$/],
  ['the hooks of Buildkite', 'hooks', /^hello\nSuccessfully deleted vm job-[a-z0-9]{5}\n$/],
])('%s', async (_name, kind, output) => {
  const runner = join(import.meta.dirname, 'runner.sh');
  const environment = command.installed();
  const timeoutMilliseconds = BOOT.deadlineMilliseconds * 2;
  expect(await run(runner, [kind, 'job', key], { environment, timeoutMilliseconds })).toMatch(output);
});

it.each<[string, () => Promise<Machine>, (machine: Machine) => Promise<void>]>([
  [
    'the Jenkins plug-in',
    async () => await jenkins.deployFromConfig(site, 'ci', 'agent'),
    async ({ name }) => await jenkins.deleteMachine(site, name),
  ],
  [
    'the TeamCity plug-in, with a key in place of its password',
    async () => await teamcity.startAgent(site, 'ci'),
    async ({ name }) => await teamcity.removeAgent(site, name),
  ],
])('%s', async (_name, deploy, remove) => {
  const machine = await deploy();
  const login = [...sshOptions(key, machine.ssh), `root@${machine.ip}`, '/bin/bash -c "echo hello"'];
  const job = await waitFor(
    'the job',
    async () => await run('ssh', login, { timeoutMilliseconds: LOGIN_MILLISECONDS }),
    BOOT,
  );
  expect(job).toBe('hello\n');
  await remove(machine);
  await world.vms.waitUntilGone(machine.name);
});
