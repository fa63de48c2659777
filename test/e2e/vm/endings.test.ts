/**
 * Ends of a VM other than `kubectl delete vm`, with real guests: the status of the VM, and traces on the host. VMs of jobs end with their jobs.
 * `BERTH_JOBS=100` runs so many jobs.
 */
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { run } from '../../../base/exec.ts';
import { NAMESPACES, SECRETS } from '../../../kube/core.ts';
import { freePort } from '../../../hack/cluster/ports.ts';
import { makeKey, sshOptions } from '../../../hack/login.ts';
import { GITHUB_SCRIPT } from '../../fixtures/ciexamples.ts';
import { isGone } from '../../fixtures/objects.ts';
import { VMs } from '../../fixtures/vms.ts';
import { RUNNER, RunnerService } from '../../support/github/runnerservice.ts';
import { BerthCommand } from '../../wires/berth.ts';
import { tried } from '../../hostile/support/attempts.ts';
import { isTrue, Jobs, outcomeOf } from '../../worlds/jobs.ts';
import { RunnersWorld } from '../../worlds/runners.ts';
import { waitFor } from '../../../hack/wait.ts';
import { BOOT, hypervisorsBelow, SET_UP_MILLISECONDS, STEP, World } from '../../worlds/vm.ts';

const TEST_MILLISECONDS = 300_000;
const NAMESPACE = 'platform-ending';
/** Number of jobs, and of kills during them. Each program that can be killed is killed once at least. */
const JOBS = Number(process.env['BERTH_JOBS'] ?? 3);
const KILLS = Math.max(3, JOBS / 5);
/** Time limit of one job beside three others, in milliseconds. */
const JOB_MILLISECONDS = 30_000;

let world: World;
let elsewhere: VMs;

/** Two guests boot at the same time, before a test needs them. */
beforeAll(async () => {
  world = await World.start({ name: 'vm-endings', architecture: 'amd64', hosts: { host: '127.0.0.1' } });
  await world.cluster.createNamespace(NAMESPACE);
  elsewhere = new VMs(world.cluster, NAMESPACE);
  await makeVM('inside', elsewhere);
  await makeVM('deleted');
}, SET_UP_MILLISECONDS);

afterAll(async () => {
  await world?.[Symbol.asyncDispose]();
});

async function makeVM(name: string, vms = world.vms): Promise<void> {
  const ports = [`${await freePort()}:80`];
  await world.makeVM(name, { ports, readiness: { type: 'Port', port: 80 } }, vms);
}

async function ready(name: string, vms = world.vms): Promise<void> {
  await vms.waitForCondition(name, 'Ready', { status: 'True' }, BOOT);
}

/** Returns the page of the VM at its port of the host. */
async function urlOf(name: string, vms = world.vms): Promise<string> {
  const [endpoint] = (await vms.get(name)).status?.endpoints ?? [];
  const url = `http://127.0.0.1:${endpoint?.hostPort}/`;
  expect((await fetch(url)).status).toBe(200);
  return url;
}

async function expectSilence(url: string): Promise<void> {
  await expect(fetch(url)).rejects.toThrow('fetch failed');
}

async function failedFor(name: string, reason: string): Promise<void> {
  await world.vms.waitForPhase(name, 'Failed', reason, STEP);
  await world.vms.waitForCondition(name, 'Ready', { status: 'False', reason });
  await world.vms.waitForCondition(name, 'Stalled', { status: 'True', reason });
  await world.expectStory(name, new RegExp(`Warning +${reason} `));
}

test(
  'deletion of the whole namespace ends, and removes the machine',
  async () => {
    await ready('inside', elsewhere);
    const [machine, url] = [await world.machine('inside', elsewhere), await urlOf('inside', elsewhere)];
    await world.cluster.client().delete(NAMESPACES, { name: NAMESPACE });
    await machine.waitUntilGone();
    await expectSilence(url);
    // Kubernetes looks again only after half of the Pods' grace period. The other guests boot meanwhile.
    await makeVM('orphaned');
    await makeVM('drained');
    await waitFor(`namespace ${NAMESPACE} to be gone`, namespaceIsGone, STEP);
  },
  TEST_MILLISECONDS,
);

function namespaceIsGone(): Promise<boolean> {
  return isGone(() => world.cluster.client().get(NAMESPACES, { name: NAMESPACE }));
}

test(
  'kubectl delete pod: the VM is Failed with a reason, and is not created again with an empty disk',
  async () => {
    await ready('deleted');
    const [machine, url] = [await world.machine('deleted'), await urlOf('deleted')];
    await world.kubectl('delete', 'pod', 'deleted');
    await machine.expectGone();
    await expectSilence(url);
    await failedFor('deleted', 'PodDeleted');
    expect(await world.kubectl('get', 'pod', 'deleted', '--ignore-not-found')).toBe('');
    await world.kubectl('delete', 'vm', 'deleted');
  },
  TEST_MILLISECONDS,
);

