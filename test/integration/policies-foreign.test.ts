/** Pods of other programs that tolerate every taint: allowed outside of served namespaces, and kept away from hosts. */
import { randomBytes } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { SYSTEM_NAMESPACE } from '../../api/v1alpha1/names.ts';
import { untilPodsAllowed } from '../../hack/cluster/simulation.ts';
import type { Cluster } from '../../hack/cluster/index.ts';
import type { Pod, PodSpec } from '../../kube/core.ts';
import { admissionOf, type As, AS_ADMIN, untilAllowed } from '../support/admission.ts';
import { sharedCluster } from '../support/cluster.ts';
import { waitFor } from '../../hack/wait.ts';

const suffix = randomBytes(4).toString('hex');
/** A served namespace that allows Pods of users. */
const custom = `platform-foreign-${suffix}`;
const elsewhere = `foreign-${suffix}`;
const TENANT = `tenant-${suffix}`;

const AS_TENANT = [`--as=${TENANT}`];
const EVERYTHING = { tolerations: [{ operator: 'Exists' }] };
/** The tolerations of Calico's operator. */
const EVERY_EFFECT = {
  tolerations: [
    { operator: 'Exists', effect: 'NoExecute' },
    { operator: 'Exists', effect: 'NoSchedule' },
  ],
};
const NO_HOST = { key: 'berth.dev/host', operator: 'DoesNotExist' };
const ONLY_NO_HOST = { matchExpressions: [NO_HOST] };
const ZONE = { key: 'topology.kubernetes.io/zone', operator: 'In', values: ['a'] };
const NAMED = { key: 'metadata.name', operator: 'In', values: ['node-1'] };
const PREFERENCE = [{ weight: 1, preference: { matchExpressions: [ZONE] } }];

let cluster: Cluster;
const { expectRefused, expectAccepted } = admissionOf(() => cluster);

beforeAll(async () => {
  cluster = await sharedCluster();
  for (const namespace of [custom, elsewhere]) {
    await cluster.createNamespace(namespace);
    const binding = ['create', 'rolebinding', 'edit', '-n', namespace, '--clusterrole=admin'];
    await cluster.kubectl([...binding, `--user=${TENANT}`]);
  }
  await cluster.kubectl(['label', 'namespace', custom, 'berth.dev/custom-pods=true']);
  const namespaces = [custom, elsewhere, SYSTEM_NAMESPACE];
  await Promise.all(namespaces.map((namespace) => untilPodsAllowed(cluster.client(), namespace)));
  await untilAllowed(cluster, AS_TENANT, ['create', 'pods', '-n', elsewhere]);
});

afterAll(async () => {
  await cluster.kubectl(['delete', 'namespace', custom, elsewhere, '--wait=false']);
});

function pod(namespace: string, spec: object, ownerReferences: object[] = []): string {
  return JSON.stringify({
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { name: 'p', namespace, ownerReferences },
    spec: { containers: [{ name: 'main', image: 'example.com/none' }], ...spec },
  });
}

function job(namespace: string, spec: object): string {
  const template = (JSON.parse(pod(namespace, spec)) as Pod).spec;
  return JSON.stringify({
    apiVersion: 'batch/v1',
    kind: 'Job',
    metadata: { name: 'j', namespace },
    spec: { template: { spec: { restartPolicy: 'Never', ...template } } },
  });
}

/** Returns the owner of a Pod, and the user of the controller that creates it. */
function controller(kind: string, name: string): [object[], As] {
  const [apiVersion] = kind === 'Job' ? ['batch/v1'] : ['apps/v1'];
  return [
    [{ apiVersion, kind, name: 'o', uid: 'u', controller: true }],
    [`--as=system:serviceaccount:kube-system:${name}`, '--as-group=system:masters'],
  ];
}

describe('a Pod that tolerates every taint', () => {
  it.for([
    ['ReplicaSet', 'replicaset-controller'],
    ['StatefulSet', 'statefulset-controller'],
    ['Job', 'job-controller'],
    ['DaemonSet', 'daemon-set-controller'],
  ] as const)('of a %s: allowed, but not in served namespaces', async ([kind, name]) => {
    const [owners, as] = controller(kind, name);
    for (const tolerations of [EVERYTHING, EVERY_EFFECT]) {
      await expectAccepted(pod(elsewhere, tolerations, owners), as);
      await expectAccepted(pod('default', tolerations, owners), as);
      await expectRefused(pod(custom, tolerations, owners), as, 'without a key');
    }
  });

  it('of a user is allowed too, like its Job, but not in served namespaces and the system namespace', async () => {
    for (const make of [pod, job]) {
      await expectAccepted(make(elsewhere, EVERYTHING), AS_TENANT);
      await expectAccepted(make('kube-system', EVERYTHING), AS_ADMIN);
      const hint = `namespace "${custom}" berth.dev/keyless-tolerations=true`;
      await expectRefused(make(custom, EVERYTHING), AS_TENANT, 'without a key', hint);
      await expectRefused(make(SYSTEM_NAMESPACE, EVERYTHING), AS_ADMIN, 'without a key');
    }
  });

  it('is allowed in a served namespace that an administrator labels', async () => {
    await cluster.kubectl(['label', 'namespace', custom, 'berth.dev/keyless-tolerations=true']);
    // Admission learns of the label a little later.
    await waitFor('the label to be known', () =>
      expectAccepted(pod(custom, EVERYTHING), AS_TENANT).then(() => true),
    );
    await cluster.kubectl(['label', 'namespace', custom, 'berth.dev/keyless-tolerations-']);
  });

  it('is allowed everywhere if it tolerates only effects that the taint of hosts does not have', async () => {
    const evicted = { tolerations: [{ operator: 'Exists', effect: 'NoExecute' }] };
    await expectAccepted(pod(custom, evicted), AS_TENANT);
  });
});

