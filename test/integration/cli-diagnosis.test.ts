/** Verbs of the command `berth` that wait for VMs, say why they do not run, and work with their disks. The test acts as the agents. */
import { readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { gunzipSync } from 'node:zlib';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { TASK_ANNOTATION, WARM_START_CONDITION } from '../../api/v1alpha1/names.ts';
import { IMAGES, VMS } from '../../api/v1alpha1/resources.ts';
import type { VMSpec } from '../../api/v1alpha1/vm.ts';
import { type Cluster, type OperatorProcess, startCluster } from '../../hack/cluster/index.ts';
import { waitFor } from '../../hack/wait.ts';
import { JOBS, PODS } from '../../kube/core.ts';
import { VMs } from '../fixtures/vms.ts';
import { BerthCommand, type CommandResult } from '../wires/berth.ts';
import { ActingHost, setNodeCondition } from '../worlds/actinghost.ts';
import { createQuota } from '../support/quota.ts';

const namespace = 'platform-default';
const SMALL = 'platform-small';
const DIGEST = `sha256:${'a'.repeat(64)}`;
/** What the agent reports of a disk that it stored. */
const STORED = { digest: DIGEST, sizeBytes: 64 * 1024 ** 3, storageBytes: 9 * 1024 ** 3 };

let cluster: Cluster;
let operator: OperatorProcess;
let vms: VMs;
/** Host whose agent is the test. */
let rack: ActingHost;
/** Host that becomes silent. */
let silent: ActingHost;
/** Host with one slot. */
let tiny: ActingHost;
let command: BerthCommand;

beforeAll(async () => {
  cluster = await startCluster({ name: `cli-diagnosis-${process.pid}` });
  operator = await cluster.startOperator({
    config: { imageStorage: { folder: true }, osx_node_platform_quota_pod: 1 },
  });
  vms = new VMs(cluster);
  command = await BerthCommand.make(cluster.kubeconfig);
});

afterAll(async () => {
  await command?.[Symbol.asyncDispose]();
  await Promise.all([rack, silent, tiny].map((host) => host?.silence()));
  await operator?.stop();
  await cluster?.stop();
});

async function berth(...args: string[]): Promise<CommandResult> {
  return await command.run(args);
}

/** Returns the diagnosis of the VM. Both streams are read as one, and all of it must be JSON. */
async function why(name: string, where = namespace) {
  const { code, out } = await command.run(['vm', 'why', name, '-n', where, '-o', 'json'], { together: true });
  expect([code, out]).toEqual([0, expect.stringMatching(/^\[/)]);
  const [item] = JSON.parse(out) as { area: string; reason: string; message: string; todo: string[] }[];
  return [item?.area, item?.reason, `${item?.message} -> ${item?.todo.join()}`];
}

function on(node: string, spec: Partial<VMSpec> = {}): Partial<VMSpec> {
  return { ...spec, placement: { node, ...spec.placement } };
}

function ref(name: string) {
  return { namespace, name };
}

/** Begins the work on the Image in the place of the agent, when the operator has requested it. */
async function beginWork(image: RegExp, operation: string) {
  const job = await waitFor(`a Job to ${operation} ${image}`, async () => {
    const { items } = await cluster.client().list(JOBS, { namespace });
    return items.find(
      ({ metadata }) =>
        image.test(metadata.ownerReferences?.[0]?.name ?? '') &&
        metadata.labels?.['berth.dev/operation'] === operation,
    );
  });
  return await rack.beginTask(ref(job.metadata.name));
}

describe('vm why', () => {
  it('says that the cluster has no hosts', async () => {
    await vms.create('early');
    await vms.waitForCondition('early', 'Scheduled', { status: 'False' });
    expect(await why('early')).toEqual([
      'scheduler',
      'Unschedulable',
      expect.stringMatching(/-> .*no hosts: add one/),
    ]);
    await vms.delete('early');
    await vms.waitUntilGone('early');
  });

  it('finds what the operator and the scheduler of the cluster report', async () => {
    const client = cluster.client();
    [rack, silent, tiny] = await Promise.all([
      ActingHost.join(client, 'rack', { slots: 16, architecture: 'amd64' }),
      ActingHost.join(client, 'silent', { architecture: 'amd64' }),
      ActingHost.join(client, 'tiny', { slots: 1 }),
    ]);
    await Promise.all([rack, silent, tiny].map((host) => host.placeable()));
    await cluster.createNamespace(SMALL);
    await createQuota(cluster, { namespace: SMALL, name: 'few' }, 'pods=0');
    const small = new VMs(cluster, SMALL);
    await vms.createMany(['holder', 'second'], on('rack', { ports: ['8822:22'] }));
    await vms.createMany(['one', 'two'], on('tiny'));
    await vms.create('tagged', { placement: { tag: 'fast', tagPolicy: 'Required' } });
    await vms.create('nameless', on('rack', { image: 'absent' }));
    await small.create('poor');
    const blocked = async (one: VMs, names: string[]) =>
      await waitFor(`one of ${names.join()} to be blocked`, async () => {
        const items = await Promise.all(names.map((name) => one.get(name)));
        const found = items.find(({ status }) =>
          status?.conditions?.some(({ type, status: is }) => type === 'Scheduled' && is === 'False'),
        );
        return found?.metadata.name;
      });
    const [port, slot, tag, , quota] = await Promise.all([
      blocked(vms, ['holder', 'second']),
      blocked(vms, ['one', 'two']),
      blocked(vms, ['tagged']),
      vms.waitForCondition('nameless', 'ImageReady', { reason: 'ImageNotFound' }),
      blocked(small, ['poor']),
    ]);
    const found = await Promise.all([why(port), why(slot), why(tag), why('nameless'), why(quota, SMALL)]);
    expect(found).toEqual([
      [
        'scheduler',
        'Unschedulable',
        expect.stringMatching(/8822\/TCP is held by.*-> Delete the VM that uses/),
      ],
      ['scheduler', 'Unschedulable', expect.stringMatching(/without a free slot -> All slots are taken/)],
      ['scheduler', 'Unschedulable', expect.stringMatching(/-> No host has the tag fast:/)],
      ['image', 'ImageNotFound', expect.stringMatching(/absent.* -> Make the image available/)],
      [
        'quota',
        'PodRefused',
        expect.stringMatching(/exceeded quota: few.* -> .*raise the ResourceQuota few/),
      ],
    ]);
  });

  it('finds what the agents of the hosts report', async () => {
    const names = ['secret', 'full', 'nat', 'unstarted', 'unready'];
    await vms.createMany([...names, 'unborn'], on('rack'));
    await vms.create('away', on('silent'));
    await Promise.all([...names, 'unborn'].map((name) => rack.waitForPod(ref(name))));
    await silent.waitForPod(ref('away'));
    await silent.run(ref('away'));
    await rack.waiting(ref('secret'), 'PullSecretMissing', 'Secret regcred is not in the namespace');
    await rack.waiting(ref('full'), 'DiskFull', '9 GB are needed and 1 GB is free');
    // The operator deletes a VM with this failure if it has never run.
    await rack.fail(ref('unborn'), 'NATSelfHealFailed', 'rule 7 of another program drops packets');
    await rack.run(ref('nat'));
    await vms.waitForPhase('nat', 'Running');
    await rack.fail(ref('nat'), 'NATSelfHealFailed', 'rule 7 drops packets', new Date().toISOString());
    await rack.fail(ref('unstarted'), 'StartFailed', 'qemu: no such \u001b[2Jaccelerator');
    await rack.run(ref('unready'));
    await rack.setPodCondition(ref('unready'), {
      type: 'Ready',
      status: 'False',
      reason: 'GuestNotReady',
      message: 'port 22 of the guest does not answer',
    });
    await Promise.all([
      vms.waitForCondition('secret', 'ImageReady', { status: 'False' }),
      vms.waitForCondition('full', 'ImageReady', { status: 'False' }),
      vms.waitForPhase('nat', 'Failed'),
      vms.waitForPhase('unstarted', 'Failed'),
      vms.waitForCondition('unready', 'Ready', { reason: 'NotReady' }),
      vms.waitForPhase('away', 'Running'),
      vms.waitUntilGone('unborn'),
    ]);
    await silent.silence();
    await setNodeCondition(cluster.client(), 'silent', {
      type: 'Ready',
      status: 'Unknown',
      reason: 'NodeStatusUnknown',
    });
    await vms.waitForCondition('away', 'Ready', { reason: 'HostUnreachable' });
    const found = await Promise.all([...names, 'away'].map((name) => why(name)));
    expect(found).toEqual([
      ['image', 'PullSecretMissing', expect.stringMatching(/regcred.* -> Create the secret/)],
      ['image', 'DiskFull', expect.stringMatching(/9 GB.* -> Free space/)],
      ['network', 'NATSelfHealFailed', expect.stringMatching(/rule 7.* -> Remove the rule/)],
      ['machine', 'StartFailed', expect.stringMatching(/accelerator.* -> Read the condition’s message/)],
      ['guest', 'NotReady', expect.stringMatching(/port 22.* -> .*console of the guest/)],
      ['host', 'HostUnreachable', expect.stringMatching(/silent.* -> Look at the host/)],
    ]);
  });

  it('writes one page for people', async () => {
    const { code, out, err } = await berth('vm', 'why', 'unstarted');
    expect([code, err]).toEqual([0, '']);
    expect(out).toMatch(/^VM unstarted \(Failed\): qemu: no such {2}\[2Jaccelerator\n/);
    expect(out).toMatch(/^ {2}scheduler +ok +Host rack$/m);
    expect(out).toMatch(/^ {2}machine +problem +StartFailed$/m);
    expect(out).toMatch(
      /What to do:\n {2}Read the condition’s message, and check the hypervisor on the host\.\n/,
    );
    // A host often gets a VM in the second in which the VM was created.
    expect(out).toMatch(/^ {2}\S+ +Scheduled +The VM was placed on host rack \(attempt 1\)$/m);
    expect(await berth('vm', 'why', 'absent')).toMatchObject({
      code: 4,
      err: `error: vm "absent" not found in namespace ${namespace}\n`,
    });
  });

  it('tells the last Events of a VM that is gone', async () => {
    const { code, out, err } = await berth('vm', 'why', 'unborn', '-o', 'json');
    expect([code, out]).toEqual([4, '']);
    expect(err).toContain(
      'error: vm "unborn" not found in namespace platform-default. The VM no longer exists',
    );
    expect(err).toMatch(/^ +\S+ +NATSelfHealFailed +.*rule 7 of another program drops packets$/m);
  });
});

describe('vm wait', () => {
  it('ends when the VMs run, are ready, have a condition, and are gone', async () => {
    await vms.createMany(['first', 'other'], on('rack'));
    const wait = (goal: string, ...names: string[]) =>
      berth('vm', 'wait', ...names, '--for', goal, '--timeout', '60s');
    const running = wait('running', 'first', 'other');
    const ready = wait('ready', 'first');
    await Promise.all(['first', 'other'].map((name) => rack.waitForPod(ref(name))));
    await rack.run(ref('first'));
    await vms.waitForPhase('first', 'Running');
    const early = await berth('vm', 'wait', 'first', 'other', '--for', 'running', '--timeout', '1s');
    expect([early.code, early.out]).toEqual([5, 'vm first is running\n']);
    expect(early.err).toMatch(
      /^error: VM other is not running after 1 s\. It is waiting for: .* For details, run: .* vm why other\n$/,
    );
    await rack.run(ref('other'));
    expect(await running).toEqual({ code: 0, out: 'vm first is running\nvm other is running\n', err: '' });
    const unready = await berth('vm', 'wait', 'unready', '--for', 'ready', '--timeout', '1s');
    expect([unready.code, unready.out]).toEqual([5, '']);
    await rack.setPodCondition(ref('first'), { type: 'Ready', status: 'True', reason: 'GuestReady' });
    expect(await ready).toEqual({ code: 0, out: 'vm first is ready\n', err: '' });
    expect(await wait('condition=Scheduled', 'first')).toMatchObject({
      code: 0,
      out: 'vm first is at condition Scheduled=True\n',
    });
    await vms.delete('other');
    const still = await berth('vm', 'wait', 'other', '--for', 'deleted', '--timeout', '1s');
    expect([still.code, still.err]).toEqual([
      5,
      expect.stringMatching(/VM other is not deleted after 1 s\. It is waiting for: the end of the machine/),
    ]);
    const gone = wait('deleted', 'other');
    await rack.end(ref('other'));
    expect(await gone).toMatchObject({ code: 0, err: '' });
    expect(await wait('deleted', 'other')).toEqual({ code: 0, out: '', err: '' });
    expect(await wait('ready', 'absent')).toMatchObject({ code: 4 });
  });

  it('ends at once for a VM that cannot run, and is refused for other states', async () => {
    const failed = await berth('vm', 'wait', 'unstarted', '--for', 'ready');
    expect([failed.code, failed.err]).toEqual([1, expect.stringMatching(/VM unstarted cannot run: qemu/)]);
    const odd = await berth('vm', 'wait', 'unstarted', '--for', 'paused');
    expect([odd.code, odd.err]).toEqual([
      2,
      expect.stringMatching(/--for.*running, ready, stopped, suspended, deleted or condition=TYPE/),
    ]);
  });
});

describe('work with a disk', () => {
  it('lets it grow, and never shrink, and reverts it', async () => {
    expect((await berth('vm', 'resize', 'unready', '200')).out).toMatch(
      /^Requested a disk of 200G for vm unready/,
    );
    const smaller = await berth('vm', 'resize', 'unready', '100Gi');
    expect([smaller.code, smaller.err]).toEqual([
      1,
      expect.stringContaining('A disk can only grow, so 100Gi is refused'),
    ]);
    expect(await berth('vm', 'revert', 'unready')).toMatchObject({
      code: 0,
      out: 'Requested revert of vm unready\n',
    });
    expect((await vms.get('unready')).spec).toMatchObject({
      diskSize: '200G',
      revertRequestedAt: expect.any(String),
    });
  });

  it('refuses a snapshot of no VM, and a revert to no snapshot', async () => {
    expect(await berth('snapshot', 'create', 'lost', '--vm', 'nosuch')).toMatchObject({
      code: 4,
      err: expect.stringContaining('vm "nosuch" not found'),
    });
    expect(await berth('vm', 'revert', 'unready', '--to', 'lost')).toMatchObject({
      code: 4,
      err: expect.stringContaining('VM unready has no snapshot lost'),
    });
  });
});

describe('a copy of a disk', () => {
  beforeAll(async () => {
    // The work on images belongs to the host that the test plays.
    await cluster.kubectl(['cordon', 'tiny', 'silent']);
  });

  it('is saved as a new image when the host has stored it', async () => {
    const saved = berth('vm', 'save', 'first', 'snapshot', '-d', 'after the tests', '--memory');
    const memory = { cpu: 2, memoryBytes: 1024 ** 3, key: 'c'.repeat(64), savedAt: '2026-01-01T00:00:00Z' };
    const memoryDigest = 'd'.repeat(64);
    const work = await beginWork(/^snapshot$/, 'save');
    const { annotations = {} } = (await cluster.client().get(PODS, work)).metadata;
    expect(JSON.parse(annotations[TASK_ANNOTATION] ?? '')).toMatchObject({ type: 'save', memory: true });
    await rack.finishTask(work, { ...STORED, memory, memoryDigest });
    expect(await saved).toEqual({ code: 0, out: 'Successfully finished save of image snapshot\n', err: '' });
    const { out } = await berth('image', 'get', 'snapshot', '-o', 'json');
    expect(JSON.parse(out)).toMatchObject([
      {
        name: 'snapshot',
        state: 'Ready',
        description: 'after the tests',
        digest: DIGEST,
        size: '64Gi',
        memorySize: '1Gi',
      },
    ]);
    const { memoryBytes: _bytes, ...shown } = memory;
    const { status } = await cluster.client().get(IMAGES, ref('snapshot'));
    expect(status).toMatchObject({ memory: { size: '1Gi', ...shown }, content: { memoryDigest } });
    const again = await berth('vm', 'save', 'first', 'snapshot');
    expect([again.code, again.err]).toEqual([1, expect.stringContaining('"snapshot" already exists')]);
    const [absent, odd] = await Promise.all([
      berth('vm', 'save', 'absent', 'other'),
      berth('vm', 'save', 'first', 'Upper_Case'),
    ]);
    expect([absent.code, absent.err]).toEqual([4, expect.stringContaining('vm "absent" not found')]);
    expect([odd.code, odd.err]).toEqual([2, expect.stringContaining('"Upper_Case"')]);
  });

  it('that fails or is not complete in time says so', async () => {
    const failing = berth('vm', 'save', 'first', 'unsaved');
    await rack.failTask(
      await beginWork(/^unsaved$/, 'save'),
      'ImageInvalid',
      'no room in \u001b[2Jthe storage',
    );
    const { code, out, err } = await failing;
    expect([code, out]).toEqual([1, '']);
    expect(err).toMatch(/^error: The save of image unsaved failed: .*no room in  \[2Jthe storage/);
    const late = await berth('vm', 'save', 'first', 'slow', '--timeout', '1s');
    expect([late.code, late.out]).toEqual([5, '']);
    expect(late.err).toMatch(
      /The save of image slow did not end within 1 s.* continues\. .*, run: .* image get slow/,
    );
  });

  it('replaces the image of the VM only if the VM was made from it', async () => {
    const refused = await berth('vm', 'commit', 'first');
    expect([refused.code, refused.err]).toEqual([
      1,
      expect.stringMatching(/Save the VM as a new image instead/),
    ]);
    await vms.create('worker', on('rack', { image: 'snapshot' }));
    await rack.waitForPod(ref('worker'));
    await rack.run(ref('worker'));
    await vms.waitForPhase('worker', 'Running');
    const cold = { status: 'False', reason: 'KeyDiffers', message: 'The host has QEMU 10' } as const;
    await rack.setPodCondition(ref('worker'), { type: WARM_START_CONDITION, ...cold });
    await vms.waitForCondition('worker', 'WarmStart', cold);
    const committed = berth('vm', 'commit', 'worker', '--description', 'next state', '-o', 'json');
    const digest = `sha256:${'b'.repeat(64)}`;
    const work = await beginWork(/^snapshot$/, 'commit');
    const second = await berth('vm', 'commit', 'worker');
    expect([second.code, second.err]).toEqual([
      1,
      expect.stringMatching(/The commit of VM worker to Image snapshot, requested at \S+, has not ended/),
    ]);
    await rack.finishTask(work, { ...STORED, digest });
    const { code, out, err } = await committed;
    expect([code, err]).toEqual([0, '']);
    const [item] = JSON.parse(out) as object[];
    expect(item).toMatchObject({ name: 'snapshot', description: 'next state', digest });
    // A commit saves only a disk.
    expect(item).not.toHaveProperty('memorySize');
  });

  it('is pushed to a registry under a name of its own', async () => {
    const reference = 'registry.example/team/disk:2';
    const pushed = berth('vm', 'push', 'first', reference, '-o', 'json');
    await rack.finishTask(await beginWork(/^vm-push-/, 'save'), STORED);
    await rack.finishTask(await beginWork(/^vm-push-/, 'push'), {
      reference: `registry.example/team/disk@${DIGEST}`,
    });
    const { code, out, err } = await pushed;
    expect([code, err]).toEqual([0, '']);
    const [{ jobName }] = JSON.parse(out) as [{ jobName: string }];
    expect(JSON.parse(out)).toMatchObject([{ name: jobName, image: reference, status: 'Succeeded' }]);
    expect(jobName).toMatch(/^vm-push-[a-z0-9]{5}$/);
    const requested = await berth('vm', 'push', 'first', 'registry.example/team/disk', '--wait=false');
    expect(requested).toEqual({
      code: 0,
      out: expect.stringMatching(
        /^Requested push vm-push-[a-z0-9]{5} to registry\.example\/team\/disk\S*\n$/,
      ),
      err: '',
    });
  });
});

describe('support-bundle', () => {
  it('has no planted secret, tells what could not be read, and replaces no file', async () => {
    const client = cluster.client();
    await cluster.kubectl([
      'create',
      'secret',
      'generic',
      'keys',
      '--from-literal=a=planted01',
      '-n',
      namespace,
    ]);
    await client.create(VMS, {
      metadata: {
        name: 'planted',
        namespace,
        labels: { team: 'planted02' },
        annotations: { 'kubectl.kubernetes.io/last-applied-configuration': '{"userData":"planted03"}' },
      },
      spec: {
        image: 'registry.example/guest:1',
        userData: '#cloud-config\npassword: planted04\n',
        guestMetadata: { key: 'planted05' },
      },
    });
    await client.create(IMAGES, {
      metadata: { name: 'planted', namespace },
      spec: {
        description: 'planted06',
        source: { http: { url: 'https://files.example/a.img?sig=planted08', sha256: 'a'.repeat(64) } },
      },
    });
    const file = join(cluster.directory, 'support.tar.gz');
    const { code, out, err } = await berth('support-bundle', '--file', file);
    expect([code, out]).toEqual([0, expect.stringMatching(/^Wrote .*support\.tar\.gz \(\d+ KiB\)/)]);
    expect(statSync(file).mode & 0o777).toBe(0o600);
    const raw = gunzipSync(readFileSync(file)).toString('latin1');
    expect(raw.match(/planted0\d/g)).toBeNull();
    for (const plural of ['vms', 'images']) {
      const [, objects] = raw.split(`berth-support/objects/${plural}.json`);
      expect(objects).toMatch(/"name": ?"planted"/);
    }
    // The simulated hosts serve no metrics.
    expect(err).toMatch(/^warning: not in the bundle: metrics of host rack: /m);
    expect(raw).toContain('metrics of host rack');
    const again = await berth('support-bundle', '--file', file);
    expect([again.code, again.err]).toEqual([
      2,
      expect.stringMatching(/exists\. Name another one with --file/),
    ]);
  });
});
