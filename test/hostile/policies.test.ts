/** Pods and Jobs that would command a host, through every way of the API server, from a tenant and from an administrator. */
import { randomBytes } from 'node:crypto';
import * as fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, type TestContext, test } from 'vitest';
import type { Cluster } from '../../hack/cluster/index.ts';
import { untilPodsAllowed } from '../../hack/cluster/simulation.ts';
import { admissionOf, AS_OPERATOR, COMMANDING_SPECS, machinePod } from '../support/admission.ts';
import { sharedCluster } from '../support/cluster.ts';
import { waitFor } from '../../hack/wait.ts';
import { hostileRuns, tried } from './support/attempts.ts';
import { account, administrator, type Answer, type Account } from './support/accounts.ts';

const suffix = randomBytes(4).toString('hex');
/** A served namespace that allows Pods of users. So a Pod is not refused only because of its namespace. */
const served = `platform-hostile-${suffix}`;
const elsewhere = `hostile-elsewhere-${suffix}`;
const NAMESPACES = [served, elsewhere];
const ONLY_OPERATOR = 'only the operator of Berth';

let cluster: Cluster;
let admin: Account;
/** An account with `edit` in both namespaces. */
let tenant: Account;
const { expectCreated } = admissionOf(() => cluster);

beforeAll(async () => {
  cluster = await sharedCluster();
  admin = administrator(cluster);
  for (const namespace of NAMESPACES) {
    await cluster.createNamespace(namespace);
    const binding = ['create', 'rolebinding', 'edit', '-n', namespace, '--clusterrole=edit'];
    await cluster.kubectl([...binding, `--serviceaccount=${served}:tenant`]);
  }
  await cluster.kubectl(['label', 'namespace', served, 'berth.dev/custom-pods=true']);
  tenant = await account(cluster, served, 'tenant');
  await Promise.all(NAMESPACES.map((namespace) => untilPodsAllowed(cluster.client(), namespace)));
  await waitFor('the rights to be known', async () => {
    const answers = NAMESPACES.map((namespace) => tenant.send('POST', pods(namespace, DRY), pod('p')));
    return (await Promise.all(answers)).every(({ status }) => status === 201);
  });
  await expectCreated(machinePod(served, 'machine'), AS_OPERATOR);
  const plain = pod('plain', { container: { resources: { requests: { cpu: '1m' } } } });
  for (const namespace of NAMESPACES) {
    expect(await tenant.send('POST', pods(namespace), plain)).toMatchObject({ status: 201 });
  }
});

afterAll(async () => {
  await cluster.kubectl(['delete', 'namespace', ...NAMESPACES, '--wait=false']);
  await tenant.close();
});

const DRY = '?dryRun=All';

function pods(namespace: string, query = ''): string {
  return `/api/v1/namespaces/${namespace}/pods${query}`;
}

interface Parts {
  annotations?: Record<string, string>;
  labels?: Record<string, string>;
  finalizers?: string[];
  container?: object;
  spec?: object;
}

function template({ container, spec, ...metadata }: Parts): { metadata: object; spec: object } {
  const containers = [{ name: 'main', image: 'example.com/none', ...container }];
  // No node has this label, so the Pod stays Pending in every cluster.
  const nodeSelector = { 'example.com/nowhere': '' };
  return { metadata, spec: { nodeSelector, containers, ...spec } };
}

function pod(name: string, parts: Parts = {}): object {
  const { metadata, spec } = template(parts);
  return { apiVersion: 'v1', kind: 'Pod', metadata: { name, ...metadata }, spec };
}

function job(name: string, parts: Parts): object {
  const { metadata, spec } = template(parts);
  const never = { ...spec, restartPolicy: 'Never' };
  return {
    apiVersion: 'batch/v1',
    kind: 'Job',
    metadata: { name },
    spec: { template: { metadata, spec: never } },
  };
}

