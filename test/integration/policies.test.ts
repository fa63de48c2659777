import { randomBytes } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import {
  DEDICATED_KEY,
  DEDICATION_LABEL,
  DEFAULT_NAMESPACE,
  GROUP,
  HOST_KEY,
  HOST_MARK,
  NAMESPACE_PREFIX,
  SYSTEM_NAMESPACE,
  TAG_LABEL_PREFIX,
  TASK_ANNOTATION,
  WORKLOAD_LABEL,
} from '../../api/v1alpha1/names.ts';
import { untilPodsAllowed } from '../../hack/cluster/simulation.ts';
import type { Cluster } from '../../hack/cluster/index.ts';
import {
  admissionOf,
  AS_ADMIN,
  AS_OPERATOR,
  COMMANDING_SPECS,
  HOST_TOLERATION,
  OPERATOR_USER,
  OPERATORS_OWN,
  SLOT,
  untilAllowed,
} from '../support/admission.ts';
import { sharedCluster } from '../support/cluster.ts';
import { waitFor } from '../../hack/wait.ts';

const suffix = randomBytes(4).toString('hex');
/** A served namespace that allows Pods of users. */
const custom = `platform-custom-${suffix}`;
/** A served namespace for machines only. */
const machines = `platform-machines-${suffix}`;
const elsewhere = `elsewhere-${suffix}`;
const TENANT = `tenant-${suffix}`;

const AS_TENANT = [`--as=${TENANT}`];

let cluster: Cluster;
const { expectRefused, expectAccepted, expectCreated, patch } = admissionOf(() => cluster);

beforeAll(async () => {
  cluster = await sharedCluster();
  for (const namespace of [custom, machines, elsewhere]) {
    await cluster.createNamespace(namespace);
    for (const user of [TENANT, OPERATOR_USER]) {
      const name = `edit-${randomBytes(4).toString('hex')}`;
      await cluster.kubectl([
        'create',
        'rolebinding',
        name,
        '-n',
        namespace,
        '--clusterrole=admin',
        `--user=${user}`,
      ]);
    }
  }
  await cluster.kubectl(['label', 'namespace', custom, 'berth.dev/custom-pods=true']);
  const namespaces = [custom, machines, elsewhere, SYSTEM_NAMESPACE];
  await Promise.all(namespaces.map((namespace) => untilPodsAllowed(cluster.client(), namespace)));
  await untilAllowed(cluster, AS_TENANT, ['create', 'pods', '-n', elsewhere]);
});

afterAll(async () => {
  // The operator's finalizer on Pods of this file would block the deletion of their namespace.
  for (const namespace of [custom, machines, elsewhere]) {
    const { stdout } = await cluster.kubectl(['get', 'pods', '-n', namespace, '-o', 'name']);
    for (const pod of stdout.split('\n').filter(Boolean)) {
      const patch = ['--type=merge', '-p', '{"metadata":{"finalizers":null}}'];
      await cluster.kubectl(['patch', pod, '-n', namespace, ...patch], { allowFailure: true });
    }
  }
  await cluster.kubectl(['delete', 'namespace', custom, machines, elsewhere, '--wait=false']);
});

interface PodParts {
  annotations?: Record<string, string>;
  labels?: Record<string, string>;
  finalizers?: string[];
  ownerReferences?: object[];
  container?: object;
  spec?: object;
}

function pod(namespace: string, name: string, parts: PodParts = {}): string {
  const { container, spec, ...metadata } = parts;
  return JSON.stringify({
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { name, namespace, ...metadata },
    // No node has this label, so the Pod stays Pending in every cluster.
    spec: {
      nodeSelector: { 'example.com/nowhere': '' },
      containers: [{ name: 'main', image: 'example.com/none', ...container }],
      ...spec,
    },
  });
}

const COMMANDS: [string, PodParts, string][] = [
  ['the annotation of a machine', { annotations: { 'berth.dev/machine': '{}' } }, 'berth.dev/machine'],
  ['any annotation of Berth', { annotations: { 'berth.dev/new': '' } }, 'berth.dev/new'],
  ['a label of Berth', { labels: { 'berth.dev/vm-uid': 'x' } }, 'berth.dev/vm-uid'],
  ['the label of an emulator', { labels: { 'berth.dev/emulator-uid': 'x' } }, 'berth.dev/emulator-uid'],
  ['a finalizer of Berth', { finalizers: ['berth.dev/observed'] }, 'berth.dev/observed'],
  ...COMMANDING_SPECS,
];

