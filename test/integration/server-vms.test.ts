/** Deployment of VMs over the HTTP API: each way in which a deployment can end, and the actions on a VM. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { CREATED_BY_ANNOTATION } from '../../api/v1alpha1/names.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { type Cluster, type OperatorProcess, startCluster } from '../../hack/cluster/index.ts';
import type { ServerProcess } from '../../hack/cluster/program.ts';
import { waitFor } from '../../hack/wait.ts';
import { SERVICE_ACCOUNTS } from '../../kube/core.ts';
import { IMAGES, VM_SNAPSHOTS, VMS } from '../../api/v1alpha1/resources.ts';
import { IMAGE, VMs } from '../fixtures/vms.ts';
import { accountToken } from '../support/members.ts';
import { type HTTPAnswer, HTTPClient } from '../wires/httpapi.ts';
import { ActingHost } from '../worlds/actinghost.ts';

const PATH = '/api/v1/namespaces/platform-default/vms';
const namespace = 'platform-default';
const NOW = '2026-11-23T12:00:00Z';

let cluster: Cluster;
let operator: OperatorProcess;
let server: ServerProcess;
let api: HTTPClient;
let token: string;
let vms: VMs;
/** Host whose agent is the test, so its VMs wait until the test lets them run. */
let bare: ActingHost;
/** Answer of a deployment with the shortest time limit, which no host can place. */
let late: Promise<HTTPAnswer>;

beforeAll(async () => {
  cluster = await startCluster({ name: `server-vms-${process.pid}`, hosts: 2 });
  operator = await cluster.startOperator({ config: { imageStorage: { folder: true } } });
  vms = new VMs(cluster);
  bare = await ActingHost.join(cluster.client(), 'bare', { slots: 16 });
  await bare.placeable();
  server = await cluster.startServer();
  api = new HTTPClient(server);
  token = await memberToken('dev');
  late = deploy({ name: 'late', ...nowhere, timeout: 1 });
  late.catch(() => undefined);
});

afterAll(async () => {
  await api?.close();
  await server?.process.stop();
  await bare?.silence();
  await cluster?.stop();
});

/** Returns the token of a new member of the namespace. */
async function memberToken(name: string): Promise<string> {
  const member = await accountToken(cluster, { namespace, name }, { role: 'berth-role-dev' });
  await waitFor('the rights', async () => (await api.call(PATH, { token: member })).status === 200);
  return member;
}

/** A VM that runs without help of the test. If no host is named, the scheduler may choose the host of the test. */
const simulated = { image: IMAGE, node: 'host-0' };
const onBare = { image: IMAGE, node: 'bare' };
const nowhere = { image: IMAGE, tag: 'nowhere', tagRequired: true };

function deploy(body: object, query = '', signal?: AbortSignal): Promise<HTTPAnswer> {
  return api.call(`${PATH}${query}`, { method: 'POST', token, body, ...(signal && { signal }) });
}

/** Waits until the VM is bound to the host of the test. An answer of the deployment before that is an error. */
async function bound(name: string, answer: Promise<HTTPAnswer>): Promise<void> {
  const early = answer.then(({ status, body }) => {
    throw new Error(`the deployment answered ${status}: ${body.message}`);
  });
  await Promise.race([bare.waitForPod({ namespace, name }), early]);
}

async function onlyVM(prefix: string): Promise<VM> {
  return await waitFor(`a VM ${prefix}…`, async () =>
    (await vms.list()).find(({ metadata }) => metadata.name.startsWith(prefix)),
  );
}