const tolerate = (toleration: object): Parts => ({ spec: { tolerations: [toleration] } });
/** Each entry has a name, the parts of the Pod, and a text that the refusal must have. */
const COMMANDS: [string, Parts, string][] = [
  ['a machine', { annotations: { 'berth.dev/machine': '{}' } }, ONLY_OPERATOR],
  ['a task', { annotations: { 'berth.dev/task': '{}' } }, ONLY_OPERATOR],
  ['a label of Berth', { labels: { 'berth.dev/vm-uid': 'x' } }, ONLY_OPERATOR],
  ['a finalizer of Berth', { finalizers: ['berth.dev/observed'] }, ONLY_OPERATOR],
  ...COMMANDING_SPECS.map(([what, parts]): [string, Parts, string] => [what, parts, ONLY_OPERATOR]),
];
/** Other namespaces may have such Pods, because they belong to other programs. */
const COMMANDS_IN_SERVED: typeof COMMANDS = [
  ['every taint', tolerate({ operator: 'Exists' }), 'without a key'],
  ['every taint of one effect', tolerate({ operator: 'Exists', effect: 'NoSchedule' }), 'without a key'],
];

function expectRefused(context: TestContext, what: string, answer: Answer, says: string): void {
  tried(context, what, `HTTP ${answer.status}`);
  expect(answer).toMatchObject({ status: 403 });
  expect(answer.message).toContain(says);
}

function expectAllowed(context: TestContext, what: string, { status, message }: Answer): void {
  tried(context, what, `HTTP ${status}`);
  expect(message).toBe('');
}

describe('a Pod or Job', () => {
  test.for([
    ...COMMANDS.map((command) => [...command, NAMESPACES] as const),
    ...COMMANDS_IN_SERVED.map((command) => [...command, [served]] as const),
  ])(
    'with %s: refused to `edit` and to an administrator',
    async ([what, parts, says, namespaces], context) => {
      for (const namespace of namespaces) {
        for (const who of [tenant, admin]) {
          for (const query of ['', DRY]) {
            const made = await who.send('POST', pods(namespace, query), pod('hostile', parts));
            expectRefused(context, `Pod with ${what}`, made, says);
            const jobs = `/apis/batch/v1/namespaces/${namespace}/jobs${query}`;
            expectRefused(
              context,
              `Job with ${what}`,
              await who.send('POST', jobs, job('hostile', parts)),
              says,
            );
          }
        }
      }
    },
  );

  test('with a node or a priority of its own choice: the Pod is refused to `edit` in served namespaces', async (context) => {
    const nodeName = pod('hostile', { spec: { nodeName: 'host-0' } });
    const first = await tenant.send('POST', pods(served), nodeName);
    expectRefused(context, 'Pod with a node', first, 'spec.nodeName');
    const priority = pod('hostile', { spec: { priorityClassName: 'system-node-critical' } });
    const second = await tenant.send('POST', pods(served), priority);
    expectRefused(context, 'Pod with the machines’ priority', second, 'spec.priorityClassName');
  });

  test('is not created by a controller from a template of `edit` either', async (context) => {
    const [, parts] = COMMANDS[0] ?? ['', {}];
    const selector = { matchLabels: { app: 'hostile' } };
    const made = template({ ...parts, labels: { app: 'hostile' } });
    const metadata = { name: 'hostile' };
    const replicas = `/apis/apps/v1/namespaces/${elsewhere}/replicasets`;
    const body = { metadata, spec: { selector, template: made } };
    expect(await tenant.send('POST', replicas, body)).toMatchObject({ status: 201 });
    const controllers = `/api/v1/namespaces/${elsewhere}/replicationcontrollers`;
    const older = { metadata, spec: { selector: selector.matchLabels, template: made } };
    expect(await tenant.send('POST', controllers, older)).toMatchObject({ status: 201 });
    for (const path of [replicas, controllers]) {
      const condition = await waitFor('the controller to be refused', async () => {
        const { body } = await tenant.send('GET', `${path}/hostile`);
        const { conditions = [] } = (body as { status: { conditions?: { message: string }[] } }).status;
        return conditions[0];
      });
      tried(context, 'a controller’s template with a machine', 'ReplicaFailure');
      expect(condition).toMatchObject({ type: 'ReplicaFailure', status: 'True' });
      expect(condition.message).toContain(ONLY_OPERATOR);
      await tenant.send('DELETE', `${path}/hostile`);
    }
  });
});

interface Manifest {
  metadata: {
    annotations?: Record<string, string>;
    labels?: Record<string, string>;
    finalizers?: string[];
    resourceVersion?: string;
  };
  spec: {
    containers: { resources?: { requests?: object; limits?: object | undefined } }[];
    ephemeralContainers?: object[];
  };
}

const METADATA: [string, object][] = [
  ['an annotation', { annotations: { 'berth.dev/machine': '{"other":true}' } }],
  ['a label', { labels: { 'berth.dev/vm-uid': 'y' } }],
];