describe('a Pod that would command a host', () => {
  it.for(COMMANDS)('with %s: refused to an admin and a tenant, everywhere', async ([, parts, says]) => {
    for (const namespace of [elsewhere, 'default', 'kube-system']) {
      await expectRefused(pod(namespace, 'p', parts), AS_ADMIN, says, 'only the operator of Berth');
    }
    await expectRefused(pod(custom, 'p', parts), AS_TENANT, says, 'only the operator of Berth');
    await expectRefused(pod(SYSTEM_NAMESPACE, 'p', parts), AS_ADMIN, says, 'only the operator of Berth');
  });

  it.for(COMMANDS)('with %s: allowed to the operator', async ([, { labels, spec, ...parts }]) => {
    const own = { labels: { ...OPERATORS_OWN.labels, ...labels }, spec: { ...OPERATORS_OWN.spec, ...spec } };
    await expectAccepted(pod(machines, 'p', { ...parts, ...own }), AS_OPERATOR);
  });
});

describe('an existing Pod of a machine', () => {
  const name = 'machine';

  beforeAll(async () => {
    const owner = ['create', 'configmap', 'owner', '-n', machines, '-o', 'jsonpath={.metadata.uid}'];
    const { stdout: uid } = await cluster.kubectl(owner);
    const manifest = pod(machines, name, {
      annotations: { 'berth.dev/machine': '{}', 'berth.dev/desired': '{}' },
      labels: { 'berth.dev/vm-uid': 'x', ...OPERATORS_OWN.labels },
      finalizers: ['berth.dev/observed'],
      ownerReferences: [{ apiVersion: 'v1', kind: 'ConfigMap', name: 'owner', uid }],
      container: SLOT,
      spec: { tolerations: [HOST_TOLERATION], ...OPERATORS_OWN.spec },
    });
    await cluster.kubectl(['create', ...AS_OPERATOR, '-f', '-'], { input: manifest });
  });

  const target = ['pod', name, '-n', machines];

  it.for<[string, object, string]>([
    [
      'change its annotation',
      { annotations: { 'berth.dev/desired': '{"powerState":"Stopped"}' } },
      'berth.dev/desired',
    ],
    ['remove its annotation', { annotations: { 'berth.dev/machine': null } }, 'berth.dev/machine'],
    ['change its label', { labels: { 'berth.dev/vm-uid': 'y' } }, 'berth.dev/vm-uid'],
    ['add a finalizer', { finalizers: ['berth.dev/observed', 'berth.dev/other'] }, 'berth.dev/other'],
  ])('only the operator may %s', async ([, metadata, says]) => {
    for (const as of [AS_ADMIN, AS_TENANT]) {
      const { code, stderr } = await patch(target, as, { metadata });
      expect(code).not.toBe(0);
      expect(stderr).toContain('only the operator of Berth');
      expect(stderr).toContain(says);
    }
    expect(await patch([...target, '--dry-run=server'], AS_OPERATOR, { metadata })).toMatchObject({
      code: 0,
    });
  });

  it('may get labels from an admin, and commands from the operator', async () => {
    const labelled = await patch(target, AS_ADMIN, { metadata: { labels: { team: 'a' } } });
    expect(labelled).toMatchObject({ code: 0 });
    const commanded = await patch(target, AS_OPERATOR, {
      metadata: { annotations: { 'berth.dev/desired': '{"a":1}' } },
    });
    expect(commanded).toMatchObject({ code: 0 });
  });

  it('can be orphaned by the garbage collector', async () => {
    await cluster.kubectl([
      'delete',
      'configmap',
      'owner',
      '-n',
      machines,
      '--cascade=orphan',
      '--wait=false',
    ]);
    await waitFor('the owner reference to go', async () => {
      const path = '-o=jsonpath={.metadata.ownerReferences}';
      const { stdout } = await cluster.kubectl(['get', 'pod', name, '-n', machines, path]);
      return stdout === '';
    });
  });
});

/** Capabilities and sysctls that the Pod Security Standard "baseline" allows. */
const BASELINE_CAPABILITIES = [
  'AUDIT_WRITE',
  'CHOWN',
  'DAC_OVERRIDE',
  'FOWNER',
  'FSETID',
  'KILL',
  'MKNOD',
  'NET_BIND_SERVICE',
  'SETFCAP',
  'SETGID',
  'SETPCAP',
  'SETUID',
  'SYS_CHROOT',
];
const BASELINE_SYSCTLS = [
  'kernel.shm_rmid_forced',
  'net.ipv4.ip_local_port_range',
  'net.ipv4.ip_unprivileged_port_start',
  'net.ipv4.tcp_syncookies',
  'net.ipv4.ping_group_range',
  'net.ipv4.ip_local_reserved_ports',
  'net.ipv4.tcp_keepalive_time',
  'net.ipv4.tcp_fin_timeout',
  'net.ipv4.tcp_keepalive_intvl',
  'net.ipv4.tcp_keepalive_probes',
];