describe('a binding to a host that gives its Pod what names Berth', () => {
  it.for(['default', 'kube-system', custom])('is refused in %s', async (namespace) => {
    const target = { apiVersion: 'v1', kind: 'Node', name: 'host' };
    for (const metadata of [
      { annotations: { 'berth.dev/machine': '{}' } },
      { labels: { 'berth.dev/workload': 'vm' } },
    ]) {
      const named = { name: 'p', namespace, ...metadata };
      const binding = { apiVersion: 'v1', kind: 'Binding', metadata: named, target };
      await expectRefused(JSON.stringify(binding), AS_ADMIN, 'only the operator of Berth');
    }
  });
});

type Affinity = NonNullable<PodSpec['affinity']>;

/** Returns the affinity of the Pod that the API server would store. */
async function affinityOf(manifest: string, as: As = AS_ADMIN): Promise<Affinity | undefined> {
  const create = ['create', '--dry-run=server', '-o', 'json', '-f', '-', ...as];
  const { stdout } = await cluster.kubectl(create, { input: manifest });
  return (JSON.parse(stdout) as Pod).spec.affinity;
}

function required(...nodeSelectorTerms: object[]): object {
  return { requiredDuringSchedulingIgnoredDuringExecution: { nodeSelectorTerms } };
}

const preferred = { preferredDuringSchedulingIgnoredDuringExecution: PREFERENCE };
const podAffinity = { preferredDuringSchedulingIgnoredDuringExecution: [] };

describe('the affinity of a Pod that tolerates every taint excludes hosts', () => {
  beforeAll(async () => {
    await waitFor('the policy to be known', async () => {
      return (await affinityOf(pod(elsewhere, EVERYTHING))) !== undefined;
    });
  });

  it.for<[string, object | undefined, object]>([
    ['without an affinity', undefined, { nodeAffinity: required(ONLY_NO_HOST) }],
    ['with an empty affinity', {}, { nodeAffinity: required(ONLY_NO_HOST) }],
    ['with an affinity to Pods', { podAffinity }, { podAffinity: {}, nodeAffinity: required(ONLY_NO_HOST) }],
    ['with an empty node affinity', { nodeAffinity: {} }, { nodeAffinity: required(ONLY_NO_HOST) }],
    [
      'with a preference',
      { nodeAffinity: preferred },
      { nodeAffinity: { ...preferred, ...required(ONLY_NO_HOST) } },
    ],
    [
      'with several terms, of which each gets the expression',
      {
        nodeAffinity: {
          ...preferred,
          ...required({ matchExpressions: [ZONE] }, { matchFields: [NAMED] }, {}, ONLY_NO_HOST, {
            matchExpressions: [ZONE, ZONE],
            matchFields: [NAMED],
          }),
        },
      },
      {
        nodeAffinity: {
          ...preferred,
          ...required(
            { matchExpressions: [ZONE, NO_HOST] },
            { matchExpressions: [NO_HOST], matchFields: [NAMED] },
            // An empty term has no nodes.
            {},
            ONLY_NO_HOST,
            { matchExpressions: [ZONE, ZONE, NO_HOST], matchFields: [NAMED] },
          ),
        },
      },
    ],
  ])('%s', async ([, affinity, expected]) => {
    for (const tolerations of [EVERYTHING, EVERY_EFFECT]) {
      const manifest = pod(elsewhere, { ...tolerations, ...(affinity && { affinity }) });
      expect(await affinityOf(manifest)).toEqual(expected);
    }
  });

  it('also in kube-system, and for the Pod of a ReplicaSet', async () => {
    const [owners, as] = controller('ReplicaSet', 'replicaset-controller');
    const expected = { nodeAffinity: required(ONLY_NO_HOST) };
    expect(await affinityOf(pod('kube-system', EVERYTHING))).toEqual(expected);
    expect(await affinityOf(pod('default', EVERYTHING, owners), as)).toEqual(expected);
  });

  it('but stays as it is for Pods that no host would take, or that are for one node', async () => {
    const [owners, as] = controller('DaemonSet', 'daemon-set-controller');
    const affinity = { nodeAffinity: required({ matchFields: [NAMED] }) };
    expect(await affinityOf(pod(elsewhere, { ...EVERYTHING, affinity }, owners), as)).toEqual(affinity);
    const other = { tolerations: [{ key: 'infra', operator: 'Exists' }] };
    const never = { tolerations: [{ operator: 'Exists', effect: 'NoExecute' }] };
    for (const spec of [{}, other, never, { ...EVERYTHING, nodeName: 'node-1' }]) {
      expect(await affinityOf(pod(elsewhere, spec))).toBeUndefined();
    }
  });
});