/** Patches the metadata through this subresource, of a machine's Pod and of another Pod. */
async function byMetadata(context: TestContext, name: string): Promise<void> {
  for (const [what, metadata] of [...METADATA, ['a finalizer', { finalizers: ['berth.dev/x'] }] as const]) {
    for (const target of ['machine', 'plain']) {
      const answer = await admin.send('PATCH', `${pods(served)}/${target}/${name}`, { metadata });
      expectRefused(context, `${what} by pods/${name}`, answer, ONLY_OPERATOR);
    }
  }
  const removed = { metadata: { annotations: { 'berth.dev/machine': null } } };
  const answer = await admin.send('PATCH', `${pods(served)}/machine/${name}`, removed);
  expectRefused(context, `an annotation away by pods/${name}`, answer, ONLY_OPERATOR);
}

/** Returns a Pod to send back. It has no version, because the scheduler may write the Pod in between, and a conflict would hide a refusal. */
async function withoutVersion(at: string): Promise<Manifest> {
  const manifest = (await admin.send('GET', at)).body as Manifest;
  delete manifest.metadata.resourceVersion;
  return manifest;
}

async function byChange(context: TestContext, name: string, change: (pod: Manifest) => void): Promise<void> {
  const at = `${pods(served)}/machine`;
  const manifest = await withoutVersion(at);
  change(manifest);
  for (const query of ['', DRY]) {
    const answer = await admin.send('PUT', `${at}/${name}${query}`, manifest);
    expectRefused(context, `pods/${name} of a machine`, answer, ONLY_OPERATOR);
  }
}

async function byBinding(
  context: TestContext,
  path: (target: string) => string,
  what: string,
): Promise<void> {
  for (const [part, metadata] of METADATA) {
    const target = { apiVersion: 'v1', kind: 'Node', name: 'host-0' };
    const binding = { apiVersion: 'v1', kind: 'Binding', metadata: { name: 'plain', ...metadata }, target };
    const answer = await admin.send('POST', path('plain'), binding);
    expectRefused(context, `${part} by ${what}`, answer, ONLY_OPERATOR);
  }
}

type Attack = (context: TestContext) => Promise<void>;
/** These subresources change no object. The agent decides about them. */
const CHANGES_NOTHING = async (): Promise<void> => {};

/** All ways to a Pod other than the Pod itself, with an attack by an administrator. A new subresource of Kubernetes needs an entry here. */
const DOORS: Record<string, Attack> = {
  bindings: (context) => byBinding(context, () => `/api/v1/namespaces/${served}/bindings`, 'bindings'),
  'pods/binding': (context) =>
    byBinding(context, (target) => `${pods(served)}/${target}/binding`, 'pods/binding'),
  'pods/status': (context) => byMetadata(context, 'status'),
  'pods/resize': (context) =>
    byChange(context, 'resize', ({ spec }) => {
      for (const container of spec.containers) {
        const { requests, limits } = container.resources ?? {};
        container.resources = { requests: { ...requests, cpu: '64', memory: '512Gi' }, limits };
      }
    }),
  'pods/ephemeralcontainers': (context) =>
    byChange(context, 'ephemeralcontainers', ({ spec }) => {
      spec.ephemeralContainers = [{ name: 'e', image: 'i' }];
    }),
  // Eviction is allowed, because a drain uses it. The operator then gives the machine up.
  'pods/eviction': async (context) => {
    const eviction = { apiVersion: 'policy/v1', kind: 'Eviction', metadata: { name: 'machine' } };
    const answer = await tenant.send('POST', `${pods(served)}/machine/eviction${DRY}`, eviction);
    expectAllowed(context, 'pods/eviction of a machine', answer);
  },
  'pods/attach': CHANGES_NOTHING,
  'pods/exec': CHANGES_NOTHING,
  'pods/log': CHANGES_NOTHING,
  'pods/portforward': CHANGES_NOTHING,
  'pods/proxy': CHANGES_NOTHING,
};