test(
  'kubectl delete vm --cascade=orphan: its machine is removed all the same',
  async () => {
    await ready('orphaned');
    const [machine, url] = [await world.machine('orphaned'), await urlOf('orphaned')];
    await world.kubectl('delete', 'vm', 'orphaned', '--cascade=orphan');
    await world.vms.waitUntilGone('orphaned', STEP);
    await machine.waitUntilGone();
    await expectSilence(url);
  },
  TEST_MILLISECONDS,
);

test(
  'kubectl drain: asks before it destroys a disk, then evicts; the VM is Failed',
  async () => {
    await ready('drained');
    const [machine, url] = [await world.machine('drained'), await urlOf('drained')];
    await expect(world.kubectl('drain', 'host')).rejects.toThrow('--delete-emptydir-data');
    expect(await world.vms.names('Running')).toContain('drained');
    await world.kubectl('drain', 'host', '--delete-emptydir-data');
    await machine.expectGone();
    await expectSilence(url);
    await failedFor('drained', 'Evicted');
    expect(await hypervisorsBelow(world.host('host').dataDirectory)).toEqual([]);
  },
  TEST_MILLISECONDS,
);

test(
  'jobs by `berth vm run`: whoever is killed, each exit code is that of the job or of the platform, and nothing is left',
  async (context) => {
    await world.kubectl('delete', 'vm', 'drained', '--ignore-not-found');
    await world.kubectl('uncordon', 'host');
    await using command = await BerthCommand.make(world.cluster.kubeconfig);
    const jobs = new Jobs(world, command, { jobs: JOBS, width: Math.min(4, JOBS - 1), kills: KILLS });
    const ends = await jobs.run();
    ends.forEach((end) => tried(context, `job, ${end.killed ?? 'nothing'} killed`, outcomeOf(end)));
    await jobs.untilNothingIsLeft();
    expect(ends.filter((end) => !isTrue(end))).toEqual([]);
    const boots = ends.flatMap(({ boot }) => boot ?? []);
    expect(new Set(boots).size).toBe(boots.length);
    expect(ends).toHaveLength(JOBS);
  },
  TEST_MILLISECONDS + JOBS * JOB_MILLISECONDS,
);

test(
  'a VM of a RunnerSet gets its JIT configuration by a Secret, runs its job by the script of the image, and goes with its Secret',
  async () => {
    const folder = await mkdtemp(join(tmpdir(), 'berth-runner-'));
    const key = join(folder, 'key');
    await using site = await RunnersWorld.inside(world.cluster);
    await using service = await RunnerService.start(site.stub, 'uname -s; exit 3');
    await site.startRunners();
    const sshAuthorizedKeys = [await makeKey(key)];
    const spec = { image: 'guest', cpu: 1, memory: '256Mi', ports: [':22'], sshAuthorizedKeys };
    await site.createSet('guests', { max: 1, configRef: undefined, template: { spec } });
    const set = await waitFor('a place for the set', () =>
      site.stub.sets.find(({ name, capacity }) => name === 'guests' && capacity > 0),
    );
    const job = site.stub.queueJob(set);
    const name = await waitFor('a VM', async () => (await site.vms('guests'))[0]?.metadata.name);
    await ready(name);
    const { endpoints } = (await world.vms.get(name)).status ?? {};
    // Guests reach no port of their host. The connection of the test leads to the service.
    const back = ['-R', `8080:127.0.0.1:${service.port}`];
    const port = endpoints?.find(({ guestPort }) => guestPort === 22)?.hostPort ?? 0;
    const script = await readFile(GITHUB_SCRIPT, 'utf8');
    const input = `mount-seed; mkdir /runner; cd /runner
cat >run.sh <<'END'
${RUNNER}END
cat >start.sh <<'END'
${script}END
chmod +x run.sh
SERVICE=http://127.0.0.1:8080 POWEROFF='poweroff -f' exec sh start.sh /seed/user-data /runner root
`;
    // The guest ends before ssh does.
    const session = run('ssh', [...sshOptions(key, port), ...back, 'root@127.0.0.1', 'sh -s'], {
      input,
      timeoutMilliseconds: STEP.deadlineMilliseconds,
    }).catch((error: unknown) => String(error));
    await waitFor('the end of the job', () => job.state === 'done', STEP);
    await world.vms.waitUntilGone(name);
    expect(await session).not.toContain('timed out');
    expect([...service.results]).toEqual([[name, { output: 'Linux', code: 3 }]]);
    expect([job.runner, service.refused, [...site.stub.runners.keys()]]).toEqual([name, [], []]);
    // Kubernetes removes the Secret after its owner.
    const secret = { namespace: world.vms.namespace, name };
    await waitFor('the Secret to be gone', () => isGone(() => world.cluster.client().get(SECRETS, secret)));
    await world.kubectl('delete', 'runset', 'guests');
    await rm(folder, { recursive: true });
  },
  TEST_MILLISECONDS,
);