describe('Pods of users in a served namespace', () => {
  it('are refused unless the namespace allows them', async () => {
    await expectRefused(pod(machines, 'p'), AS_ADMIN, machines, 'berth.dev/custom-pods=true');
    await expectRefused(pod(machines, 'p'), AS_TENANT, machines, 'berth.dev/custom-pods=true');
    await expectAccepted(pod(custom, 'p'), AS_TENANT);
  });

  const context = (securityContext: object): PodParts => ({ container: { securityContext } });
  it.for<[string, PodParts, string]>([
    ['host ports', { container: { ports: [{ containerPort: 80, hostPort: 80 }] } }, 'hostPort'],
    ['the host’s network', { spec: { hostNetwork: true } }, 'spec.hostNetwork'],
    ['the host’s processes', { spec: { hostPID: true } }, 'spec.hostPID'],
    ['the host’s IPC', { spec: { hostIPC: true } }, 'spec.hostIPC'],
    ['a host path', { spec: { volumes: [{ name: 'v', hostPath: { path: '/' } }] } }, 'hostPath'],
    ['privileges', context({ privileged: true }), 'privileged'],
    ['more capabilities', context({ capabilities: { add: ['NET_ADMIN'] } }), 'capabilities'],
    ['seccomp off', context({ seccompProfile: { type: 'Unconfined' } }), 'seccomp'],
    ['AppArmor off', { spec: { securityContext: { appArmorProfile: { type: 'Unconfined' } } } }, 'AppArmor'],
    ['another SELinux type', context({ seLinuxOptions: { type: 'spc_t' } }), 'seLinuxOptions'],
    [
      'unsafe sysctls',
      { spec: { securityContext: { sysctls: [{ name: 'kernel.msgmax', value: '1' }] } } },
      'sysctls',
    ],
    [
      'a probe of another host',
      { container: { livenessProbe: { tcpSocket: { port: 1, host: 'a' } } } },
      'probes',
    ],
    [
      'the machines’ priority',
      { spec: { priorityClassName: 'system-node-critical' } },
      'system-node-critical',
    ],
    ['a node of their choice', { spec: { nodeName: 'some-host' } }, 'spec.nodeName'],
  ])('must not have %s', async ([, parts, says]) => {
    await expectRefused(pod(custom, 'p', parts), AS_TENANT, says);
    await expectRefused(pod(custom, 'p', parts), AS_ADMIN, says);
  });

  it('may have what the baseline allows', async () => {
    const parts = {
      container: {
        ports: [{ containerPort: 80 }],
        securityContext: {
          capabilities: { add: BASELINE_CAPABILITIES, drop: ['ALL'] },
          seccompProfile: { type: 'RuntimeDefault' },
          appArmorProfile: { type: 'RuntimeDefault' },
          seLinuxOptions: { type: 'container_t', level: 's0' },
          procMount: 'Default',
        },
        livenessProbe: { httpGet: { port: 80, path: '/' } },
      },
      spec: {
        volumes: [{ name: 'v', emptyDir: {} }],
        priorityClassName: 'system-cluster-critical',
        securityContext: { sysctls: BASELINE_SYSCTLS.map((name) => ({ name, value: '1' })) },
      },
    };
    await expectAccepted(pod(custom, 'p', parts), AS_TENANT);
  });

  it('cannot get a privileged ephemeral container later', async () => {
    await expectCreated(pod(custom, 'debugged'), AS_TENANT);
    const ephemeral = (securityContext: object) =>
      cluster.kubectl(
        [
          'patch',
          'pod',
          'debugged',
          '-n',
          custom,
          '--subresource=ephemeralcontainers',
          '-p',
          JSON.stringify({ spec: { ephemeralContainers: [{ name: 'e', image: 'i', securityContext }] } }),
        ],
        { allowFailure: true },
      );
    expect((await ephemeral({ privileged: true })).stderr).toContain('privileged is not allowed');
    expect(await ephemeral({ privileged: false })).toMatchObject({ code: 0 });
  });
});

describe('the kinds', () => {
  const specs: Record<string, object> = {
    VM: { image: 'any' },
    VMConfig: { image: 'any' },
    Image: { source: { empty: { size: '1Gi' } } },
    ISO: { source: { sharedFile: { path: 'a.iso' } } },
    ImageCacheEntry: { reference: 'registry.example/image:1', targets: { all: true } },
    Emulator: { vmName: 'x' },
  };
  const manifest = (kind: string, namespace: string) =>
    JSON.stringify({
      apiVersion: 'berth.dev/v1alpha1',
      kind,
      metadata: { name: 'x', namespace },
      spec: specs[kind],
    });

  it.for(Object.keys(specs))('%s: refused outside of served namespaces', async (kind) => {
    await expectRefused(
      manifest(kind, elsewhere),
      AS_ADMIN,
      kind,
      elsewhere,
      'platform-default',
      'platform-',
    );
    await expectRefused(manifest(kind, 'default'), AS_ADMIN, kind, 'platform-');
    await expectAccepted(manifest(kind, machines), AS_ADMIN);
  });
});

