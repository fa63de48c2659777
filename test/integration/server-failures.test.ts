/**
 * Failures in the middle of waiting deployments: a replica is killed, the API server is away, a token expires. No VM remains that nobody
 * knows. Clients that are gone and a clean stop are in server-vms.test.ts.
 */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { stringify } from 'yaml';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { authenticationConfiguration } from '../../hack/authentication.ts';
import { type Cluster, type OperatorProcess, startCluster } from '../../hack/cluster/index.ts';
import type { ServerProcess } from '../../hack/cluster/program.ts';
import { waitFor } from '../../hack/wait.ts';
import { IMAGE, VMs } from '../fixtures/vms.ts';
import { clockBehind } from '../support/clockbehind.ts';
import { type HTTPAnswer, HTTPClient } from '../wires/httpapi.ts';
import { ActingHost } from '../worlds/actinghost.ts';
import { CLIENT, IdentityProvider } from '../worlds/provider.ts';

const namespace = 'platform-default';
const NAMESPACE = `/api/v1/namespaces/${namespace}`;
const PATH = `${NAMESPACE}/vms`;
/** Time from a deployment with the shortest time limit to the end of its VM's life, in seconds. */
const LIFE_SECONDS = 120;
/** Time after which the operator deletes the VM of a killed replica. The test kills the replica before, and lets the VM run. */
const KILLED_SECONDS = 30;
/** Life of the token that expires. The API server accepts it for 10 s more, and the HTTP API tries for 20 s to write with it. */
const TOKEN_SECONDS = 8;
/** Time after which the operator deletes the VM of the expired token, longer than all that. */
const EXPIRED_SECONDS = 60;

let provider: IdentityProvider;
let cluster: Cluster;
let operator: OperatorProcess;
const replicas: ServerProcess[] = [];
let api: HTTPClient;
let token: string;
let vms: VMs;
/** Host whose agent is the test, so its VMs wait until the test lets them run. */
let bare: ActingHost;

beforeAll(async () => {
  provider = await IdentityProvider.start({ dev: { groups: ['devs'] } });
  const { issuer, authority } = provider;
  const managedGroups = ['devs'];
  cluster = await startCluster({
    name: `server-failures-${process.pid}`,
    hosts: 1,
    authentication: stringify(
      authenticationConfiguration({ issuer, authority, client: CLIENT, managedGroups }),
    ),
  });
  vms = new VMs(cluster);
  const member = ['--clusterrole=berth-role-dev', '--user=dev@berth.test'];
  await cluster.kubectl(['-n', namespace, 'create', 'rolebinding', 'dev', ...member]);
  [operator, bare, { client: api }] = await Promise.all([
    cluster.startOperator(),
    ActingHost.join(cluster.client(), 'bare', { slots: 16 }),
    startReplica('server'),
  ]);
  await bare.placeable();
  token = provider.forge('dev', {});
  await waitFor('the rights', async () => (await api.call(PATH, { token })).status === 200);
});

afterAll(async () => {
  await api?.close();
  await Promise.all(replicas.map(async (replica) => await replica.process.stop()));
  await bare?.silence();
  await cluster?.stop();
  await provider?.close();
});

interface Replica {
  readonly client: HTTPClient;
  readonly process: ServerProcess['process'];
}

/** Starts a replica. With `lifeSeconds`, its clock is behind: after this time, its VMs with the shortest time limit are overdue. */
async function startReplica(name: string, lifeSeconds = LIFE_SECONDS): Promise<Replica> {
  const environment = clockBehind(LIFE_SECONDS - lifeSeconds);
  const replica = await cluster.startServer({ name, environment });
  replicas.push(replica);
  return { client: new HTTPClient(replica), process: replica.process };
}

const onBare = { image: IMAGE, node: 'bare' };
/** The simulated host runs its VMs at once. Without the name of a host, the scheduler could also choose the host of the test. */
const onSimulated = { image: IMAGE, node: 'host-0' };
const nowhere = { image: IMAGE, tag: 'nowhere', tagRequired: true };

interface Deployment {
  client?: HTTPClient;
  token?: string;
  signal?: AbortSignal;
}

/** Begins a deployment. An error of it is seen only where the answer is read. */
function deploy(body: object, more: Deployment = {}): Promise<HTTPAnswer> {
  const { client = api, signal } = more;
  const call = { method: 'POST', token: more.token ?? token, body, ...(signal && { signal }) } as const;
  const answer = client.call(PATH, call);
  answer.catch(() => undefined);
  return answer;
}

/** Waits until the VM is bound to the host of the test. An answer of the deployment before that is an error. */
async function bound(name: string, answer: Promise<HTTPAnswer>): Promise<VM> {
  const early = answer.then(({ status, body }) => {
    throw new Error(`the deployment answered ${status}: ${body.message}`);
  });
  await Promise.race([bare.waitForPod({ namespace, name }), early]);
  return await vms.get(name);
}

/** Acts as the agent for a VM that somebody deletes. */
async function waitForEnd(name: string): Promise<void> {
  await bare.end({ namespace, name });
  await vms.waitUntilGone(name);
}

