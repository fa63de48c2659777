/** Only the operator may create Jobs that command hosts, and only the Job controller may create their Pods. */
import { randomBytes } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { SYSTEM_NAMESPACE } from '../../api/v1alpha1/names.ts';
import { type Pod, PODS } from '../../kube/core.ts';
import { untilPodsAllowed } from '../../hack/cluster/simulation.ts';
import type { Cluster } from '../../hack/cluster/index.ts';
import {
  admissionOf,
  AS_ADMIN,
  AS_OPERATOR,
  COMMANDING_SPECS,
  HOST_TOLERATION,
  OPERATORS_OWN,
  SLOT,
  untilAllowed,
} from '../support/admission.ts';
import { sharedCluster } from '../support/cluster.ts';
import { waitFor } from '../../hack/wait.ts';

const suffix = randomBytes(4).toString('hex');
/** A served namespace for machines only. */
const machines = `platform-jobs-${suffix}`;
const elsewhere = `jobs-elsewhere-${suffix}`;
const TENANT = `tenant-${suffix}`;

const AS_TENANT = [`--as=${TENANT}`];

let cluster: Cluster;
const { expectRefused, expectAccepted, expectCreated, patch } = admissionOf(() => cluster);

beforeAll(async () => {
  cluster = await sharedCluster();
  for (const namespace of [machines, elsewhere]) {
    await cluster.createNamespace(namespace);
    const binding = ['create', 'rolebinding', 'edit', '-n', namespace, '--clusterrole=admin'];
    await cluster.kubectl([...binding, `--user=${TENANT}`]);
  }
  await Promise.all(
    [machines, elsewhere, SYSTEM_NAMESPACE].map((namespace) => untilPodsAllowed(cluster.client(), namespace)),
  );
  await untilAllowed(cluster, AS_TENANT, ['create', 'pods', '-n', elsewhere]);
});

afterAll(async () => {
  await cluster.kubectl(['delete', 'namespace', machines, elsewhere, '--wait=false']);
});

interface Parts {
  /** Metadata of the Job itself. */
  own?: object;
  /** Metadata and spec of its Pods. */
  metadata?: object;
  container?: object;
  spec?: object;
}

/** Returns a Job as the operator writes it. */
const TASK: Parts = {
  own: { labels: { 'berth.dev/workload': 'cache' } },
  metadata: {
    labels: { 'berth.dev/workload': 'cache' },
    annotations: { 'berth.dev/task': '{"type":"uncache"}' },
  },
  container: SLOT,
  spec: { ...OPERATORS_OWN.spec, tolerations: [HOST_TOLERATION], priorityClassName: 'system-node-critical' },
};

function job(namespace: string, name: string, parts: Parts): string {
  const { own, metadata, container, spec } = parts;
  return JSON.stringify({
    apiVersion: 'batch/v1',
    kind: 'Job',
    metadata: { name, namespace, ...own },
    spec: {
      backoffLimit: 0,
      template: {
        metadata,
        spec: {
          restartPolicy: 'Never',
          // No node has this label, so the Pod stays Pending in every cluster.
          nodeSelector: { 'example.com/nowhere': '' },
          containers: [{ name: 'task', image: 'example.com/none', ...container }],
          ...spec,
        },
      },
    },
  });
}

const COMMANDS: [string, Parts, string][] = [
  ['a task', { metadata: { annotations: { 'berth.dev/task': '{}' } } }, 'berth.dev/task'],
  ['a machine', { metadata: { annotations: { 'berth.dev/machine': '{}' } } }, 'berth.dev/machine'],
  ['a label of Berth', { metadata: { labels: { 'berth.dev/workload': 'cache' } } }, 'berth.dev/workload'],
  ['a label of Berth on itself', { own: { labels: { 'berth.dev/workload': 'x' } } }, 'berth.dev/workload'],
  ['a finalizer of Berth', { metadata: { finalizers: ['berth.dev/observed'] } }, 'berth.dev/'],
  ...COMMANDING_SPECS,
];

