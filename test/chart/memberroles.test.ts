/** Roles of people: each role has its rights and no other, as a real API server answers. The most important rights are also tried. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { PODS, SECRETS } from '../../kube/core.ts';
import type { Cluster } from '../../hack/cluster/index.ts';
import { type Manifest, manifests } from '../support/chart.ts';
import { sharedCluster } from '../support/cluster.ts';
import { type Person, rightsOf } from '../support/rights.ts';
import { waitFor } from '../../hack/wait.ts';

const OWN = 'platform-roles-own';
const OTHER = 'platform-roles-other';
/** A namespace that Berth does not serve, so that admission lets the test create a Pod. */
const ELSEWHERE = 'roles-elsewhere';
const RBAC = 'rbac.authorization.k8s.io';

let cluster: Cluster;
const { apply, may, as } = rightsOf(() => cluster);

const person = (name: string): Person => ({ user: `roles-${name}`, groups: ['system:authenticated'] });
const PEOPLE = {
  dev: person('dev'),
  admin: person('admin'),
  'namespace-admin': person('namespace-admin'),
  'custom-pods': person('custom-pods'),
  viewer: person('viewer'),
  stranger: person('stranger'),
};

beforeAll(async () => {
  cluster = await sharedCluster();
  await cluster.createNamespace(OWN);
  await cluster.createNamespace(OTHER);
  await cluster.createNamespace(ELSEWHERE);
  const roles = (await manifests()).filter(({ metadata }) => metadata.name.startsWith('berth-role-'));
  await apply(roles.filter(({ kind }) => kind === 'ClusterRole'));
  await apply([
    binding('RoleBinding', 'dev'),
    binding('RoleBinding', 'dev', ELSEWHERE),
    binding('RoleBinding', 'admin'),
    binding('ClusterRoleBinding', 'namespace-admin'),
    binding('ClusterRoleBinding', 'custom-pods'),
    binding('ClusterRoleBinding', 'viewer'),
  ]);
  await waitFor('the rights to be known', async () => {
    const known = [
      may(PEOPLE.dev, `get vms.berth.dev in ${OWN}`),
      may(PEOPLE.dev, `create pods/exec in ${ELSEWHERE}`),
      may(PEOPLE.admin, `create configmaps in ${OWN}`),
      may(PEOPLE['namespace-admin'], 'update servers/power.berth.dev'),
      may(PEOPLE['custom-pods'], 'create namespaces/custompods.berth.dev'),
      may(PEOPLE.viewer, 'list vms.berth.dev'),
    ];
    return (await Promise.all(known)).every(Boolean);
  });
});

afterAll(async () => {
  await cluster.kubectl(['delete', 'namespace', OWN, OTHER, ELSEWHERE, '--wait=false']);
  const names = ['roles-namespace-admin', 'roles-custom-pods', 'roles-viewer'];
  await cluster.kubectl(['delete', 'clusterrolebinding', ...names, '--ignore-not-found']);
});

function binding(
  kind: 'RoleBinding' | 'ClusterRoleBinding',
  role: keyof typeof PEOPLE,
  namespace = OWN,
): Manifest {
  return {
    apiVersion: `${RBAC}/v1`,
    kind,
    metadata: { name: `roles-${role}`, ...(kind === 'RoleBinding' && { namespace }) },
    roleRef: { apiGroup: RBAC, kind: 'ClusterRole', name: `berth-role-${role}` },
    subjects: [{ apiGroup: RBAC, kind: 'User', name: PEOPLE[role].user }],
  };
}

const READ = ['get', 'list', 'watch'];
const WRITE = ['create', 'update', 'patch', 'delete'];
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

/** Returns every right to the resources with the verbs. `where` is ` in NAMESPACE`, ` named NAME`, both or empty. */
function rights(verbs: readonly string[], resources: readonly string[], where = ` in ${OWN}`): string[] {
  return resources.flatMap((resource) => verbs.map((verb) => `${verb} ${resource}${where}`));
}

const DEV = [
  ...rights(
    [...READ, ...WRITE, 'deletecollection'],
    KINDS.map((kind) => `${kind}.berth.dev`),
  ),
  ...rights(READ, ['pods', 'events', 'events.events.k8s.io']),
  ...rights(['get'], ['pods/log']),
  ...rights(['create', 'get'], ['pods/attach', 'pods/exec', 'pods/portforward']),
  ...rights(['list'], ['hosts.berth.dev']),
  ...rights(READ, ['configmaps'], ` in ${OWN} named berth-registries`),
];