describe.concurrent('in the middle of a deployment', () => {
  it('a replica is killed: the operator deletes its VMs when their time is over, and no answered one', async () => {
    const { client, process } = await startReplica('killed', KILLED_SECONDS);
    const answered = await deploy({ ...onSimulated, name: 'answered' }, { client });
    expect(answered.status).toBe(200);
    const answers = [
      deploy({ ...nowhere, name: 'pending', timeout: 1 }, { client }),
      deploy({ ...onBare, name: 'running', timeout: 1 }, { client }),
    ];
    const running = await bound('running', answers[1] as Promise<HTTPAnswer>);
    const time = Date.parse(running.spec.aliveUntil ?? '');
    const pendingTime = Date.parse((await vms.get('pending')).spec.aliveUntil ?? '');
    await process.kill('SIGKILL');
    expect((await Promise.allSettled(answers)).map(({ status }) => status)).toEqual(['rejected', 'rejected']);
    await bare.run({ namespace, name: 'running' });
    await vms.waitForPhase('running', 'Running');
    expect((await api.call(`${PATH}/running`, { token })).body).toMatchObject({ status: 'Running' });
    const ended = async (end: Promise<void>): Promise<number> => await end.then(() => Date.now());
    const ends = await Promise.all([ended(waitForEnd('running')), ended(vms.waitUntilGone('pending'))]);
    expect(ends[0]).toBeGreaterThan(time);
    expect(ends[1]).toBeGreaterThan(pendingTime);
    expect((await api.call(`${PATH}/answered`, { token })).body).toMatchObject({ status: 'Running' });
    await client.close();
  });

  it('a token expires: the answer is 401 and says when the operator deletes the VM', async () => {
    const { client } = await startReplica('expired', EXPIRED_SECONDS);
    const short = provider.forge('dev', { exp: Math.floor(Date.now() / 1000) + TOKEN_SECONDS });
    const answer = deploy({ ...onBare, name: 'expired', timeout: 1 }, { client, token: short });
    const time = (await bound('expired', answer)).spec.aliveUntil ?? '';
    const refused = await waitFor('the end of the token', async () => {
      const { status, headers } = await api.call(PATH, { token: short });
      return status === 401 && headers['www-authenticate'];
    });
    expect(refused).toMatch(/error_description="The token expired at /);
    // The watch of the deployment goes on, so the HTTP API learns that the VM runs.
    await bare.run({ namespace, name: 'expired' });
    const { status, body } = await answer;
    expect([status, body.reason, body.message]).toEqual([
      401,
      'Unauthorized',
      `Unauthorized: the token is no longer valid. The operator deletes VM expired at ${time}`,
    ]);
    expect((await vms.get('expired')).spec.aliveUntil).toBe(time);
    await client.close();
  });
});

it('the API server is away: new requests get 503, and deployments that wait go on when it is back', async () => {
  const leaver = new AbortController();
  const { signal } = leaver;
  const patient = deploy({ ...onBare, name: 'patient' });
  const left = [
    deploy({ ...nowhere, name: 'nobody', shouldGenerateName: true }, { signal }),
    deploy({ ...onBare, name: 'known' }, { signal }),
  ];
  await Promise.all([bound('patient', patient), bound('known', left[1] as Promise<HTTPAnswer>)]);
  const unnamed = await waitFor('the unnamed VM', async () =>
    (await vms.list()).find(({ metadata }) => metadata.name.startsWith('nobody-')),
  );
  await cluster.component('kube-apiserver').restart('SIGKILL', async () => {
    const vm = { method: 'POST', body: { image: IMAGE, name: 'refused' } } as const;
    for (const [path, call] of [
      [PATH, {}],
      [PATH, vm],
      [`${PATH}?wait=false`, vm],
      [`${PATH}/known?wait=true`, { method: 'DELETE' }],
      [`${NAMESPACE}/emulators`, { method: 'POST', body: { vm: 'known' } }],
    ] as const) {
      const { status, body, headers } = await api.call(path, { ...call, token });
      expect([path, status, body.reason, body.message, headers['retry-after']]).toEqual([
        path,
        503,
        'ServiceUnavailable',
        'The Kubernetes API server does not answer. Try again later',
        '5',
      ]);
    }
    expect((await api.call('/api/v1/cluster-info')).status).toBe(200);
    leaver.abort();
    expect((await Promise.allSettled(left)).map(({ status }) => status)).toEqual(['rejected', 'rejected']);
    // The operator ends when it cannot renew its lease. Its Deployment starts it again.
    await operator.stopped;
  });
  const aliveUntil = new Date().toISOString();
  await vms.create('overdue', { aliveUntil, placement: { node: 'nowhere' } });
  operator = await cluster.startOperator();
  await bare.run({ namespace, name: 'patient' });
  expect([(await patient).status, (await patient).body]).toMatchObject([200, { name: 'patient' }]);
  await vms.waitUntilGone(unnamed.metadata.name);
  // Its life was over before this operator began.
  await vms.waitUntilGone('overdue');
  await vms.waitForVM('known', 'to stay', ({ spec }) => spec.aliveUntil === undefined);
  expect((await deploy({ ...onSimulated, name: 'after' })).status).toBe(200);
});

it('at the end, somebody knows each VM', async () => {
  await waitForEnd('expired');
  const left = await vms.list();
  expect(left.map(({ metadata: { name } }) => name).toSorted((a, b) => a.localeCompare(b))).toEqual([
    'after',
    'answered',
    'known',
    'patient',
  ]);
  expect(left.filter(({ spec }) => spec.aliveUntil !== undefined)).toEqual([]);
});