describe('a deployment', () => {
  it('answers when the VM runs, keeps it, and names its owner', async () => {
    // The deployment has an earlier time until it is answered.
    const aliveUntil = '2100-01-01T00:00:00Z';
    const limits = { activeDeadlineSeconds: 3_600, ttlSecondsAfterFinished: 0, aliveUntil };
    const request = { ...simulated, ...limits, CPU: 2, memory: 4.8, labels: { job: '42' } };
    const { status, body } = await deploy(request);
    expect([status, body]).toMatchObject([200, { status: 'Running', memory: '4.80Gi' }]);
    expect(body.name).toMatch(/^vm-[a-z0-9]{5}$/);
    const { metadata, spec } = await vms.get(body.name);
    expect(spec).toMatchObject(limits);
    expect(metadata.annotations?.[CREATED_BY_ANNOTATION]).toBe(`system:serviceaccount:${namespace}:dev`);
    expect(metadata.labels).toMatchObject({ job: '42' });
    const one = await api.call(`${PATH}/${body.name}`, { token });
    expect([one.status, one.body]).toMatchObject([200, { name: body.name, cpu: 2, node: body.node }]);
    expect((await api.call(`${PATH}/${body.name}?wait=true`, { method: 'DELETE', token })).status).toBe(200);
    for (const method of ['GET', 'DELETE'] as const) {
      const gone = await api.call(`${PATH}/${body.name}`, { method, token });
      expect([gone.status, gone.body.message]).toEqual([404, expect.stringContaining('not found')]);
    }
  });

  it('makes nothing for a value out of bounds or a name that is taken', async () => {
    const { status, body } = await deploy({ image: IMAGE, name: 'bad', cpu: 99_999 });
    expect([status, body.reason]).toEqual([422, 'Invalid']);
    expect(body.message).toContain('99999');
    expect(body.details.causes[0].field).toBe('cpu');
    expect((await deploy({ image: IMAGE, name: 'late' })).body).toMatchObject({
      code: 409,
      reason: 'AlreadyExists',
    });
    expect((await vms.list()).map(({ metadata }) => metadata.name)).not.toContain('bad');
  });

  it('with a wrong name answers 404 at once, and leaves no VM', async () => {
    for (const wrong of [{ vmConfig: 'absent' }, { image: 'absent' }, { image: IMAGE, node: 'absent' }]) {
      const { status, body } = await deploy({ ...wrong, name: 'misspelt' });
      expect([wrong, status, body.reason]).toEqual([wrong, 404, 'NotFound']);
      expect(body.message).toMatch(/absent.* not found/);
      await vms.waitUntilGone('misspelt');
    }
    // Without a wait, nothing else would tell the caller.
    const unwaited = await deploy({ vmConfig: 'absent', name: 'misspelt' }, '?wait=false');
    expect([unwaited.status, unwaited.body.message]).toEqual([404, 'vmconfigs.berth.dev "absent" not found']);
  });

  it('that fails answers 500 with the words of the hypervisor, and leaves no VM', async () => {
    const answer = deploy({ ...onBare, name: 'failing' });
    await bound('failing', answer);
    await bare.fail({ namespace, name: 'failing' }, 'StartFailed', 'qemu: no such accelerator');
    const { status, body } = await answer;
    expect([status, body.message]).toEqual([500, expect.stringContaining('no such accelerator')]);
    expect(body.details.causes[0].reason).toBe('StartFailed');
    await vms.waitUntilGone('failing');
  });

  it('that no host can take answers 503 at once if the client wants so', async () => {
    const { status, body, headers } = await deploy({ ...nowhere, name: 'full' }, '?whenFull=fail');
    expect([status, body.reason]).toEqual([503, 'ServiceUnavailable']);
    expect(headers['retry-after']).toBeDefined();
    await vms.waitUntilGone('full');
  });

  it('answers 409 when somebody deletes the VM', async () => {
    const answer = deploy({ ...onBare, name: 'stolen' });
    await bound('stolen', answer);
    await vms.delete('stolen');
    await bare.end({ namespace, name: 'stolen' });
    expect((await answer).status).toBe(409);
  });

  it('answers at once with wait=false', async () => {
    const { status, body } = await deploy({ ...onBare, name: 'unwaited' }, '?wait=false');
    expect([status, body]).toMatchObject([202, { name: 'unwaited', status: 'Pending' }]);
    expect((await vms.get('unwaited')).spec.aliveUntil).toBeUndefined();
  });
});

