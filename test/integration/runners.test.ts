/** RunnerSets with a real operator, simulated hosts and a stub of GitHub. */
import { readFileSync } from 'node:fs';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { SCALE_SET_LABEL, USER_DATA_SECRET_TYPE } from '../../api/v1alpha1/names.ts';
import { IMAGES, RUNNER_SETS, VMS } from '../../api/v1alpha1/resources.ts';
import { waitFor } from '../../hack/wait.ts';
import { conditionIn } from '../../kube/conditions.ts';
import { EVENTS, NODES, PODS, SECRETS } from '../../kube/core.ts';
import { IMAGE, numbered, VMs } from '../fixtures/vms.ts';
import type { StubSet } from '../support/github/model.ts';
import type { GitHubStub } from '../support/github/stub.ts';
import { allowMetrics, readMetrics } from '../support/operatorlog.ts';
import { createQuota } from '../support/quota.ts';
import { ActingHost } from '../worlds/actinghost.ts';
import { NAMESPACE, RunnersWorld, TOKEN } from '../worlds/runners.ts';

/** Number of simulated hosts, with four slots each. */
const HOSTS = 2;
const SLOTS = HOSTS * 4;
/** Places on a simulated x86 host. It has 16 slots, but 16 processors, and each VM has two of them by default. */
const X86_PLACES = 8;
/** Most memory of the process in kilobytes with thirty sets. */
const MEMORY_KILOBYTES = 150_000;

let world: RunnersWorld;
let stub: GitHubStub;

beforeAll(async () => {
  world = await RunnersWorld.start(`runners-${process.pid}`, HOSTS);
  ({ stub } = world);
  await world.startRunners();
});

afterEach(async () => {
  await world.cluster.kubectl(['delete', 'runnersets', '--all', '-n', NAMESPACE]);
  await waitFor('all VMs to be gone', async () => {
    const { items } = await world.cluster.client().list(VMS, { namespace: NAMESPACE });
    return items.length === 0;
  });
});

afterAll(async () => {
  await world?.[Symbol.asyncDispose]();
});

async function waitForStub(org: string, name: string): Promise<StubSet> {
  return await waitFor(`scale set ${name} of ${org}`, () =>
    stub.sets.find((set) => set.org === org && set.name === name),
  );
}

async function waitForVMs(set: string, count: number): Promise<string[]> {
  return await waitFor(`${count} Ready VMs of ${set}`, async () => {
    const vms = await world.vms(set);
    const isReady = vms.every(({ status }) => conditionIn(status, 'Ready')?.status === 'True');
    const names = vms.map(({ metadata }) => metadata.name);
    // A simulated host does not wait for the Secret of the VM.
    return vms.length === count && isReady && names.every((name) => stub.runners.has(name)) && names;
  });
}

