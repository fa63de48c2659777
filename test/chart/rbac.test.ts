/** Rights of all roles, as a real API server answers. The most important rights are also tried. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { NODES, PODS, SECRETS } from '../../kube/core.ts';
import type { Cluster } from '../../hack/cluster/index.ts';
import { EVERYTHING, type Manifest, manifests, uninstallHook } from '../support/chart.ts';
import { sharedCluster } from '../support/cluster.ts';
import { account, type Person, rightsOf } from '../support/rights.ts';
import { waitFor } from '../../hack/wait.ts';

const OWN = 'platform-rbac-own';
const OTHER = 'platform-rbac-other';
const ELSEWHERE = 'rbac-elsewhere';
const SYSTEM = 'berth-system';
const HOST = 'rbac-host';
const NEIGHBOUR = 'rbac-neighbour';

const VIEWER: Person = { user: 'rbac-viewer', groups: ['system:authenticated'] };
const EDITOR: Person = { user: 'rbac-editor', groups: ['system:authenticated'] };
const EDITOR_EVERYWHERE: Person = { user: 'rbac-editor-everywhere', groups: ['system:authenticated'] };
const ADMIN: Person = { user: 'rbac-admin', groups: ['system:authenticated'] };
const OPERATOR = account(SYSTEM, 'berth-operator');
const SERVER = account(SYSTEM, 'berth-server');
const READER = account('monitoring', 'prometheus');
const UNINSTALL = account(SYSTEM, 'berth-uninstall');
const BOOTSTRAP: Person = {
  user: 'system:bootstrap:abcdef',
  groups: ['system:bootstrappers:berth', 'system:authenticated'],
};
const AGENT_ACCOUNT = account(SYSTEM, 'berth-agent');
const AGENT: Person = { user: `system:node:${HOST}`, groups: ['system:nodes', 'system:authenticated'] };

let cluster: Cluster;
const { apply, may, as } = rightsOf(() => cluster);

beforeAll(async () => {
  cluster = await sharedCluster();
  for (const namespace of [OWN, OTHER, ELSEWHERE]) {
    await cluster.createNamespace(namespace);
  }
  const { uninstall } = EVERYTHING;
  const objects = [...(await manifests(EVERYTHING)), ...(await uninstallHook(cluster, { uninstall }))];
  const isRight = ({ kind }: Manifest) => /^(Cluster)?Role(Binding)?$/.test(kind);
  await apply(objects.filter(isRight));
  await apply([
    binding('RoleBinding', 'view', VIEWER),
    binding('RoleBinding', 'edit', EDITOR),
    binding('ClusterRoleBinding', 'edit', EDITOR_EVERYWHERE),
    binding('ClusterRoleBinding', 'admin', ADMIN),
  ]);
  // The control plane aggregates the roles, and its authorizer learns of them a little later.
  await waitFor('the rights to be known', async () => {
    const known = [
      may(VIEWER, `get vmconfigs.berth.dev in ${OWN}`),
      may(EDITOR, `create vmconfigs.berth.dev in ${OWN}`),
      may(EDITOR_EVERYWHERE, `create vmconfigs.berth.dev in ${OTHER}`),
      may(ADMIN, `create vmconfigs.berth.dev in ${OWN}`),
      may(ADMIN, 'create imagecacheentries.berth.dev'),
    ];
    return (await Promise.all(known)).every(Boolean);
  });
});

afterAll(async () => {
  await cluster.kubectl(['delete', 'namespace', OWN, OTHER, ELSEWHERE, '--wait=false']);
  await cluster.kubectl(['delete', 'node', HOST, NEIGHBOUR, '--ignore-not-found']);
  await cluster.kubectl(['delete', 'clusterrolebinding', 'rbac-edit', 'rbac-admin', '--ignore-not-found']);
});

function binding(kind: 'RoleBinding' | 'ClusterRoleBinding', role: string, { user }: Person): Manifest {
  const subject = { apiGroup: 'rbac.authorization.k8s.io', kind: 'User', name: user };
  return {
    apiVersion: 'rbac.authorization.k8s.io/v1',
    kind,
    metadata: { name: `rbac-${role}`, ...(kind === 'RoleBinding' && { namespace: OWN }) },
    roleRef: { apiGroup: 'rbac.authorization.k8s.io', kind: 'ClusterRole', name: role },
    subjects: [subject],
  };
}

const KINDS = [
  'vms',
  'vmconfigs',
  'vmsnapshots',
  'images',
  'isos',
  'emulators',
  'imagecacheentries',
  'vmpools',
];

describe('the table', () => {
  const table: [string, Person, string[], string[]][] = [
    [
      'view in a namespace',
      VIEWER,
      KINDS.flatMap((kind) => [`get ${kind}.berth.dev in ${OWN}`, `watch ${kind}.berth.dev in ${OWN}`]),
      [
        ...KINDS.map((kind) => `create ${kind}.berth.dev in ${OWN}`),
        `get vms.berth.dev in ${OTHER}`,
        'list imagecacheentries.berth.dev',
      ],
    ],
    [
      'edit in a namespace',
      EDITOR,
      KINDS.flatMap((kind) =>
        ['create', 'patch', 'delete', 'list'].map((verb) => `${verb} ${kind}.berth.dev in ${OWN}`),
      ),
      [
        ...KINDS.flatMap((kind) => [
          `create ${kind}.berth.dev in ${OTHER}`,
          `get ${kind}.berth.dev in ${OTHER}`,
          `patch ${kind}/status.berth.dev in ${OWN}`,
        ]),
        'list vms.berth.dev',
        'get nodes',
        'patch nodes',
        `get secrets in ${SYSTEM}`,
        `create jobs.batch in ${SYSTEM}`,
        'get /metrics',
      ],
    ],
    [
      'edit in all namespaces',
      EDITOR_EVERYWHERE,
      [`create vms.berth.dev in ${OTHER}`, 'list vms.berth.dev', 'create imagecacheentries.berth.dev'],
      ['patch imagecacheentries/status.berth.dev', 'patch nodes'],
    ],
    [
      'admin of the cluster',
      ADMIN,
      ['create imagecacheentries.berth.dev', 'list vms.berth.dev', `delete vms.berth.dev in ${OTHER}`],
      [`patch vms/status.berth.dev in ${OTHER}`, 'patch imagecacheentries/status.berth.dev', 'patch nodes'],
    ],
    [
      'operator',
      OPERATOR,
      [
        // VMs of VMPools.
        `create vms.berth.dev in ${OWN}`,
        `delete vms.berth.dev in ${OWN}`,
        `patch vms/status.berth.dev in ${OWN}`,
        // Images with ttlSecondsAfterFinished.
        `delete images.berth.dev in ${OWN}`,
        `create pods in ${OWN}`,
        `create secrets in ${OWN}`,
        // Credentials of the controllers of Servers.
        `get secrets in ${SYSTEM}`,
        `create jobs.batch in ${SYSTEM}`,
        'patch nodes/status',
        `patch pods/status in ${OWN}`,
        `update leases.coordination.k8s.io in ${SYSTEM}`,
        'create tokenreviews.authentication.k8s.io',
        'list servicecidrs.networking.k8s.io',
        `create rolebindings.rbac.authorization.k8s.io in ${OWN}`,
        `patch rolebindings.rbac.authorization.k8s.io in ${OWN} named berth-role-dev`,
        `bind clusterroles.rbac.authorization.k8s.io in ${OWN} named berth-role-admin`,
      ],
      [
        'list services in default',
        `get secrets in ${OWN}`,
        `list secrets in ${OWN}`,
        `patch secrets in ${OWN}`,
        `delete secrets in ${OWN}`,
        `list secrets in ${SYSTEM}`,
        `create vmpools.berth.dev in ${OWN}`,
        `create images.berth.dev in ${OWN}`,
        `delete isos.berth.dev in ${OWN}`,
        `create pods/exec in ${OWN}`,
        'create nodes',
        'delete nodes',
        'delete namespaces',
        `update leases.coordination.k8s.io in kube-system`,
        'create clusterroles.rbac.authorization.k8s.io',
        'escalate clusterroles.rbac.authorization.k8s.io',
        'bind clusterroles.rbac.authorization.k8s.io named cluster-admin',
        `patch rolebindings.rbac.authorization.k8s.io in ${OWN}`,
        `delete rolebindings.rbac.authorization.k8s.io in ${OWN} named berth-role-dev`,
        'create clusterrolebindings.rbac.authorization.k8s.io',
        'impersonate users',
        'create certificatesigningrequests.certificates.k8s.io',
        'approve signers.certificates.k8s.io',
        `patch configmaps in ${SYSTEM}`,
        // Only the ConfigMap berth-registries.
        `get configmaps in ${OWN}`,
        'get /metrics',
      ],
    ],
    [
      'HTTP API',
      SERVER,
      [
        'list nodes',
        'patch nodes',
        'watch pods',
        'delete namespaces',
        'list vms.berth.dev',
        'create tokenreviews.authentication.k8s.io',
        'create subjectaccessreviews.authorization.k8s.io',
      ],
      [
        'patch nodes/status',
        'delete nodes',
        'patch namespaces',
        `create pods in ${OWN}`,
        `get vms.berth.dev in ${OWN}`,
        `create vms.berth.dev in ${OWN}`,
        `patch images.berth.dev in ${OWN}`,
        `get images.berth.dev in ${OWN}`,
        `list imagecacheentries.berth.dev in ${OWN}`,
        `create imagecacheentries.berth.dev in ${OWN}`,
        `get secrets in ${OWN}`,
        `list secrets in ${SYSTEM}`,
        `create secrets in ${SYSTEM}`,
        'impersonate users',
      ],
    ],
    [
      'reader of metrics',
      READER,
      ['get /metrics', 'get nodes/metrics', 'list nodes'],
      [
        'post /metrics',
        'get /debug/pprof',
        'get nodes/proxy',
        'patch nodes',
        `list pods in ${SYSTEM}`,
        `get configmaps in ${SYSTEM}`,
        `list vms.berth.dev in ${OWN}`,
        `get secrets in ${SYSTEM}`,
      ],
    ],
    [
      'uninstall that drains',
      UNINSTALL,
      [
        'delete nodes',
        `delete vms.berth.dev in ${OWN}`,
        `patch images.berth.dev in ${OWN}`,
        `patch isos.berth.dev in ${OWN}`,
        'patch imagecacheentries.berth.dev',
        // Helm's records of the release.
        `list secrets in ${SYSTEM}`,
      ],
      [
        `patch vms.berth.dev in ${OWN}`,
        `patch images/status.berth.dev in ${OWN}`,
        'patch nodes',
        `get secrets in ${SYSTEM}`,
        `list secrets in ${OWN}`,
        `delete pods in ${SYSTEM}`,
        `delete deployments.apps in ${SYSTEM}`,
        `delete leases.coordination.k8s.io in ${SYSTEM}`,
        'delete leases.coordination.k8s.io in kube-node-lease',
        'delete clusterrolebindings.rbac.authorization.k8s.io',
        'delete namespaces',
        'delete customresourcedefinitions.apiextensions.k8s.io',
      ],
    ],
    [
      'bootstrap token',
      BOOTSTRAP,
      ['create certificatesigningrequests.certificates.k8s.io'],
      [
        'approve signers.certificates.k8s.io',
        'update certificatesigningrequests/approval.certificates.k8s.io',
        'get nodes',
        'create nodes',
        `list pods in ${OWN}`,
        `get secrets in ${SYSTEM}`,
      ],
    ],
    [
      "agent's Pod, before its host has joined",
      AGENT_ACCOUNT,
      ['create certificatesigningrequests.certificates.k8s.io'],
      [
        'approve signers.certificates.k8s.io',
        'update certificatesigningrequests/approval.certificates.k8s.io',
        'create nodes',
        `list pods in ${OWN}`,
        `get secrets in ${SYSTEM}`,
      ],
    ],
    [
      'host',
      AGENT,
      [
        'create nodes',
        'create certificatesigningrequests.certificates.k8s.io',
        `patch pods/status in ${OWN}`,
      ],
      [
        'delete nodes',
        `list secrets in ${OWN}`,
        'list secrets',
        `create vms.berth.dev in ${OWN}`,
        `get vms.berth.dev in ${OWN}`,
        `create pods/exec in ${OWN}`,
        'update certificatesigningrequests/approval.certificates.k8s.io',
      ],
    ],
  ];

  test.each(table)('%s', async (_who, person, allowed, refused) => {
    const answers = async (list: readonly string[]): Promise<string[]> => {
      const yes: string[] = [];
      for (const what of list) {
        if (await may(person, what)) {
          yes.push(what);
        }
      }
      return yes;
    };
    expect(await answers(allowed)).toEqual(allowed);
    expect(await answers(refused)).toEqual([]);
  });
});

describe('tried', () => {
  const vm = (namespace: string): object => ({
    apiVersion: 'berth.dev/v1alpha1',
    kind: 'VM',
    metadata: { name: 'tried', namespace },
    spec: { image: 'none' },
  });

  test('edit in a namespace allows VMs there and nowhere else, and no change of Nodes', async () => {
    expect(await as(EDITOR, ['create', '-f', '-'], vm(OWN))).toMatchObject({ code: 0 });
    expect((await as(EDITOR, ['create', '-f', '-'], vm(OTHER))).said).toContain('forbidden');
    const status = ['-n', OWN, 'patch', 'vm', 'tried', '--subresource=status', '--type=merge', '-p'];
    expect((await as(EDITOR, [...status, '{"status":{"phase":"Running"}}'])).said).toContain('forbidden');
    expect((await as(EDITOR, ['get', 'nodes'])).said).toContain('forbidden');
    const node = { apiVersion: 'v1', kind: 'Node', metadata: { name: 'any', labels: { tried: 'yes' } } };
    expect((await as(EDITOR, ['apply', '--server-side', '-f', '-'], node)).said).toContain(
      'cannot patch resource "nodes"',
    );
    expect(await as(EDITOR, ['-n', OWN, 'delete', 'vm', 'tried'])).toMatchObject({ code: 0 });
  });

  test('a reader of metrics reads no Pods, and of a host only its metrics', async () => {
    expect((await as(READER, ['get', 'pods', '-A'])).said).toContain('forbidden');
    expect((await as(READER, ['get', '--raw', '/api/v1/nodes/none/proxy/metrics'])).said).toContain(
      'forbidden',
    );
  });

  describe('a host', () => {
    beforeAll(async () => {
      const client = cluster.client();
      for (const name of [HOST, NEIGHBOUR]) {
        await client.create(NODES, { metadata: { name, labels: { 'berth.dev/host': 'true' } } });
      }
      for (const name of ['named', 'other']) {
        await client.create(SECRETS, { metadata: { name, namespace: ELSEWHERE }, stringData: { a: 'b' } });
      }
      for (const nodeName of [HOST, NEIGHBOUR]) {
        await client.create(PODS, {
          metadata: { name: nodeName, namespace: ELSEWHERE },
          spec: {
            nodeName,
            automountServiceAccountToken: false,
            containers: [{ name: 'any', image: 'any' }],
            ...(nodeName === HOST && { volumes: [{ name: 'a', secret: { secretName: 'named' } }] }),
          },
        });
      }
    });

    /** Sends one PATCH. Other commands of kubectl read the object first, which a host may not do either. */
    const patch = (object: Manifest, ...args: string[]) =>
      as(AGENT, ['apply', '--server-side', '--force-conflicts', ...args, '-f', '-'], object);

    test('changes its own Node and no other', async () => {
      const node = (name: string, label: string): Manifest => ({
        apiVersion: 'v1',
        kind: 'Node',
        metadata: { name, labels: { [label]: 'yes' } },
      });
      expect(await patch(node(HOST, 'berth.dev/tried'))).toMatchObject({ code: 0 });
      expect((await patch(node(NEIGHBOUR, 'berth.dev/tried'))).said).toMatch(/not allowed to modify node/);
      expect((await as(AGENT, ['delete', 'node', NEIGHBOUR])).said).toContain('forbidden');
      for (const label of ['namespace', 'host']) {
        const restricted = await patch(node(HOST, `berth.node-restriction.kubernetes.io/${label}`));
        expect(restricted.said).toContain('is not allowed to modify labels');
      }
    });

    test('writes the status of its own Pods only', async () => {
      const tell = (name: string) => {
        const metadata = { name, namespace: ELSEWHERE };
        const object = { apiVersion: 'v1', kind: 'Pod', metadata, status: { message: 'tried' } };
        return patch(object, '--subresource=status');
      };
      expect(await tell(HOST)).toMatchObject({ code: 0 });
      expect((await tell(NEIGHBOUR)).said).toContain('forbidden');
    });

    test('reads the Secrets that its own Pods name, and no others', async () => {
      const read = (name: string) => ['-n', ELSEWHERE, 'get', 'secret', name, '-o', 'name'];
      await waitFor(
        'the authorizer to know the Pod',
        async () => (await as(AGENT, read('named'))).code === 0,
      );
      expect((await as(AGENT, read('other'))).said).toContain('forbidden');
      expect((await as(AGENT, ['-n', ELSEWHERE, 'get', 'secrets'])).said).toContain('forbidden');
    });
  });
});