describe('a client that is gone', () => {
  it('leaves no VM whose name the server chose', async () => {
    const client = new AbortController();
    const answer = deploy({ ...nowhere, name: 'nobody', shouldGenerateName: true }, '', client.signal);
    const { metadata, spec } = await onlyVM('nobody-');
    expect(spec.aliveUntil).toBeDefined();
    client.abort();
    await expect(answer).rejects.toThrow('aborted');
    await vms.waitUntilGone(metadata.name);
  });

  it('keeps the VM that it named', async () => {
    const client = new AbortController();
    const answer = deploy({ ...onBare, name: 'known' }, '', client.signal);
    await bound('known', answer);
    client.abort();
    await expect(answer).rejects.toThrow('aborted');
    const vm = await vms.waitForVM(
      'known',
      'the annotation to go',
      ({ spec }) => spec.aliveUntil === undefined,
    );
    expect(vm.metadata.deletionTimestamp).toBeUndefined();
  });
});

describe('trouble in the middle of a deployment', () => {
  it('a token that is no longer valid answers 401, and the VM keeps the end of its life', async () => {
    const guest = await memberToken('guest');
    const answer = api.call(PATH, { method: 'POST', token: guest, body: { ...onBare, name: 'orphaned' } });
    await bound('orphaned', answer);
    await cluster.client().delete(SERVICE_ACCOUNTS, { namespace, name: 'guest' });
    await waitFor('the token to end', async () => (await api.call(PATH, { token: guest })).status === 401);
    await bare.run({ namespace, name: 'orphaned' });
    const { status, body } = await answer;
    expect([status, body.message]).toEqual([401, expect.stringContaining('Unauthorized')]);
    expect((await vms.get('orphaned')).spec.aliveUntil).toBeDefined();
  });

  it('a server that stops answers 503 and leaves no VM', async () => {
    const second = await cluster.startServer({ name: 'second' });
    const client = new HTTPClient(second);
    const body = { ...nowhere, name: 'moved' };
    const answer = client.call(PATH, { method: 'POST', token, body });
    await onlyVM('moved');
    await second.process.kill('SIGTERM');
    expect([(await answer).status, (await answer).body.message]).toEqual([
      503,
      expect.stringContaining('stopping'),
    ]);
    await vms.waitUntilGone('moved');
    await client.close();
    await second.process.stop();
  });
});

it('a namespace that does not exist is not found', async () => {
  const missing = PATH.replace(namespace, 'platform-missing');
  const viewer = await memberToken('viewer');
  await cluster.kubectl([
    'create',
    'clusterrolebinding',
    'viewer',
    '--clusterrole=berth-role-viewer',
    `--serviceaccount=${namespace}:viewer`,
  ]);
  const rights = async () => (await api.call(missing, { token: viewer })).status !== 403;
  await waitFor('the rights of the viewer', rights);
  for (const path of [missing, missing.replace('vms', 'images'), missing.replace('vms', 'pushes')]) {
    const { status, body } = await api.call(path, { token: viewer });
    expect([path, status, body.message]).toEqual([path, 404, expect.stringContaining('not found')]);
  }
});