describe('a Job that would command a host', () => {
  it.for(COMMANDS)('with %s: refused to an admin and a tenant, everywhere', async ([, parts, says]) => {
    await expectRefused(job(machines, 'j', parts), AS_TENANT, says, 'only the operator of Berth');
    for (const namespace of [elsewhere, 'default', 'kube-system']) {
      await expectRefused(job(namespace, 'j', parts), AS_ADMIN, says, 'only the operator of Berth');
    }
    await expectRefused(job(SYSTEM_NAMESPACE, 'j', parts), AS_ADMIN, says, 'only the operator of Berth');
  });

  it('is not created by a CronJob: its controller is not the operator either', async () => {
    const { spec } = JSON.parse(job(elsewhere, 'c', TASK)) as { spec: object };
    const manifest = JSON.stringify({
      apiVersion: 'batch/v1',
      kind: 'CronJob',
      metadata: { name: 'c', namespace: elsewhere },
      spec: { schedule: '* * * * *', jobTemplate: { spec } },
    });
    const cron = 'system:serviceaccount:kube-system:cronjob-controller';
    await expectAccepted(manifest, AS_TENANT);
    await expectRefused(
      job(elsewhere, 'j', { ...TASK, own: {} }),
      [`--as=${cron}`],
      'only the operator of Berth',
    );
  });

  it('cannot be made from a suspended Job, whose template may be changed', async () => {
    const manifest = JSON.parse(job(elsewhere, 'suspended', {})) as { spec: { suspend?: boolean } };
    manifest.spec.suspend = true;
    await expectCreated(JSON.stringify(manifest), AS_TENANT);
    const target = ['job', 'suspended', '-n', elsewhere];
    const patched = await patch(target, AS_TENANT, {
      spec: { template: { metadata: { annotations: { 'berth.dev/task': '{}' } } } },
    });
    expect(patched.code).not.toBe(0);
    expect(patched.stderr).toContain('only the operator of Berth may set or change berth.dev/task');
    const labelled = await patch(target, AS_TENANT, { metadata: { labels: { team: 'a' } } });
    expect(labelled).toMatchObject({ code: 0 });
  });

  it('does not include Jobs of users, which work as ever', async () => {
    await expectCreated(job(elsewhere, 'own', {}), AS_TENANT);
    const [pod] = await podsOf(elsewhere, 'own');
    expect(pod?.metadata.annotations ?? {}).not.toHaveProperty('berth.dev/task');
  });
});

async function podsOf(namespace: string, name: string): Promise<Pod[]> {
  return await waitFor(`the Pod of the Job ${name}`, async () => {
    const { items } = await cluster.client().list(PODS, { namespace, labelSelector: `job-name=${name}` });
    return items.length > 0 && items;
  });
}

describe('a Pod with a false Job as its owner', () => {
  const ownerReferences = [{ apiVersion: 'batch/v1', kind: 'Job', name: 'j', uid: 'u', controller: true }];

  it.for([elsewhere, machines, SYSTEM_NAMESPACE])('in %s: refused to everybody', async (namespace) => {
    const { spec } = JSON.parse(job(namespace, 'p', TASK)) as { spec: { template: { spec: object } } };
    const commanding = { apiVersion: 'v1', kind: 'Pod', spec: spec.template.spec };
    const metadata = { name: 'p', namespace, ownerReferences };
    // One of two policies refuses first. In a served namespace, a second policy refuses all Pods of users.
    const says = namespace === machines ? [] : ['only the operator of Berth'];
    for (const as of namespace === SYSTEM_NAMESPACE ? [AS_ADMIN] : [AS_ADMIN, AS_TENANT]) {
      await expectRefused(JSON.stringify({ ...commanding, metadata }), as, ...says);
      const annotations = { 'berth.dev/task': '{}' };
      const annotated = { ...commanding, metadata: { ...metadata, annotations } };
      await expectRefused(JSON.stringify(annotated), as, ...says);
    }
  });
});

describe('a Job of the operator', () => {
  it.for([SYSTEM_NAMESPACE, machines])('gets its Pod from the Job controller in %s', async (namespace) => {
    const name = `task-${suffix}`;
    await expectCreated(job(namespace, name, TASK), AS_OPERATOR);
    const [pod] = await podsOf(namespace, name);
    expect(pod?.metadata).toMatchObject({
      annotations: { 'berth.dev/task': '{"type":"uncache"}' },
      labels: { 'berth.dev/workload': 'cache' },
    });
    expect(pod?.spec.containers[0]?.resources).toEqual(SLOT.resources);
    // The Job controller removes its finalizer from the Pod. The policies must allow this update too.
    await cluster.kubectl(['delete', 'job', name, '-n', namespace, '--wait=false']);
    await waitFor('the Pod to go', async () => {
      const { items } = await cluster.client().list(PODS, { namespace, labelSelector: `job-name=${name}` });
      return items.length === 0;
    });
  });

  it('can be suspended by a tenant, but not sent to other hosts or extended', async () => {
    const name = `moved-${suffix}`;
    await expectCreated(job(machines, name, TASK), AS_OPERATOR);
    const target = ['job', name, '-n', machines];
    expect(await patch(target, AS_TENANT, { spec: { suspend: true } })).toMatchObject({ code: 0 });
    await cluster.kubectl(['wait', ...target, '--for=condition=Suspended', '--timeout=60s']);
    const hostsOfOthers = { key: 'berth.node-restriction.kubernetes.io/namespace', operator: 'Exists' };
    const moved = [{ tolerations: [HOST_TOLERATION, hostsOfOthers] }, { affinity: null }];
    const changes = moved.map((spec) => ({ template: { spec } }));
    for (const spec of [...changes, { activeDeadlineSeconds: 1_000_000 }, { backoffLimit: 1_000 }]) {
      const patched = await patch(target, AS_TENANT, { spec });
      expect(patched.code).not.toBe(0);
      expect(patched.stderr).toContain('only the operator of Berth may change them for a task');
    }
    expect(await patch(target, AS_TENANT, { spec: { suspend: false } })).toMatchObject({ code: 0 });
  });
});
