/** install.yaml on a real API server, and the uninstall hook with the rights that the chart gives it. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { EMULATORS, IMAGE_CACHE_ENTRIES, IMAGES, ISOS, VMS } from '../../api/v1alpha1/resources.ts';
import { CONFIG_MAPS, JOBS, LEASES, NAMESPACES, NODES, type Pod, PODS, SECRETS } from '../../kube/core.ts';
import { KubeClient } from '../../kube/client.ts';
import { loadConnection } from '../../kube/credentials.ts';
import { createMetrics } from '../../kube/metrics.ts';
import { Transport } from '../../kube/transport.ts';
import { namespaced, type OwnerReference, pathOf } from '../../kube/objects.ts';
import { type Cluster, startCluster } from '../../hack/cluster/index.ts';
import { componentToken } from '../../hack/cluster/tokens.ts';
import {
  CHART,
  EVERYTHING,
  find,
  helm,
  type Manifest,
  manifests,
  template,
  uninstallHook,
} from '../support/chart.ts';
import { isAllowed } from '../support/admission.ts';
import { AS_HOOK, giveRights, runUninstallHook } from '../support/uninstallhook.ts';
import { isGone } from '../fixtures/objects.ts';
import { waitFor } from '../../hack/wait.ts';

const SYSTEM = 'berth-system';
const DEPLOYMENTS = namespaced<Manifest>('apps/v1', 'Deployment', 'deployments');
const OWN_KINDS = /^(monitoring\.coreos\.com|cert-manager\.io)\//;

let cluster: Cluster;
let folder: string;

beforeAll(async () => {
  // This file has a cluster of its own, because it removes objects that the tests of rights and values need in theirs.
  cluster = await startCluster({ name: `chart-install-${process.pid}` });
  folder = mkdtempSync(join(tmpdir(), 'berth-install-'));
});

afterAll(async () => {
  await cluster?.stop();
  rmSync(folder, { recursive: true });
});

function documents(objects: readonly Manifest[]): string {
  return objects.map((one) => JSON.stringify(one)).join('\n---\n');
}

async function apply(objects: readonly Manifest[], ...args: string[]): Promise<string> {
  const fixed = ['apply', '--server-side', '--force-conflicts', '-f', '-'];
  const { stdout, stderr } = await cluster.kubectl([...fixed, ...args], { input: documents(objects) });
  return `${stdout}${stderr}`;
}

async function operatorPods(): Promise<Pod[]> {
  const labelSelector = 'app.kubernetes.io/component=operator';
  return (await cluster.client().list(PODS, { namespace: SYSTEM, labelSelector })).items;
}

async function isThere(
  type: Parameters<ReturnType<Cluster['client']>['get']>[0],
  name: string,
  namespace?: string,
): Promise<boolean> {
  const ref = namespace === undefined ? { name } : { name, namespace };
  return !(await isGone(() => cluster.client().get(type, ref)));
}

/** Applies the rendering, as tools do that do not let Helm install. */
async function installed(...how: string[]): Promise<void> {
  const { stdout } = await template({ namespaces: { createSystem: true } });
  await cluster.kubectl(['apply', ...how, '-f', '-'], { input: stdout });
}

const ON_THE_SERVER = ['--server-side', '--force-conflicts'];

