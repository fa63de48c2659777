/** Possible uses of a stolen token of the operator: only machines on hosts. */
import { randomBytes } from 'node:crypto';
import * as fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, type TestContext, test } from 'vitest';
import type { Cluster } from '../../hack/cluster/index.ts';
import { untilPodsAllowed } from '../../hack/cluster/simulation.ts';
import { machinePod } from '../support/admission.ts';
import { sharedCluster } from '../support/cluster.ts';
import { waitFor } from '../../hack/wait.ts';
import { NODES } from '../../kube/core.ts';
import { hostileRuns, tried } from './support/attempts.ts';
import { type Account, account, administrator, type Answer } from './support/accounts.ts';

const suffix = randomBytes(4).toString('hex');
const served = `platform-token-${suffix}`;
const elsewhere = `token-elsewhere-${suffix}`;
const SYSTEM = 'berth-system';
const HOST = `token-host-${suffix}`;
const JOINING = `token-joining-${suffix}`;
const ORDINARY = `token-ordinary-${suffix}`;
const MARK = 'berth.node-restriction.kubernetes.io/host';
const DRY = '?dryRun=All';
/** Without this owner, the API server would delete the object. */
const OWNER = { apiVersion: 'v1', kind: 'Node', name: 'absent', uid: 'absent' };

let cluster: Cluster;
let admin: Account;
let operator: Account;

beforeAll(async () => {
  cluster = await sharedCluster();
  admin = administrator(cluster);
  await Promise.all([served, elsewhere].map((namespace) => cluster.createNamespace(namespace)));
  operator = await account(cluster, SYSTEM, 'berth-operator');
  const allowed = [served, elsewhere, SYSTEM].map((one) => untilPodsAllowed(cluster.client(), one));
  await Promise.all(allowed);
  await stored(`/api/v1/namespaces/${served}/serviceaccounts`, { metadata: { name: 'strong' } });
  await stored(pods(elsewhere), { metadata: { name: 'plain' }, spec: podSpec() });
  await stored(pods(SYSTEM), { metadata: { name: `plain-${suffix}` }, spec: podSpec() });
  const labels = { 'berth.dev/host': 'true' };
  await stored('/api/v1/nodes', { metadata: { name: HOST, labels: { ...labels, [MARK]: 'true' } } });
  const taint = { key: 'berth.dev/host', value: 'true', effect: 'NoSchedule' };
  await stored('/api/v1/nodes', { metadata: { name: JOINING, labels }, spec: { taints: [taint] } });
  await stored('/api/v1/nodes', { metadata: { name: ORDINARY } });
  await waitFor('the policies to be known', async () => {
    const { status } = await operator.send('PATCH', `/api/v1/nodes/${ORDINARY}${DRY}`, { metadata: {} });
    return status === 403;
  });
});

afterAll(async () => {
  await cluster.kubectl(['delete', 'namespace', served, elsewhere, '--wait=false']);
  await cluster.kubectl(['delete', 'pod', `plain-${suffix}`, '-n', SYSTEM, '--wait=false']);
  await cluster.kubectl(['delete', 'node', HOST, JOINING, ORDINARY]);
  await operator.close();
});

async function stored(path: string, body: object): Promise<void> {
  expect(await admin.send('POST', path, body)).toMatchObject({ status: 201 });
}

function podSpec(): object {
  // No node has this label, so the Pod stays Pending in every cluster.
  return { nodeSelector: { 'example.com/nowhere': '' }, containers: [{ name: 'main', image: 'any' }] };
}

function pods(namespace: string): string {
  return `/api/v1/namespaces/${namespace}/pods`;
}

interface Manifest {
  metadata: { labels: Record<string, string>; resourceVersion?: string };
  spec: { containers: object[] } & Record<string, unknown>;
}

interface Parts {
  readonly spec?: object;
  /** Fields of the only container. */
  readonly container?: object;
}

function machine(...parts: Parts[]): Manifest {
  const manifest = JSON.parse(machinePod(served, 'token')) as Manifest;
  for (const { spec, container } of parts) {
    Object.assign(manifest.spec.containers[0] ?? {}, container);
    Object.assign(manifest.spec, spec);
  }
  return manifest;
}

function create(pod: Manifest, namespace = served): Promise<Answer> {
  const metadata = { ...pod.metadata, namespace };
  return operator.send('POST', `${pods(namespace)}${DRY}`, { ...pod, metadata });
}