describe('a subresource of Pods, or the resource bindings,', () => {
  test('is always known to this test', async () => {
    const { body } = await admin.send('GET', '/api/v1');
    const names = (body as { resources: { name: string }[] }).resources.map(({ name }) => name);
    const doors = names.filter((name) => name.startsWith('pods/') || name === 'bindings');
    expect(doors.toSorted()).toEqual(Object.keys(DOORS).toSorted());
  });

  const attacks = Object.entries(DOORS).filter(([, attack]) => attack !== CHANGES_NOTHING);
  test.for(attacks)(
    '%s: changes nothing of Berth, except that a Pod can be evicted',
    async ([, attack], context) => {
      await expect(attack(context)).resolves.toBeUndefined();
    },
  );

  test.for(['status', 'binding', 'resize', 'ephemeralcontainers'])(
    'pods/%s gives `edit` no machine',
    async (name, context) => {
      const metadata = { name: 'plain', annotations: { 'berth.dev/machine': '{}' } };
      const target = { kind: 'Node', name: 'host-0' };
      const answer =
        name === 'binding'
          ? await tenant.send('POST', `${pods(served)}/plain/binding`, { metadata, target })
          : await tenant.send('PATCH', `${pods(served)}/plain/${name}`, { metadata });
      tried(context, `pods/${name} as edit`, `HTTP ${answer.status}`);
      const { body } = await admin.send('GET', `${pods(served)}/plain`);
      expect((body as Manifest).metadata.annotations ?? {}).not.toHaveProperty('berth.dev/machine');
      expect([200, 403]).toContain(answer.status);
    },
  );

  test('the status of a Job cannot set metadata of Berth', async (context) => {
    const jobs = `/apis/batch/v1/namespaces/${elsewhere}/jobs`;
    const suspended = job('status', {}) as { spec: { suspend?: boolean } };
    suspended.spec.suspend = true;
    expect(await admin.send('POST', jobs, suspended)).toMatchObject({ status: 201 });
    const metadata = { labels: { 'berth.dev/workload': 'cache' } };
    const answer = await admin.send('PATCH', `${jobs}/status/status`, { metadata });
    expectRefused(context, 'a label by jobs/status', answer, ONLY_OPERATOR);
  });
});

describe('requests that concern no host are allowed:', () => {
  test('bindings, statuses and sizes of Pods that are no machines', async (context) => {
    const plain = `${pods(elsewhere)}/plain`;
    const binding = { metadata: { name: 'plain' }, target: { kind: 'Node', name: 'somewhere' } };
    const bound = await admin.send('POST', `${plain}/binding${DRY}`, binding);
    expectAllowed(context, 'a binding without metadata of Berth', bound);
    const status = { metadata: { annotations: { team: 'a' } }, status: { message: 'seen' } };
    expectAllowed(context, 'a status', await admin.send('PATCH', `${plain}/status`, status));
    const larger = await withoutVersion(plain);
    for (const container of larger.spec.containers) {
      container.resources = { requests: { cpu: '2m' } };
    }
    const resized = await admin.send('PUT', `${plain}/resize${DRY}`, larger);
    expectAllowed(context, 'pods/resize of a Pod that is no machine', resized);
    const sizes = (resized.body as Manifest).spec.containers.map(({ resources }) => resources?.requests);
    expect(sizes).toEqual([{ cpu: '2m' }]);
  });
});

test('no label or annotation below berth.dev/ can be set, by any way of writing', async (context) => {
  const key = fc.stringMatching(/^[a-z]([a-z0-9.-]{0,20}[a-z0-9])?$/).map((name) => `berth.dev/${name}`);
  const place = fc.constantFrom('annotations', 'labels');
  const way = fc.constantFrom('create', 'job', 'patch', 'status', 'binding');
  const property = fc.asyncProperty(
    key,
    place,
    way,
    fc.constantFrom(...NAMESPACES),
    async (name, field, by, at) => {
      const parts = { [field]: { [name]: 'x' } };
      const patch = { metadata: parts };
      const binding = { metadata: { name: 'plain', ...parts }, target: { kind: 'Node', name: 'host-0' } };
      const answers: Record<typeof by, () => Promise<Answer>> = {
        create: () => admin.send('POST', pods(at), pod('hostile', parts)),
        job: () => admin.send('POST', `/apis/batch/v1/namespaces/${at}/jobs`, job('hostile', parts)),
        patch: () => admin.send('PATCH', `${pods(at)}/plain`, patch),
        status: () => admin.send('PATCH', `${pods(at)}/plain/status`, patch),
        binding: () => admin.send('POST', `${pods(at)}/plain/binding`, binding),
      };
      const answer = await answers[by]();
      expectRefused(context, `a generated key by ${by}`, answer, ONLY_OPERATOR);
    },
  );
  await fc.assert(property, hostileRuns(300));
});