describe('a RunnerSet', () => {
  it('gives each job one VM, keeps its idle VMs, and leaves nothing behind', async () => {
    await world.createSet('mac', { min: 1 }, { labels: ['mac', 'arm'] });
    const [idle = ''] = await waitForVMs('mac', 1);
    await world.waitForReason('mac', 'Ready', 'RunnersReady');
    const set = await waitForStub('acme', 'mac');
    expect(set.labels).toMatchObject([{ name: 'mac' }, { name: 'arm' }]);
    stub.connect(idle);
    const jobs = [stub.queueJob(set), stub.queueJob(set)];
    const names = await waitForVMs('mac', 3);
    names.forEach((name) => stub.connect(name));
    await waitFor('both jobs to run', () => jobs.every(({ state }) => state === 'running'));
    const busy = jobs.map(({ runner = '' }) => runner);
    expect(new Set(busy).size).toBe(2);
    const { status } = await world.waitForSet(
      'mac',
      'told of its jobs',
      ({ status }) => status?.statistics?.totalRunningJobs === 2,
    );
    expect(status).toMatchObject({ wanted: 3, scaleSetID: set.id });
    for (const name of busy) {
      stub.finish(name);
      await world.endVM(name);
    }
    await world.waitForSet(
      'mac',
      'idle',
      ({ status: now }) => now?.statistics?.totalAssignedJobs === 0 && now.runners === 1,
    );
    expect([...stub.runners.keys()]).toEqual(names.filter((name) => !busy.includes(name)));
    await world.cluster.kubectl(['delete', 'runset', 'mac', '-n', NAMESPACE]);
    await waitFor('the scale set to be gone', () => stub.sets.length === 0);
    await waitFor('the VMs and their Secrets to be gone', async () => {
      const { items } = await world.cluster.client().list(SECRETS, { namespace: NAMESPACE });
      return (
        (await world.vms('mac')).length === 0 && items.every(({ type }) => type !== USER_DATA_SECRET_TYPE)
      );
    });
  });

  it('gives the JIT configuration to its VM by a Secret, and shows neither it nor the credentials anywhere else', async () => {
    const template = {
      metadata: { labels: { team: 'mobile' } },
      spec: { image: IMAGE, architecture: 'arm64' },
    } as const;
    await world.createSet('secret', { min: 1, configRef: undefined, template });
    const [name = ''] = await waitForVMs('secret', 1);
    const client = world.cluster.client();
    const vm = await client.get(VMS, { namespace: NAMESPACE, name });
    expect(vm.metadata.labels).toMatchObject({ [SCALE_SET_LABEL]: 'secret', team: 'mobile' });
    expect(vm.spec).toMatchObject({
      ...template.spec,
      userDataSecretRef: { name, key: 'jitconfig' },
      ttlSecondsAfterFinished: 0,
      aliveUntil: expect.stringMatching(/Z$/),
      activeDeadlineSeconds: 576_000,
    });
    // A simulated host does not wait for the Secret of the VM.
    const secret = await waitFor('the Secret', () => client.get(SECRETS, { namespace: NAMESPACE, name }));
    expect(secret.metadata.ownerReferences).toMatchObject([{ kind: 'VM', name, uid: vm.metadata.uid }]);
    const jit = Buffer.from(secret.data?.['jitconfig'] ?? '', 'base64').toString();
    expect(JSON.parse(Buffer.from(jit, 'base64').toString())).toHaveProperty(['.runner']);
    const seen = await Promise.all([
      client.list(VMS, { namespace: NAMESPACE }),
      client.list(PODS, { namespace: NAMESPACE }),
      client.list(RUNNER_SETS, { namespace: NAMESPACE }),
      client.list(EVENTS, { namespace: NAMESPACE }),
    ]);
    const { pid = 0, logFile = '' } = world.runners ?? {};
    const texts = [
      ...seen.map(({ items }) => JSON.stringify(items)),
      readFileSync(logFile, 'utf8'),
      readFileSync(`/proc/${pid}/cmdline`, 'utf8'),
    ];
    for (const planted of [jit, TOKEN]) {
      expect(texts.filter((text) => text.includes(planted))).toEqual([]);
    }
  });

  it('tells GitHub the places that are free, fewer when VMs of others take them, and shares them with another set', async () => {
    await world.createSet('places', { max: 20 });
    const set = await waitForStub('acme', 'places');
    await waitFor('all places to be offered', () => set.capacity === SLOTS);
    const others = new VMs(world.cluster);
    await others.createMany(numbered('other', 3), { architecture: 'arm64' });
    await waitFor('the places of others to be kept', () => set.capacity === SLOTS - 3);
    await Promise.all(numbered('other', 3).map((name) => others.delete(name)));
    // A second set is offered one place. The first one has more jobs than places, and is offered all others.
    await world.createSet('second', { max: 20 });
    const second = await waitForStub('acme', 'second');
    await waitFor('one place for each', () => set.capacity === 1 && second.capacity === 1);
    const jobs = Array.from({ length: SLOTS }, () => stub.queueJob(set));
    await waitFor('all places', () => set.capacity >= SLOTS - 1 && set.capacity + second.capacity === SLOTS);
    await world.waitForSet('places', 'offered most', ({ status }) => (status?.capacity ?? 0) >= SLOTS - 1);
    jobs.forEach((job) => (job.state = 'done'));
  });

  it('counts the hosts that its VMs can have, by the architecture of its Image; it gets no jobs if nobody names one', async () => {
    const client = world.cluster.client();
    const source = { registry: { reference: IMAGE } };
    await client.create(IMAGES, {
      metadata: { namespace: NAMESPACE, name: 'arm' },
      spec: { source, architecture: 'arm64' },
    });
    await world.cluster.addHosts(1, { prefix: 'intel', architecture: 'amd64' });
    for (const [image, architecture, places] of [
      ['arm', undefined, SLOTS],
      [IMAGE, 'amd64', X86_PLACES],
    ] as const) {
      const name = `of-${places}-${architecture ?? 'arm64'}`;
      const template = { spec: { image, ...(architecture && { architecture }) } };
      await world.createSet(name, { max: 100, configRef: undefined, template });
      const set = await waitForStub('acme', name);
      await waitFor(`${places} places to be offered`, () => set.capacity === places);
      await client.delete(RUNNER_SETS, { namespace: NAMESPACE, name });
    }
    await world.createSet('mixed', { configRef: undefined, template: { spec: { image: IMAGE } } });
    const { status } = await world.waitForReason('mixed', 'Stalled', 'RunnerArchitectureUnknown');
    expect(conditionIn(status, 'Ready')).toMatchObject({
      status: 'False',
      message: expect.stringContaining('have the architectures amd64 and arm64, and nobody says'),
    });
    const mixed = await waitForStub('acme', 'mixed');
    await waitFor('a poll', () => mixed.polls > 0);
    expect(mixed.capacity).toBe(0);
    await client.delete(NODES, { name: 'intel-0' });
    await waitFor('an offer', () => mixed.capacity > 0);
    await client.delete(RUNNER_SETS, { namespace: NAMESPACE, name: 'mixed' });
  });

  it('says why its VMs fail or get no host, and tries again with one VM', async () => {
    const client = world.cluster.client();
    const waiting = { spec: { image: 'none' } };
    await world.createSet('lost', { min: 1, configRef: undefined, template: waiting });
    await world.waitForSet('lost', 'without a host', ({ status }) => {
      const { message = '' } = conditionIn(status, 'Ready') ?? {};
      return /^0 of 1 wanted VMs are Ready. VM lost-\w+ has no host: ImageNotFound: Image none /.test(
        message,
      );
    });
    await using parts = new AsyncDisposableStack();
    const host = await ActingHost.join(client, 'bare', { slots: 4, architecture: 'amd64' });
    parts.defer(async () => await host.remove());
    await host.placeable();
    const template = { spec: { image: IMAGE, architecture: 'amd64' } } as const;
    await world.createSet('failing', { min: 2, configRef: undefined, template });
    const names = await waitFor('two VMs', async () => {
      const vms = await world.vms('failing');
      return vms.length === 2 && vms.map(({ metadata }) => metadata.name);
    });
    const failed = Date.now();
    for (const name of names) {
      const ref = { namespace: NAMESPACE, name };
      await host.waitForPod(ref);
      await host.fail(ref, 'ImageArchitectureMismatch', 'use an image for amd64');
    }
    const { status } = await world.waitForReason('failing', 'Stalled', 'RunnerVMFailed');
    const says =
      /^VM failing-\w+ failed before its guest ran: ImageArchitectureMismatch: .*use an image for amd64/;
    expect(conditionIn(status, 'Ready')).toMatchObject({ status: 'False', reason: 'RunnerVMFailed' });
    expect(conditionIn(status, 'Ready')?.message).toMatch(says);
    await waitFor('the Event', async () => {
      const { items } = await client.list(EVENTS, { namespace: NAMESPACE });
      return items.some(
        ({ reason, regarding }) => reason === 'RunnerVMFailed' && regarding.name === 'failing',
      );
    });
    const ref = await waitFor('another VM', async () => {
      const vms = await world.vms('failing');
      const [name] = vms.map(({ metadata }) => metadata.name).filter((one) => !names.includes(one));
      return name !== undefined && { namespace: NAMESPACE, name };
    });
    // The first wait is 5 s, with a little less for the clock of the other process.
    expect(Date.now() - failed).toBeGreaterThan(4_500);
    await host.waitForPod(ref);
    expect(await world.vms('failing')).toHaveLength(1);
    await host.run(ref);
    await waitFor('both VMs', async () => (await world.vms('failing')).length === 2);
    await client.delete(RUNNER_SETS, { namespace: NAMESPACE, name: 'failing' });
    for (const { metadata } of await world.vms('failing')) {
      await host.end({ namespace: NAMESPACE, name: metadata.name });
    }
  });

  it('says why it has no session: another one, wrong credentials, a Secret or a server that is not allowed', async () => {
    stub.conflicts = 1;
    await world.createSet('conflict');
    await world.waitForReason('conflict', 'Connected', 'SessionConflict');
    await world.waitForReason('conflict', 'Connected', 'SessionOpen');
    await world.createSecret('wrong', { token: 'wrong', host: stub.host });
    stub.refusedTokens.add('wrong');
    await world.createSet('unauthorized', {}, { credentialSecret: 'wrong' });
    const { status } = await world.waitForReason('unauthorized', 'Stalled', 'Unauthorized');
    expect(conditionIn(status, 'Connected')?.message).toContain('answered with 401: Bad credentials');
    await world.createSecret('other', { token: TOKEN });
    await world.createSet('elsewhere', {}, { credentialSecret: 'other' });
    await world.waitForReason('elsewhere', 'Ready', 'CredentialSecretRefused');
    stub.sets.push({
      ...stub.set('acme', 'conflict'),
      id: 99,
      name: 'labels',
      labels: [{ name: 'other' }],
      session: undefined,
    });
    await world.createSet('labels');
    await world.waitForReason('labels', 'Stalled', 'LabelsDiffer');
    await world.createSecret('inside', { token: TOKEN, host: 'localhost:1' });
    await world.createSet('inside', {}, { url: 'https://localhost:1/acme', credentialSecret: 'inside' });
    const inside = await world.waitForReason('inside', 'Stalled', 'GitHubAddressRefused');
    expect(conditionIn(inside.status, 'Connected')?.message).toBe(
      'The registration token: the address of localhost is not allowed',
    );
    await world.createSet('group', {}, { runnerGroup: 'nobody' });
    await world.waitForReason('group', 'Stalled', 'RunnerGroupNotFound');
    expect(
      stub.requests.filter(
        ({ headers }) => headers['authorization']?.includes(TOKEN) && headers['host'] !== stub.host,
      ),
    ).toEqual([]);
  });

  it('says that a quota refuses its VMs, in its status and by an Event, and leaves no runner at GitHub', async () => {
    await createQuota(world.cluster, { namespace: NAMESPACE, name: 'no-vms' }, 'count/vms.berth.dev=0');
    await world.createSet('quota', { min: 1 });
    await world.waitForSet('quota', 'refused by the quota', ({ status }) => {
      const { reason, message = '' } = conditionIn(status, 'Ready') ?? {};
      return reason === 'RunnerVMRefused' && message.includes('exceeded quota');
    });
    await waitFor('the Event', async () => {
      const { items } = await world.cluster.client().list(EVENTS, { namespace: NAMESPACE });
      return items.some(
        ({ reason, regarding }) => reason === 'RunnerVMRefused' && regarding.name === 'quota',
      );
    });
    expect([...stub.runners.keys()].filter((name) => name.startsWith('quota-'))).toEqual([]);
    await world.cluster.kubectl(['delete', 'quota', 'no-vms', '-n', NAMESPACE]);
  });

  it('goes on after faults: no runner can be registered, queue tokens expire, GitHub fails, the process is killed', async () => {
    stub.refusesRunners = true;
    await world.createSet('faults', { min: 1 });
    await world.waitForReason('faults', 'Ready', 'GitHubFailed');
    await waitFor('no VM to be without a runner', async () => (await world.vms('faults')).length === 0);
    stub.refusesRunners = false;
    const [first = ''] = await waitForVMs('faults', 1);
    const set = await waitForStub('acme', 'faults');
    stub.expireQueueTokens();
    stub.fault = { status: 502 };
    await world.waitForReason('faults', 'Connected', 'GitHubFailed');
    stub.fault = undefined;
    await world.waitForReason('faults', 'Connected', 'SessionOpen');
    await world.runners?.kill('SIGKILL');
    await world.runners?.stopped;
    stub.connect(first);
    const job = stub.queueJob(set);
    job.state = 'assigned';
    stub.connect(first);
    await world.startRunners();
    // The session of the killed process lives on for a while.
    setTimeout(() => (set.session = undefined), 2_000);
    await waitForVMs('faults', 2);
    expect(job).toMatchObject({ state: 'running', runner: first });
    expect((await world.vms('faults')).map(({ metadata }) => metadata.name)).toContain(first);
    stub.finish(first);
  });

  it('gets no jobs while it names an object that can be where nobody looks, and says what to do', async () => {
    await using parts = new AsyncDisposableStack();
    await world.runners?.stop();
    parts.defer(async () => {
      await world.runners?.stop();
      await world.startRunners();
    });
    await world.startRunners('elsewhere');
    await world.createSet('blind', { configRef: undefined, template: { spec: { image: 'linux' } } });
    const { status } = await world.waitForReason('blind', 'Stalled', 'RunnerSourceUnseen');
    expect(conditionIn(status, 'Ready')).toMatchObject({
      status: 'False',
      message: expect.stringMatching(
        /^Image linux is not in the namespace platform-default, .* Add elsewhere to the chart value runners.namespaces$/,
      ),
    });
    const set = await waitForStub('acme', 'blind');
    await waitFor('a poll', () => set.polls > 0);
    expect(set.capacity).toBe(0);
    const client = world.cluster.client();
    const ref = { namespace: NAMESPACE, name: 'linux' };
    await client.create(IMAGES, { metadata: ref, spec: { source: { registry: { reference: IMAGE } } } });
    await waitFor('an offer', () => set.capacity > 0);
    await client.delete(IMAGES, ref);
    await client.delete(RUNNER_SETS, { namespace: NAMESPACE, name: 'blind' });
  });
});

it('thirty sets of ten organizations take one long poll each, and little memory', async () => {
  const orgs = numbered('org', 10);
  const sets = orgs.flatMap((org) => numbered(`${org}-set`, 3).map((name) => ({ org, name })));
  await Promise.all(
    sets.map(async ({ org, name }) => await world.createSet(name, { org }, { name: name.slice(-5) })),
  );
  await waitFor('all sessions to be open', () => stub.openPolls === sets.length);
  const polls = stub.sets.filter(({ org }) => orgs.includes(org)).map((set) => set.polls);
  expect(polls).toEqual(sets.map(() => 1));
  const status = readFileSync(`/proc/${world.runners?.pid}/status`, 'utf8');
  const kilobytes = Number(/VmRSS:\s+(\d+)/.exec(status)?.[1]);
  expect(kilobytes).toBeLessThan(MEMORY_KILOBYTES);
  await allowMetrics(world.cluster);
  const metrics = await readMetrics(world.cluster, world.runners as NonNullable<typeof world.runners>);
  expect(metrics).toContain(
    'runner_scale_set_total_assigned_jobs{runner_name="set-0",vm_namespace="platform-default"} 0',
  );
});