describe('actions on a VM', () => {
  const act = async (name: string, action: string, body: object = {}) => {
    const answer = await api.call(`${PATH}/${name}/${action}`, { method: 'POST', token, body });
    return answer.status;
  };

  it('change its power where its state allows it', async () => {
    await bare.run({ namespace, name: 'known' });
    await vms.waitForPhase('known', 'Running');
    expect(await act('known', 'exec', { command: 'suspend' })).toBe(200);
    expect((await vms.get('known')).spec.powerState).toBe('Suspended');
    expect(await act('known', 'exec', { Action: 'start' })).toBe(200);
    expect((await vms.get('known')).spec.powerState).toBe('Running');
    expect(await act('known', 'exec/stop')).toBe(200);
    expect((await vms.get('known')).spec.powerState).toBe('Stopped');
    expect(await act('known', 'exec', { operation: 'revert' })).toBe(200);
    expect((await vms.get('known')).spec.revertRequestedAt).toBeDefined();
    expect(await act('unwaited', 'exec', { command: 'suspend' })).toBe(409);
    expect(await act('missing', 'exec', { command: 'start' })).toBe(404);
    expect(await act('known', 'exec', { command: 'explode' })).toBe(422);
  });

  it('keep its disk, reset it to that, and delete what was kept', async () => {
    const path = PATH.replace('/vms', '/vmsnapshots');
    const kept = { name: 'kept', vm: 'known', memory: true };
    const made = await api.call(path, { method: 'POST', token, body: kept });
    expect([made.status, made.body]).toEqual([
      200,
      expect.objectContaining({ name: 'kept', vm: 'known', status: 'Pending' }),
    ]);
    const { spec } = await cluster.client().get(VM_SNAPSHOTS, { namespace, name: 'kept' });
    expect(spec).toEqual({ vmName: 'known', memory: true });
    const again = await api.call(path, { method: 'POST', token, body: kept });
    const lost = await api.call(path, { method: 'POST', token, body: { name: 'lost', vm: 'missing' } });
    expect([again.status, lost.status]).toEqual([409, 404]);
    const listed = await api.call(path, { token });
    expect(listed.body.items).toMatchObject([{ name: 'kept', vm: 'known' }]);
    expect((await api.call(`${path}/kept`, { token })).status).toBe(200);
    expect(await act('known', 'exec', { command: 'stop', snapshot: 'kept' })).toBe(422);
    expect(await act('known', 'exec', { command: 'revert', snapshot: 'lost' })).toBe(404);
    expect(await act('known', 'exec', { command: 'revert', snapshot: 'kept' })).toBe(200);
    expect((await vms.get('known')).spec.revertTo).toBe('kept');
    expect((await api.call(`${path}/kept`, { method: 'DELETE', token })).status).toBe(200);
    expect((await api.call(`${path}/kept`, { token })).status).toBe(404);
  });

  it('make images of its disk', async () => {
    expect(await act('known', 'save', { imageName: 'saved', description: 'kept' })).toBe(200);
    expect((await cluster.client().get(IMAGES, { namespace, name: 'saved' })).spec).toMatchObject({
      description: 'kept',
      source: { fromVM: { name: 'known' } },
    });
    expect(await act('known', 'save', { imageName: 'saved' })).toBe(409);
    expect(await act('known', 'commit')).toBe(409);
  });

  it('request that its image gets the content of its disk', async () => {
    const base = { namespace, name: 'base' };
    const spec = { description: 'first', source: { registry: { reference: IMAGE } } };
    await cluster.client().create(IMAGES, { metadata: base, spec });
    expect((await deploy({ image: 'base', name: 'committer' }, '?wait=false')).status).toBe(202);
    expect(await act('committer', 'commit', { description: 'second' })).toBe(200);
    expect((await cluster.client().get(IMAGES, base)).spec).toMatchObject({
      description: 'second',
      commit: { vmName: 'committer' },
    });
    // No host has the image yet, so the commit has not ended.
    expect(await act('committer', 'commit')).toBe(409);
  });

  it('push its disk, and tell how far the push is', async () => {
    const body = { imageReference: 'registry.example/team/saved' };
    const { status, body: push } = await api.call(`${PATH}/known/push`, { method: 'POST', token, body });
    expect([status, push.jobName]).toEqual([200, expect.stringMatching(/^vm-push-[a-z0-9]{5}$/)]);
    const pushes = PATH.replace('vms', 'pushes');
    const waiting = { jobName: push.jobName, image: body.imageReference, status: 'Pending' };
    const item = await waitFor('the operator to see the push', async () => {
      const { body: one } = await api.call(`${pushes}/${push.jobName}`, { token });
      return one.message === undefined ? undefined : one;
    });
    expect(item).toMatchObject(waiting);
    expect((await api.call(pushes, { token })).body.items).toEqual([expect.objectContaining(waiting)]);
    expect((await api.call(`${pushes}/saved`, { token })).status).toBe(404);
    const { body: images } = await api.call(PATH.replace('vms', 'images'), { token });
    const names = images.items.map(({ name }: { name: string }) => name);
    expect(names).toEqual(expect.arrayContaining(['base', 'saved']));
    expect(names).not.toContain(push.jobName);
    const { spec } = await cluster.client().get(IMAGES, { namespace, name: push.jobName });
    expect(spec.ttlSecondsAfterFinished).toBe(3600);
  });

  it('prolong its life, and never shorten it', async () => {
    const [until, later] = ['2099-01-01T00:00:00Z', '2099-01-02T00:00:00Z'];
    const body = { ...nowhere, name: 'held', aliveUntil: until };
    expect((await deploy(body, '?wait=false')).status).toBe(202);
    expect(await act('held', 'prolong', { aliveUntil: later })).toBe(200);
    expect((await vms.get('held')).spec.aliveUntil).toBe(later);
    const prolong = async (name: string, aliveUntil: string) => {
      const call = { method: 'POST', token, body: { aliveUntil } } as const;
      const { status, body: answer } = await api.call(`${PATH}/${name}/prolong`, call);
      return [status, answer.message];
    };
    expect(await prolong('held', until)).toEqual([422, expect.stringContaining('only be moved later')]);
    expect(await prolong('held', 'tomorrow')).toEqual([422, expect.stringContaining('aliveUntil: ')]);
    expect((await vms.get('held')).spec.aliveUntil).toBe(later);
    // A user who may change a VM could otherwise delete it.
    expect(await prolong('known', later)).toEqual([
      403,
      expect.stringContaining('only when the VM is created'),
    ]);
    expect((await prolong('missing', later))[0]).toBe(404);
  });

  it('let its disk grow, and never shrink', async () => {
    expect(await act('known', 'resize', { size: 200 })).toBe(200);
    expect((await vms.get('known')).spec.diskSize).toBe('200G');
    expect(await act('known', 'resize', { size: 100 })).toBe(409);
    expect(await act('known', 'resize', { size: 0 })).toBe(422);
    expect((await vms.get('known')).spec.diskSize).toBe('200G');
  });
});

it('a deployment that takes too long answers 504 with what it waits for, and leaves no VM', async () => {
  const { status, body } = await late;
  expect([status, body.reason]).toEqual([504, 'Timeout']);
  expect(body.message).toMatch(/within 1 minute.*waited for: .*host/);
  await vms.waitUntilGone('late');
});

// This test is the last one, because it ends the operator.
it('an API server that is away in the middle of a deployment only delays the answer', async () => {
  const answer = deploy({ ...onBare, name: 'patient' }, '?waitFor=ready');
  await bound('patient', answer);
  await operator.stop();
  await cluster.component('kube-apiserver').restart();
  const ready = {
    type: 'Ready',
    status: 'True',
    reason: 'Running',
    message: 'The machine runs',
    lastTransitionTime: NOW,
  };
  const status = { phase: 'Running', conditions: [ready] };
  const ref = { namespace, name: 'patient' };
  await waitFor('the status to be written', async () => {
    await cluster.client().mergePatch(VMS, ref, { status }, { subresource: 'status' });
    return true;
  });
  expect((await answer).body).toMatchObject({ name: 'patient', status: 'Running' });
  expect((await vms.get('patient')).spec.aliveUntil).toBeUndefined();
});