/** Creates a Job with this Pod as its template. */
function createJob({ metadata, spec }: Manifest, namespace = SYSTEM): Promise<Answer> {
  const labels = { 'berth.dev/workload': 'image' };
  const template = { metadata: { labels: metadata.labels }, spec: { ...spec, restartPolicy: 'Never' } };
  const job = { metadata: { name: 'token', labels }, spec: { template } };
  return operator.send('POST', `/apis/batch/v1/namespaces/${namespace}/jobs${DRY}`, job);
}

function expectRefused(context: TestContext, what: string, answer: Answer, says = 'operator of Berth'): void {
  tried(context, what, `HTTP ${answer.status}`);
  expect(answer).toMatchObject({ status: 403 });
  expect(answer.message).toMatch(
    /ValidatingAdmissionPolicy 'berth-(nodes|pods|operator-(workloads|secrets))'/,
  );
  expect(answer.message).toContain(says);
}

function expectAllowed(context: TestContext, what: string, { status, message }: Answer): void {
  tried(context, what, `HTTP ${status}`);
  expect(message).toBe('');
}

const context = (securityContext: object): Parts => ({ container: { securityContext } });
const volume = (source: object): Parts => ({ spec: { volumes: [{ name: 'v', ...source }] } });
const affinity = (...terms: object[]): Parts => ({
  spec: {
    affinity: {
      nodeAffinity: { requiredDuringSchedulingIgnoredDuringExecution: { nodeSelectorTerms: terms } },
    },
  },
});
const requires = (key: string, operator: string, values: string[]) => ({
  matchExpressions: [{ key, operator, values }],
});
const token = { serviceAccountToken: { path: 'token' } };

const NEVER: [string, Parts, string][] = [
  ['the host’s network', { spec: { hostNetwork: true } }, 'hostNetwork'],
  ['the host’s processes', { spec: { hostPID: true } }, 'hostPID'],
  ['the host’s IPC', { spec: { hostIPC: true } }, 'hostIPC'],
  ['a host path', volume({ hostPath: { path: '/' } }), 'hostPath'],
  ['privileges', context({ privileged: true }), 'privileged'],
  ['capabilities', context({ capabilities: { add: ['SYS_ADMIN'] } }), 'capabilities'],
  [
    'privileges in an init container',
    {
      spec: { initContainers: [{ name: 'i', image: 'i', securityContext: { privileged: true } }] },
    },
    'privileged',
  ],
  ['an account', { spec: { serviceAccountName: 'strong' } }, 'serviceAccountName'],
  ['a mounted token', { spec: { automountServiceAccountToken: true } }, 'automountServiceAccountToken'],
  ['a token by default', { spec: { automountServiceAccountToken: null } }, 'automountServiceAccountToken'],
  ['a projected token', volume({ projected: { sources: [token] } }), 'projected'],
  ['any node', { spec: { affinity: null } }, 'node affinity'],
  [
    'a term for any node',
    affinity(requires(MARK, 'In', ['true']), requires('kubernetes.io/os', 'In', ['linux'])),
    'node affinity',
  ],
  ['nodes that are no hosts', affinity(requires(MARK, 'NotIn', ['true'])), 'node affinity'],
  ['nodes that are no hosts, too', affinity(requires(MARK, 'In', ['true', 'false'])), 'node affinity'],
  ['nodes that call themselves hosts', affinity(requires('berth.dev/host', 'In', ['true'])), 'node affinity'],
];