/** Rights of each role. Every right of one role, and of `nobody`, is asked for all of them. */
const RIGHTS: Record<keyof typeof PEOPLE, readonly string[]> = {
  dev: DEV,
  admin: [
    ...DEV,
    ...rights(['update'], ['hosts/tags.berth.dev']),
    ...rights([...READ, ...WRITE], ['serviceaccounts', `rolebindings.${RBAC}`]),
    ...rights(['create'], ['serviceaccounts/token', 'secrets', 'configmaps']),
    ...rights(['delete'], ['secrets']),
    ...rights(['bind'], [`clusterroles.${RBAC}`], ` in ${OWN} named berth-role-dev`),
    ...rights(['create', 'update', 'patch'], ['configmaps'], ` in ${OWN} named berth-registries`),
  ],
  'namespace-admin': [
    ...rights(['get', 'list', 'create'], ['namespaces'], ''),
    ...rights(['delete'], ['namespaces.berth.dev'], ''),
    ...rights(['update'], ['hosts/namespace.berth.dev', 'certificates.berth.dev'], ''),
    ...rights([...READ, ...WRITE], ['servers.berth.dev'], ''),
    ...rights(['update'], ['servers/power.berth.dev'], ''),
  ],
  'custom-pods': rights(['create'], ['namespaces/custompods.berth.dev'], ''),
  viewer: [
    ...rights(
      READ,
      KINDS.map((kind) => `${kind}.berth.dev`),
      '',
    ),
    ...rights(
      READ,
      KINDS.map((kind) => `${kind}.berth.dev`),
    ),
  ],
  stranger: [],
};

const NOBODYS = [
  ...rights([...READ, 'update', 'patch'], ['secrets']),
  ...rights([...READ, ...WRITE], ['secrets', 'configmaps', 'pods', `rolebindings.${RBAC}`], ` in ${OTHER}`),
  ...rights(WRITE, ['pods', 'pods/ephemeralcontainers', 'pods/resize', 'jobs.batch', 'vms/status.berth.dev']),
  ...rights(['get'], ['pods/proxy', 'configmaps', 'services', `roles.${RBAC}`]),
  ...rights(['create', 'update'], [`roles.${RBAC}`, 'resourcequotas', 'events']),
  ...rights(['delete'], ['configmaps'], ` in ${OWN} named berth-registries`),
  ...rights(['bind', 'escalate'], [`clusterroles.${RBAC}`], ` in ${OWN} named berth-role-admin`),
  ...rights(['impersonate'], ['users', 'serviceaccounts']),
  // Only the HTTP API deletes namespaces, because it looks for VMs first.
  ...rights(['update', 'patch', 'delete'], ['namespaces', 'nodes'], ''),
  ...rights(READ, ['nodes', 'secrets', 'pods'], ''),
  ...rights(WRITE, ['imagecacheentries.berth.dev', `clusterrolebindings.${RBAC}`], ''),
  ...rights(['update'], ['hosts/imagecache.berth.dev']),
];

test.each(Object.keys(PEOPLE) as (keyof typeof PEOPLE)[])('%s has its rights and no other', async (role) => {
  const all = [...new Set([...Object.values(RIGHTS).flat(), ...NOBODYS])];
  const answers = await Promise.all(all.map((what) => may(PEOPLE[role], what)));
  const own = new Set(RIGHTS[role]);
  expect(all.filter((_what, index) => answers[index])).toEqual(all.filter((what) => own.has(what)));
});

test('dev runs commands with kubectl, which tries WebSocket first and needs another right for it', async () => {
  await cluster.client().create(PODS, {
    metadata: { name: 'waiting', namespace: ELSEWHERE },
    // No node has this label, so the Pod stays Pending in every cluster.
    spec: { nodeSelector: { 'example.com/nowhere': '' }, containers: [{ name: 'main', image: 'any' }] },
  });
  const exec = ['-n', ELSEWHERE, 'exec', 'waiting', '--', 'true'];
  expect((await as(PEOPLE.dev, exec)).said).toContain('does not have a host assigned');
  expect((await as(PEOPLE.viewer, exec)).said).toContain('forbidden');
});

describe('an admin', () => {
  const granting = (role: string): Manifest => ({
    ...binding('RoleBinding', 'dev'),
    metadata: { name: `given-${role}`, namespace: OWN },
    roleRef: { apiGroup: RBAC, kind: 'ClusterRole', name: role },
    subjects: [{ apiGroup: RBAC, kind: 'User', name: 'somebody' }],
  });

  test('gives the role dev to others, and no role with more rights', async () => {
    expect(await as(PEOPLE.admin, ['create', '-f', '-'], granting('berth-role-dev'))).toMatchObject({
      code: 0,
    });
    for (const role of ['edit', 'cluster-admin', 'berth-role-namespace-admin']) {
      const { said } = await as(PEOPLE.admin, ['create', '-f', '-'], granting(role));
      expect(said).toContain('attempting to grant RBAC permissions not currently held');
    }
    expect((await as(PEOPLE.dev, ['create', '-f', '-'], granting('berth-role-dev'))).said).toContain(
      'forbidden',
    );
  });

  test('makes an account with a token, and reads no Secret', async () => {
    const inOwn = ['-n', OWN];
    expect(await as(PEOPLE.admin, [...inOwn, 'create', 'serviceaccount', 'ci'])).toMatchObject({ code: 0 });
    expect((await as(PEOPLE.admin, [...inOwn, 'create', 'token', 'ci'])).said).toMatch(/^ey/);
    await cluster.client().create(SECRETS, {
      metadata: { name: 'kept', namespace: OWN },
      stringData: { password: 'x' },
    });
    for (const who of [PEOPLE.dev, PEOPLE.admin]) {
      expect((await as(who, [...inOwn, 'get', 'secret', 'kept'])).said).toContain('forbidden');
    }
    expect(await as(PEOPLE.admin, [...inOwn, 'delete', 'secret', 'kept'])).toMatchObject({ code: 0 });
  });
});