describe('install.yaml', () => {
  test.each([
    ['kubectl', []],
    ['the API server', ON_THE_SERVER],
  ])('can be applied twice by %s, which removes nothing', async (_, how) => {
    const read = () => cluster.client().get(DEPLOYMENTS, { namespace: SYSTEM, name: 'berth-operator' });
    await installed(...how);
    const operator = await read();
    expect(operator['spec'].replicas).toBe(2);
    await installed(...how);
    expect((await read()).metadata).toMatchObject({ uid: operator.metadata.uid });
    expect((await cluster.client().list(JOBS, { namespace: SYSTEM })).items).toEqual([]);
    await waitFor('the Deployment to make its Pods', async () => {
      const { stdout } = await cluster.kubectl([
        '-n',
        SYSTEM,
        'get',
        'pods',
        '-l',
        'app.kubernetes.io/component=operator',
        '-o',
        'name',
      ]);
      return stdout.trim().split('\n').length === 2;
    });
  });

  test('is accepted with every optional part, except kinds of other projects', async () => {
    const objects = (await manifests(EVERYTHING)).filter(({ apiVersion }) => !OWN_KINDS.test(apiVersion));
    const said = await apply(objects, '--dry-run=server');
    expect(said).toContain('daemonset.apps/berth-agent');
    expect(said).not.toMatch(/warning/i);
  });

  test('the operator, the HTTP API and the hook pass Pod Security "restricted", the agent does not', async () => {
    const namespace = 'restricted';
    await cluster.kubectl(['create', 'namespace', namespace]);
    await cluster.kubectl(['label', 'namespace', namespace, 'pod-security.kubernetes.io/enforce=restricted']);
    await cluster.kubectl(['-n', namespace, 'create', 'serviceaccount', 'any']);
    // The class of priorityClass does not exist in this cluster.
    const priorityClass = { create: false };
    const objects = [
      ...(await manifests({ ...EVERYTHING, priorityClass })),
      ...(await uninstallHook(cluster)),
    ];
    const pod = ({ spec }: Manifest): Manifest => ({
      apiVersion: 'v1',
      kind: 'Pod',
      metadata: { name: 'judged', namespace },
      spec: { ...spec.template.spec, serviceAccountName: 'any' },
    });
    for (const [kind, name] of [
      ['Deployment', 'berth-operator'],
      ['Deployment', 'berth-server'],
      ['Job', 'berth-uninstall'],
    ] as const) {
      expect(await apply([pod(find(objects, kind, name))], '--dry-run=server')).toContain('pod/judged');
    }
    const agent = pod(find(objects, 'DaemonSet', 'berth-agent'));
    await expect(apply([agent], '--dry-run=server')).rejects.toThrow(/violates PodSecurity "restricted/);
    await cluster.kubectl(['delete', 'namespace', namespace, '--wait=false']);
  });
});

describe('helm', () => {
  async function release(args: readonly string[], values?: object): Promise<string> {
    const where = ['--namespace', SYSTEM, '--kubeconfig', cluster.kubeconfig];
    const given = values === undefined ? [] : ['--values', '-'];
    const { code, stdout, stderr } = await helm([...args, ...where, ...given], JSON.stringify(values));
    if (code !== 0) {
      throw new Error(`helm ${args[0]}: ${stderr}`);
    }
    return stdout;
  }

  /** Writes the files that a Pod of the DaemonSet finds below /etc/berth/bootstrap, and returns their folder. */
  async function bootstrapFolder(): Promise<string> {
    const config = { namespace: SYSTEM, name: 'berth-agent' };
    const { data } = await cluster.client().get(CONFIG_MAPS, config);
    const authority = await cluster
      .client()
      .get(CONFIG_MAPS, { namespace: SYSTEM, name: 'kube-root-ca.crt' });
    writeFileSync(join(folder, 'kubeconfig'), data?.['kubeconfig'] ?? '');
    writeFileSync(join(folder, 'ca.crt'), authority.data?.['ca.crt'] ?? '');
    writeFileSync(join(folder, 'token'), await componentToken(cluster.client(), 'berth-agent', false));
    return folder;
  }

  /** Returns whether the credentials for joining may do this, as the API server answers for them. */
  async function bootstrapMay(attributes: object): Promise<boolean | undefined> {
    const connection = await loadConnection({ kubeconfigPath: join(await bootstrapFolder(), 'kubeconfig') });
    const transport = new Transport(connection, { metrics: createMetrics(), userAgent: 'test' });
    const { body } = await new KubeClient(transport).raw(
      'POST',
      '/apis/authorization.k8s.io/v1/selfsubjectaccessreviews',
      {
        body: {
          apiVersion: 'authorization.k8s.io/v1',
          kind: 'SelfSubjectAccessReview',
          spec: { resourceAttributes: attributes },
        },
      },
    );
    await transport.close();
    return (body as { status?: { allowed?: boolean } }).status?.allowed;
  }

  test('installs, upgrades, and at an uninstall keeps the objects of users', async () => {
    const values = { agent: { ...EVERYTHING.agent, apiServer: cluster.server } };
    // The harness created the same objects before, so Helm has to adopt them.
    const over = ['--take-ownership', '--force-conflicts'];
    expect(await release(['install', 'berth', CHART, ...over], values)).toContain(
      'is in namespace berth-system',
    );
    const requests = { group: 'certificates.k8s.io', resource: 'certificatesigningrequests' };
    // The authorizer of the API server learns of new rights a little after they are stored.
    await waitFor('the token of a Pod to open what it is for', () =>
      bootstrapMay({ verb: 'create', ...requests }),
    );
    expect(await bootstrapMay({ verb: 'create', resource: 'nodes' })).toBe(false);
    expect(await bootstrapMay({ verb: 'list', resource: 'secrets' })).toBe(false);
    const changed = { ...values, config: { osx_node_platform_quota_pod: 2 } };
    await release(['upgrade', 'berth', CHART, '--force-conflicts'], changed);
    const config = await cluster.kubectl(['-n', SYSTEM, 'get', 'configmap', 'berth-operator', '-o', 'yaml']);
    expect(config.stdout).toContain('osx_node_platform_quota_pod: 2');
    const own = { namespace: 'platform-default', name: 'of-a-user' };
    const source = { registry: { reference: 'registry.example/own:1' } };
    const { metadata } = await cluster.client().create(IMAGES, { metadata: own, spec: { source } });
    await release(['uninstall', 'berth', '--no-hooks']);
    expect(await isThere(DEPLOYMENTS, 'berth-operator', SYSTEM)).toBe(false);
    expect(await isThere(NAMESPACES, 'platform-default')).toBe(true);
    const kept = (await cluster.client().get(IMAGES, own)).metadata;
    expect([kept.uid, kept.deletionTimestamp]).toEqual([metadata.uid, undefined]);
    await cluster.client().delete(IMAGES, own);
    await cluster.kubectl(['get', 'crd', 'vms.berth.dev', 'images.berth.dev']);
    // The kept objects still belong to this release.
    await release(['install', 'berth', CHART], values);
    const crds = { keep: false };
    // kubectl has applied the kinds, too. While it owns the annotation of crds.keep, an upgrade by Helm cannot remove it.
    await apply((await manifests({ crds })).filter(({ kind }) => kind === 'CustomResourceDefinition'));
    await release(['upgrade', 'berth', CHART], { ...values, crds });
    const without = { ...values, crds: { enabled: false } };
    await expect(release(['upgrade', 'berth', CHART], without)).rejects.toThrow('would remove the kinds');
    // Without VMs, agents can get another folder. With VMs, they would not find the machines.
    const elsewhere = { ...values, agent: { ...values.agent, hostPath: '/srv/elsewhere' } };
    await release(['upgrade', 'berth', CHART], elsewhere);
    const vm = { namespace: 'platform-default', name: 'with-a-disk' };
    await cluster.client().create(VMS, { metadata: vm, spec: { image: 'registry.example/guest:1' } });
    await expect(release(['upgrade', 'berth', CHART], values)).rejects.toThrow('/srv/elsewhere');
    await cluster.client().delete(VMS, vm);
    await release(['upgrade', 'berth', CHART], values);
    await release(['upgrade', 'berth', CHART], without);
    await cluster.kubectl(['get', 'crd', 'vms.berth.dev', 'images.berth.dev']);
    // No kubelet runs the Job of the hook, which would find this record.
    const waits = ['--timeout', '1s'];
    await expect(release(['uninstall', 'berth', ...waits])).rejects.toThrow('berth-uninstall');
    const labelSelector = 'owner=helm,name=berth,status=uninstalling';
    const records = await cluster.client().list(SECRETS, { namespace: SYSTEM, labelSelector });
    expect(records.items).toHaveLength(1);
    await release(['uninstall', 'berth', '--no-hooks']);
  });
});

describe('uninstall', () => {
  /** Writes a record of the release as Helm does, with the status of this revision. Helm's own records are in test/e2e/installed. */
  async function record(revision: number, status: string, type = SECRETS): Promise<void> {
    const labels = { owner: 'helm', name: 'berth', version: String(revision), status };
    const metadata = { name: `sh.helm.release.v1.berth.v${revision}`, namespace: SYSTEM, labels };
    await apply([{ apiVersion: type.apiVersion, kind: type.kind, metadata }]);
  }

  async function runHook(values: object, ...more: string[]): Promise<{ code: number; said: string }> {
    return await runUninstallHook(cluster, await uninstallHook(cluster, values), folder, more);
  }

  async function vm(name: string): Promise<void> {
    await apply([
      {
        apiVersion: 'berth.dev/v1alpha1',
        kind: 'VM',
        metadata: { name, namespace: 'platform-default' },
        spec: { image: 'none' },
      },
    ]);
  }

  async function hostWithLeases(): Promise<void> {
    const lease = (name: string, namespace: string, ownerReferences: OwnerReference[] = []): Manifest => ({
      apiVersion: 'coordination.k8s.io/v1',
      kind: 'Lease',
      metadata: { name, namespace, ownerReferences },
      spec: { holderIdentity: name },
    });
    await apply([
      {
        apiVersion: 'v1',
        kind: 'Node',
        metadata: { name: 'former-host', labels: { 'berth.dev/host': 'true' } },
      },
      { apiVersion: 'v1', kind: 'Node', metadata: { name: 'somebody-elses' } },
    ]);
    const { uid = '' } = (await cluster.client().get(NODES, { name: 'former-host' })).metadata;
    // The Leases look like those that agents write.
    const owner = { apiVersion: 'v1', kind: 'Node', name: 'former-host', uid };
    await apply([
      lease('former-host', 'kube-node-lease', [owner]),
      lease('somebody-elses', 'kube-node-lease'),
      lease('berth-operator', SYSTEM),
    ]);
  }

  test.each([
    ['of which Helm has no record', []],
    ['which is installed', ['deployed']],
    ['which is installed again after an uninstallation failed', ['uninstalling', 'deployed']],
  ])('removes nothing of a release %s', async (_, statuses) => {
    await installed(...ON_THE_SERVER);
    await hostWithLeases();
    for (const [i, status] of statuses.entries()) {
      await record(i + 9, status);
    }
    const { code, said } = await runHook({ uninstall: { drain: true } });
    expect(said).toContain(
      'Berth is removed only while Helm uninstalls it: helm uninstall berth --namespace berth-system',
    );
    expect(said).toContain(statuses.length === 0 ? 'Helm has no record' : 'the status is deployed');
    expect(code).toBe(1);
    expect(await isThere(DEPLOYMENTS, 'berth-operator', SYSTEM)).toBe(true);
    expect(await isThere(NODES, 'former-host')).toBe(true);
    expect(await isThere(LEASES, 'berth-operator', SYSTEM)).toBe(true);
  });

  test('refuses while a VM exists, names it, and changes nothing', async () => {
    await record(11, 'uninstalling', CONFIG_MAPS);
    await vm('still-here');
    const { code, said } = await runHook({});
    expect(said).toContain('VM platform-default/still-here');
    expect(said).toContain('uninstall.drain=true');
    expect(code).toBe(1);
    expect(await isThere(DEPLOYMENTS, 'berth-operator', SYSTEM)).toBe(true);
    expect(await isThere(NODES, 'former-host')).toBe(true);
    expect(await isThere(LEASES, 'berth-operator', SYSTEM)).toBe(true);
    const { metadata } = await cluster
      .client()
      .get(VMS, { namespace: 'platform-default', name: 'still-here' });
    expect(metadata.deletionTimestamp).toBeUndefined();
    // The authorizer of the API server learns of removed RoleBindings and ClusterRoleBindings by two watches.
    for (const right of [['nodes'], ['deployments/berth-operator', '-n', SYSTEM]]) {
      await waitFor(
        `the right of the hook to delete ${right[0]} to be gone`,
        async () => !(await isAllowed(cluster, AS_HOOK, ['delete', ...right])),
      );
    }
  });

  test('has rights only for hosts, which matters if it cannot give them up', async () => {
    await giveRights(cluster, await uninstallHook(cluster));
    const remove = (node: string) =>
      cluster.kubectl(['delete', 'node', node, '--dry-run=server', ...AS_HOOK], { allowFailure: true });
    const { stderr } = await remove('somebody-elses');
    expect(stderr).toContain(
      'the uninstallation of Berth may remove only Nodes with the label berth.dev/host=true',
    );
    expect(await remove('former-host')).toMatchObject({ code: 0 });
  });

  test('drains if told to, ends the operator, and removes hosts and their Leases, but no other Leases', async () => {
    const emulator = { namespace: 'platform-default', name: 'still-here' };
    await cluster.client().create(EMULATORS, { metadata: emulator, spec: { vmName: 'still-here' } });
    const { code, said } = await runHook({ uninstall: { drain: true } });
    expect(said).toContain('"name":"still-here"');
    expect({ code, said }).toMatchObject({ code: 0 });
    expect(await isThere(VMS, 'still-here', 'platform-default')).toBe(false);
    expect(await isThere(EMULATORS, 'still-here', 'platform-default')).toBe(false);
    expect(await isThere(DEPLOYMENTS, 'berth-operator', SYSTEM)).toBe(false);
    expect(await isThere(NODES, 'former-host')).toBe(false);
    await waitFor(
      'the Lease of the host to go with its Node',
      async () => !(await isThere(LEASES, 'former-host', 'kube-node-lease')),
    );
    expect(await isThere(LEASES, 'berth-operator', SYSTEM)).toBe(false);
    expect(await isThere(NODES, 'somebody-elses')).toBe(true);
    expect(await isThere(LEASES, 'somebody-elses', 'kube-node-lease')).toBe(true);
    expect(await runHook({})).toMatchObject({ code: 0 });
  });

  test('does not wait for a Pod whose kubelet is silent', async () => {
    await installed(...ON_THE_SERVER);
    const [pod] = await waitFor('both Pods of the operator', async () => {
      const pods = await operatorPods();
      return pods.length === 2 && pods;
    });
    const at = { namespace: SYSTEM, name: pod?.metadata.name ?? '' };
    const target = { kind: 'Node', name: 'somebody-elses' };
    const body = { apiVersion: 'v1', kind: 'Binding', metadata: at, target };
    const bound = await cluster.client().raw('POST', pathOf(PODS, at, 'binding'), { body });
    expect(bound).toMatchObject({ status: 201 });
    const { code, said } = await runHook({}, '--timeout-seconds=10');
    expect({ code, said }).toMatchObject({ code: 0 });
    expect((await operatorPods()).map(({ metadata }) => metadata.name)).toEqual([at.name]);
    await cluster.client().delete(PODS, at, { gracePeriodSeconds: 0 });
  });

  test('names a VM that does not end in time', async () => {
    await vm('stuck');
    const finalizers = { metadata: { finalizers: ['example.org/held'] } };
    const at = { namespace: 'platform-default', name: 'stuck' };
    await cluster.client().mergePatch(VMS, at, finalizers);
    const { code, said } = await runHook({ uninstall: { drain: true } }, '--timeout-seconds=2');
    await cluster.client().mergePatch(VMS, at, { metadata: { finalizers: [] } });
    expect(said).toContain('these objects still exist after the time limit: VM platform-default/stuck');
    expect(code).toBe(1);
  });

  test('removes our finalizers from objects that stay, so that they can be deleted later', async () => {
    const client = cluster.client();
    const finalizers = ['berth.dev/held', 'example.org/held'];
    const namespace = 'platform-default';
    const registry = { reference: 'registry.example/kept:1' };
    const http = { url: 'https://images.example/kept.iso', sha256: 'b'.repeat(64) };
    const cached = { ...registry, targets: { all: true } };
    await client.create(IMAGES, {
      metadata: { name: 'kept', namespace, finalizers },
      spec: { source: { registry } },
    });
    await client.create(IMAGES, {
      metadata: { name: 'deleted-before', namespace, finalizers: ['berth.dev/held'] },
      spec: { source: { registry } },
    });
    await client.delete(IMAGES, { name: 'deleted-before', namespace });
    await client.create(ISOS, {
      metadata: { name: 'kept', namespace, finalizers },
      spec: { source: { http } },
    });
    await client.create(IMAGE_CACHE_ENTRIES, {
      metadata: { name: 'kept', namespace, finalizers },
      spec: cached,
    });
    const { code, said } = await runHook({});
    expect({ code, said }).toMatchObject({ code: 0 });
    expect(await isThere(IMAGES, 'deleted-before', namespace)).toBe(false);
    const kept = [
      await client.get(IMAGES, { name: 'kept', namespace }),
      await client.get(ISOS, { name: 'kept', namespace }),
      await client.get(IMAGE_CACHE_ENTRIES, { name: 'kept', namespace }),
    ];
    for (const { kind, metadata } of kept) {
      expect(metadata.finalizers).toEqual(['example.org/held']);
      const at = metadata.namespace === undefined ? [] : ['-n', metadata.namespace];
      const patch = JSON.stringify({ metadata: { finalizers: [] } });
      await cluster.kubectl(['patch', kind, metadata.name, ...at, '--type=merge', '-p', patch]);
      await cluster.kubectl(['delete', kind, metadata.name, ...at, '--timeout=60s']);
    }
  });

  test('refuses to remove the kinds while an Image exists', async () => {
    const image = {
      apiVersion: 'berth.dev/v1alpha1',
      kind: 'Image',
      metadata: { name: 'left', namespace: 'platform-default' },
      spec: { source: { registry: { reference: 'registry.example/left:1' } } },
    };
    await apply([image]);
    expect((await runHook({})).code).toBe(0);
    const { code, said } = await runHook({ crds: { keep: false } });
    await cluster.kubectl(['-n', 'platform-default', 'delete', 'image', 'left']);
    expect(said).toContain('Image platform-default/left');
    expect(code).toBe(1);
  });
});