describe('Pods and Jobs', () => {
  test('of machines and tasks are allowed in served namespaces', async (context) => {
    for (const namespace of [served, SYSTEM, 'platform-default']) {
      expectAllowed(context, 'a machine', await create(machine(), namespace));
      expectAllowed(context, 'a task', await createJob(machine(), namespace));
    }
  });

  test('may have later features: terminals, named ports, Secrets', async (context) => {
    const container = { stdin: true, tty: true, ports: [{ name: 'ssh', containerPort: 22, hostPort: 2222 }] };
    const secret = volume({ secret: { secretName: 'any' } });
    expectAllowed(context, 'a machine with more', await create(machine({ container }, secret)));
  });

  test.for(NEVER)('must not have %s', async ([what, parts, says], context) => {
    expectRefused(context, `a Pod with ${what}`, await create(machine(parts)), says);
    expectRefused(context, `a Job with ${what}`, await createJob(machine(parts)), says);
  });

  test('must not have several of these together either', async (context) => {
    const some = fc.uniqueArray(fc.constantFrom(...NEVER), {
      minLength: 1,
      maxLength: 5,
    });
    const property = fc.asyncProperty(some, async (chosen) => {
      const manifest = machine(...chosen.map(([, parts]) => parts));
      expectRefused(context, 'generated Pods', await create(manifest));
      expectRefused(context, 'generated Jobs', await createJob(manifest));
    });
    await fc.assert(property, hostileRuns(200));
  });

  test('get a host on which the scheduler expects them, but no state', async (context) => {
    const pod = machine();
    Object.assign(pod.metadata, { name: 'expected', namespace: served });
    expect(await operator.send('POST', pods(served), pod)).toMatchObject({ status: 201 });
    const patch = (at: string, status: object): Promise<Answer> =>
      operator.send('PATCH', `${at}/status${DRY}`, { status });
    const own = `${pods(served)}/expected`;
    expectAllowed(context, 'an expected host', await patch(own, { nominatedNodeName: HOST }));
    const conditions = [{ type: 'Ready', status: 'True' }];
    const containerStatuses = [{ name: 'machine', image: '', imageID: '', ready: true, restartCount: 0 }];
    const address = { podIP: '192.0.2.1', podIPs: [{ ip: '192.0.2.1' }] };
    for (const state of [
      { phase: 'Failed' },
      { phase: null },
      { conditions },
      { containerStatuses },
      address,
    ]) {
      const answer = await patch(own, { nominatedNodeName: HOST, ...state });
      expectRefused(context, 'a state', answer, 'only status.nominatedNodeName');
    }
    const others = await patch(`${pods(elsewhere)}/plain`, { nominatedNodeName: HOST });
    expectRefused(context, 'an expected host for somebody’s Pod', others, elsewhere);
  });

  test('must not be created, changed or removed in other namespaces', async (context) => {
    for (const namespace of [elsewhere, 'kube-system', 'default']) {
      expectRefused(context, 'a machine elsewhere', await create(machine(), namespace), namespace);
      expectRefused(context, 'a task elsewhere', await createJob(machine(), namespace), namespace);
    }
    const own = `${pods(SYSTEM)}/plain-${suffix}`;
    for (const at of [`${pods(elsewhere)}/plain`, own]) {
      const pod = (await admin.send('GET', at)).body as Manifest;
      Object.assign(pod.spec.containers[0] ?? {}, { image: 'example.com/other' });
      const { containers } = pod.spec;
      const changed = await operator.send('PATCH', `${at}${DRY}`, { spec: { containers } });
      expectRefused(context, 'another image for a Pod', changed);
      expectRefused(context, 'somebody’s Pod away', await operator.send('DELETE', `${at}${DRY}`));
    }
    const bare = machine();
    delete bare.metadata.labels['berth.dev/workload'];
    expectRefused(context, 'a Pod without the label', await create(bare), 'berth.dev/workload');
    const leader = { metadata: { labels: { 'berth.dev/leader': 'true' } } };
    expectAllowed(context, 'leadership', await operator.send('PATCH', `${own}${DRY}`, leader));
  });
});

describe('a Pod of somebody else that its host does not run', () => {
  const at = `${pods(elsewhere)}/parked`;

  async function waiting(reason: string): Promise<void> {
    const container = { name: 'main', image: 'any', imageID: '', ready: false, restartCount: 0 };
    const containerStatuses = [{ ...container, state: { waiting: { reason } } }];
    const written = await admin.send('PATCH', `${at}/status`, { status: { containerStatuses } });
    expect(written).toMatchObject({ status: 200 });
  }

  test('may be deleted, but not changed, and not while it starts', async (context) => {
    const spec = { ...podSpec(), nodeName: HOST };
    await stored(pods(elsewhere), { metadata: { name: 'parked' }, spec });
    await waiting('ContainerCreating');
    expectRefused(context, 'a starting Pod away', await operator.send('DELETE', `${at}${DRY}`), elsewhere);
    await waiting('HostRunsOnlyMachines');
    const label = { metadata: { labels: { team: 'a' } } };
    const changed = await operator.send('PATCH', `${at}${DRY}`, label);
    expectRefused(context, 'a label for a parked Pod', changed, elsewhere);
    expectAllowed(context, 'a parked Pod away', await operator.send('DELETE', `${at}${DRY}`));
  });
});