describe('the dedication of a namespace', () => {
  const namespaceWith = (value: string) => ({
    apiVersion: 'v1',
    kind: 'Namespace',
    metadata: { name: 'platform-labelled', labels: { [DEDICATION_LABEL]: value } },
  });

  it('has one of two values', async () => {
    for (const value of ['Strict', 'Shared']) {
      await expectAccepted(JSON.stringify(namespaceWith(value)), AS_ADMIN);
    }
    for (const value of ['strict', 'Exclusive', '']) {
      const message = `label ${DEDICATION_LABEL} is "${value}", and only Strict and Shared are allowed`;
      await expectRefused(JSON.stringify(namespaceWith(value)), AS_ADMIN, message);
    }
  });
});

describe('the policies', () => {
  interface Policy {
    metadata: { name: string };
    spec: Record<'variables' | 'matchConditions', { name: string; expression: string }[] | undefined>;
    status?: { typeChecking?: object };
  }

  async function ownPolicies(): Promise<Policy[]> {
    return await policiesOf('validatingadmissionpolicies');
  }

  async function policiesOf(resource: string): Promise<Policy[]> {
    const { stdout } = await cluster.kubectl(['get', resource, '-o', 'json']);
    const { items } = JSON.parse(stdout) as { items: Policy[] };
    return items.filter((policy) => policy.metadata.name.startsWith('berth-'));
  }

  it('use the same names as the operator', async () => {
    const names: Record<string, string> = {
      operatorUser: OPERATOR_USER,
      serverUser: `system:serviceaccount:${SYSTEM_NAMESPACE}:berth-server`,
      defaultNamespace: DEFAULT_NAMESPACE,
      namespacePrefix: NAMESPACE_PREFIX,
      systemNamespace: SYSTEM_NAMESPACE,
      keyPrefix: `${GROUP}/`,
      hostTaint: HOST_KEY,
      hostMark: HOST_MARK,
      dedicatedLabel: DEDICATED_KEY,
      tagPrefix: TAG_LABEL_PREFIX,
      workloadLabel: WORKLOAD_LABEL,
      taskAnnotation: TASK_ANNOTATION,
    };
    const mutating = await policiesOf('mutatingadmissionpolicies');
    expect(mutating.map(({ metadata }) => metadata.name)).toEqual(['berth-foreign-pods']);
    const variables = [...(await ownPolicies()), ...mutating].flatMap(
      (policy) => policy.spec.variables ?? [],
    );
    const compared = variables.filter((variable) => variable.name in names);
    expect(new Set(compared.map((variable) => variable.name))).toEqual(new Set(Object.keys(names)));
    for (const { name, expression } of compared) {
      expect({ name, expression }).toEqual({ name, expression: `'${names[name]}'` });
    }
    const conditions = (await ownPolicies()).flatMap(({ spec }) => spec.matchConditions ?? []);
    const texts = conditions.flatMap(
      ({ expression }) => expression.match(/'(?:system|platform)[^']*'/g) ?? [],
    );
    const { operatorUser, serverUser, defaultNamespace, namespacePrefix } = names;
    const uninstallUser = `system:serviceaccount:${SYSTEM_NAMESPACE}:berth-uninstall`;
    expect(new Set(texts)).toEqual(
      new Set(
        [operatorUser, serverUser, uninstallUser, defaultNamespace, namespacePrefix].map(
          (text) => `'${text}'`,
        ),
      ),
    );
  });

  it('have no type warnings', async () => {
    const status = await waitFor('the type check', async () => {
      const own = await ownPolicies();
      return own.every((policy) => policy.status?.typeChecking !== undefined) ? own : undefined;
    });
    expect(status.map((policy) => [policy.metadata.name, policy.status?.typeChecking])).toEqual([
      ['berth-bindings', {}],
      ['berth-claimed-by', {}],
      ['berth-created-by', {}],
      ['berth-custom-pods', {}],
      ['berth-dedication', {}],
      ['berth-jobs', {}],
      ['berth-kinds', {}],
      ['berth-namespaces', {}],
      ['berth-nodes', {}],
      ['berth-operator-roles', {}],
      ['berth-operator-secrets', {}],
      ['berth-operator-vms', {}],
      ['berth-operator-workloads', {}],
      ['berth-pods', {}],
      ['berth-references', {}],
      ['berth-server-power', {}],
      ['berth-vm-life', {}],
    ]);
  });
});