describe('Nodes', () => {
  const mark = { labels: { [MARK]: 'true' } };
  const patch = (node: string, body: object): Promise<Answer> =>
    operator.send('PATCH', `/api/v1/nodes/${node}${DRY}`, body);
  const taints = [{ key: 'berth.dev/nat-unready', value: 'true', effect: 'NoSchedule' }];

  test('that are hosts may get taints and slots from the operator', async (context) => {
    expectAllowed(context, 'a taint of a host', await patch(HOST, { spec: { taints } }));
    const status = { status: { capacity: { 'berth.dev/slot': '4' } } };
    const filled = await operator.send('PATCH', `/api/v1/nodes/${HOST}/status${DRY}`, status);
    expectAllowed(context, 'slots of a host', filled);
    expectAllowed(context, 'the mark', await patch(JOINING, { metadata: mark }));
    const { spec } = await cluster.client().get(NODES, { name: JOINING });
    const kept = { metadata: { labels: { [MARK]: 'true', 'tag.berth.dev/fast': '' } } };
    const restored = { ...kept, spec: { unschedulable: true, taints: [...(spec?.taints ?? []), ...taints] } };
    expectAllowed(context, 'the mark with tag, taint and cordon', await patch(JOINING, restored));
  });

  test.for<[string, object]>([
    ['a taint', { spec: { taints } }],
    ['a label', { metadata: { labels: { zone: 'a' } } }],
    ['an annotation', { metadata: { annotations: { zone: 'a' } } }],
    ['the mark and all taints away', { metadata: mark, spec: { taints: [] } }],
    ['the mark and a label', { metadata: { labels: { [MARK]: 'true', zone: 'a' } } }],
    ['the mark and a label away', { metadata: { labels: { [MARK]: 'true', 'berth.dev/host': null } } }],
    ['the mark and an annotation', { metadata: { ...mark, annotations: { zone: 'a' } } }],
    ['the mark and an owner', { metadata: { ...mark, ownerReferences: [OWNER] } }],
    ['unschedulable', { spec: { unschedulable: true } }],
  ])('that are no hosts do not get %s', async ([what, body], context) => {
    for (const node of [ORDINARY, JOINING]) {
      expectRefused(context, `${what} for a Node`, await patch(node, body));
    }
  });

  test('that are no hosts get no slots, and Nodes that do not claim to be hosts get no mark', async (context) => {
    const status = { status: { capacity: { 'berth.dev/slot': '4' } } };
    for (const node of [ORDINARY, JOINING]) {
      const answer = await operator.send('PATCH', `/api/v1/nodes/${node}/status${DRY}`, status);
      expectRefused(context, 'slots for a Node', answer);
    }
    expectRefused(context, 'the mark for a Node', await patch(ORDINARY, { metadata: mark }));
  });
});

describe('Secrets', () => {
  const owner = { apiVersion: 'berth.dev/v1alpha1', kind: 'VM', name: 'desk', uid: 'uid' };
  const secret = (change: object, metadata: object = {}): object => ({
    metadata: { name: 'desk-vnc', ownerReferences: [owner], ...metadata },
    type: 'berth.dev/vnc',
    stringData: { password: 'x'.repeat(8) },
    ...change,
  });
  const send = (body: object, namespace = served): Promise<Answer> =>
    operator.send('POST', `/api/v1/namespaces/${namespace}/secrets${DRY}`, body);

  test('with the VNC password of a VM may be created by the operator', async (context) => {
    expectAllowed(context, 'a password', await send(secret({})));
  });

  test.for<[string, object, string?]>([
    ['another type', secret({ type: 'Opaque' })],
    [
      'a token of an account',
      secret(
        { type: 'kubernetes.io/service-account-token' },
        { annotations: { 'kubernetes.io/service-account.name': 'strong' } },
      ),
    ],
    ['a token for hosts', secret({ type: 'bootstrap.kubernetes.io/token' }), 'kube-system'],
    ['no owner', secret({}, { ownerReferences: [] })],
    ['another owner', secret({}, { ownerReferences: [{ ...owner, apiVersion: 'v1', kind: 'Pod' }] })],
    ['two owners', secret({}, { ownerReferences: [owner, { ...owner, uid: 'other' }] })],
    ['the name of another VM', secret({}, { name: 'other-vnc' })],
    ['a namespace that Berth does not serve', secret({}), elsewhere],
    ['the system namespace', secret({}), SYSTEM],
  ])('with %s are refused', async ([what, body, namespace], context) => {
    expectRefused(context, `a Secret with ${what}`, await send(body, namespace));
  });
});
