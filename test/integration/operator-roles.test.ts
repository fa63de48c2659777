/** RoleBindings that the operator keeps in served namespaces, and the policy that limits the operator to them. */
import { readFileSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { parseAllDocuments, stringify } from 'yaml';
import { EVENTS, ROLE_BINDINGS, type RoleBinding, type Subject } from '../../kube/core.ts';
import { unlessMissing } from '../../kube/errors.ts';
import { type Cluster, type OperatorProcess, startCluster } from '../../hack/cluster/index.ts';
import { AS_OPERATOR } from '../support/admission.ts';
import { CHART, type Manifest } from '../support/chart.ts';
import { setDebugLevel } from '../support/loglevel.ts';
import { readLogLines } from '../support/loglines.ts';
import { faultsIn } from '../support/operatorlog.ts';
import { waitFor } from '../../hack/wait.ts';

const DEFAULT = 'platform-default';
const BEFORE = 'platform-before';
/** A served namespace in which the operator keeps no RoleBindings. */
const OWN = 'platform-own';
const POLICY = join(CHART, 'files', 'policies', 'operator-roles.yaml');
const [DEV, ADMIN] = ['berth-role-dev', 'berth-role-admin'] as const;
const ROLES = { defaultDev: ['oidc:all'], dev: ['oidc:devs'], admin: ['oidc:admins'] };
const LATER = { defaultDev: [], dev: ['oidc:makers'], admin: ['oidc:owners'] };

let cluster: Cluster;
let operator: OperatorProcess;

beforeAll(async () => {
  cluster = await startCluster({ name: `operator-roles-${process.pid}`, hosts: 0 });
  await cluster.createNamespace(BEFORE);
  await createUnmanaged(OWN);
  await allowGroups(ROLES);
  operator = await cluster.startOperator({ config: { roles: ROLES } });
});

afterAll(async () => {
  await cluster?.stop();
});

async function createUnmanaged(name: string): Promise<void> {
  const metadata = { name, labels: { 'berth.dev/role-bindings': 'unmanaged' } };
  const input = JSON.stringify({ apiVersion: 'v1', kind: 'Namespace', metadata });
  await cluster.kubectl(['create', '-f', '-'], { input });
}

/** Applies the policy with the groups of a configuration, as the chart does. Resolves when the API server uses it. */
async function allowGroups(roles: typeof ROLES | typeof LATER): Promise<void> {
  const lists: Record<string, string[]> = {
    defaultDevGroups: roles.defaultDev,
    devGroups: roles.dev,
    adminGroups: roles.admin,
  };
  const documents = parseAllDocuments(await readFile(POLICY, 'utf8')).map((one) => one.toJS() as Manifest);
  const variables = documents[0]?.['spec'].variables as { name: string; expression: string }[];
  for (const variable of variables.filter(({ name }) => name in lists)) {
    variable.expression = JSON.stringify(lists[variable.name]);
  }
  const input = documents.map((one) => stringify(one)).join('\n---\n');
  await cluster.kubectl(['apply', '--server-side', '--force-conflicts', '-f', '-'], { input });
  await waitFor('the policy to allow the group', async () => {
    const { code } = await bindAsOperator(OWN, DEV, ['--group', roles.dev[0] ?? '']);
    return code === 0;
  });
}

/** Tries to create a RoleBinding as the operator. Nothing is stored. */
async function bindAsOperator(namespace: string, name: string, subject: string[], role = name) {
  const binding = ['create', 'rolebinding', name, '-n', namespace, `--clusterrole=${role}`, ...subject];
  return await cluster.kubectl([...binding, '--dry-run=server', ...AS_OPERATOR], { allowFailure: true });
}

async function bindingOf(namespace: string, name: string): Promise<RoleBinding | undefined> {
  return await unlessMissing(cluster.client().get(ROLE_BINDINGS, { namespace, name }));
}

const named = (subjects: readonly Subject[] | undefined) => (subjects ?? []).map(({ name }) => name);

async function untilBound(
  namespace: string,
  name: string,
  subjects: readonly string[],
): Promise<RoleBinding> {
  return await waitFor(`${name} in ${namespace} to have ${subjects.join(', ')}`, async () => {
    const binding = await bindingOf(namespace, name);
    return JSON.stringify(named(binding?.subjects)) === JSON.stringify(subjects) ? binding : undefined;
  });
}

async function may(group: string, verb: string, resource: string, namespace: string): Promise<boolean> {
  const who = ['--as=somebody', `--as-group=${group}`, '--as-group=system:authenticated'];
  const { stdout } = await cluster.kubectl(['auth', 'can-i', verb, resource, '-n', namespace, ...who], {
    allowFailure: true,
  });
  return stdout.trim() === 'yes';
}

describe('every served namespace', () => {
  it('has the RoleBindings of the roles, also if it is older than the operator', async () => {
    await cluster.kubectl(['create', 'namespace', 'platform-after']);
    await cluster.kubectl(['create', 'namespace', 'elsewhere']);
    for (const namespace of [BEFORE, 'platform-after']) {
      await untilBound(namespace, DEV, ['oidc:devs']);
      await untilBound(namespace, ADMIN, ['oidc:admins']);
    }
    await untilBound(DEFAULT, DEV, ['oidc:devs', 'oidc:all']);
    expect(await bindingOf('elsewhere', DEV)).toBeUndefined();
  });

  it('gives the groups the rights of their roles there', async () => {
    await waitFor('the rights', () => may('oidc:all', 'create', 'vms.berth.dev', DEFAULT));
    expect(await may('oidc:all', 'create', 'vms.berth.dev', BEFORE)).toBe(false);
    expect(await may('oidc:devs', 'create', 'vms.berth.dev', BEFORE)).toBe(true);
    expect(await may('oidc:devs', 'create', 'serviceaccounts', BEFORE)).toBe(false);
    expect(await may('oidc:admins', 'create', 'serviceaccounts', BEFORE)).toBe(true);
    expect(await may('oidc:admins', 'create', 'serviceaccounts', 'elsewhere')).toBe(false);
  });
});

describe('people', () => {
  it('add subjects that stay, and cannot remove a group or the RoleBinding for long', async () => {
    await cluster.kubectl(['create', 'namespace', 'platform-people']);
    await untilBound('platform-people', DEV, ['oidc:devs']);
    const added = [{ apiGroup: 'rbac.authorization.k8s.io', kind: 'User', name: 'ann@example.com' }];
    const patch = ['--type=merge', '-p', JSON.stringify({ subjects: added })];
    await cluster.kubectl(['patch', 'rolebinding', DEV, '-n', 'platform-people', ...patch]);
    await untilBound('platform-people', DEV, ['ann@example.com', 'oidc:devs']);
    await cluster.kubectl(['delete', 'rolebinding', ADMIN, '-n', 'platform-people']);
    const again = await untilBound('platform-people', ADMIN, ['oidc:admins']);
    expect(again.roleRef).toMatchObject({ kind: 'ClusterRole', name: ADMIN });
  });

  it('manage the RoleBindings of a namespace that they label', async () => {
    await cluster.kubectl(['label', 'namespace', BEFORE, 'berth.dev/role-bindings=unmanaged']);
    // The operator sees changes of one kind in their order. So a later change that it has handled shows that it knows these.
    await cluster.kubectl(['create', 'namespace', 'platform-later']);
    await untilBound('platform-later', DEV, ['oidc:devs']);
    for (const namespace of [BEFORE, 'platform-later']) {
      await cluster.kubectl(['delete', 'rolebinding', DEV, '-n', namespace]);
    }
    await untilBound('platform-later', DEV, ['oidc:devs']);
    expect(await bindingOf(OWN, DEV)).toBeUndefined();
    expect(await bindingOf(BEFORE, DEV)).toBeUndefined();
    await cluster.kubectl(['label', 'namespace', BEFORE, 'berth.dev/role-bindings-']);
    await untilBound(BEFORE, DEV, ['oidc:devs']);
  });

  it('see by an Event that a RoleBinding binds another role', async () => {
    await createUnmanaged('platform-other');
    const other = ['create', 'rolebinding', DEV, '-n', 'platform-other', '--clusterrole=view', '--user=ann'];
    await cluster.kubectl(other);
    await cluster.kubectl(['label', 'namespace', 'platform-other', 'berth.dev/role-bindings-']);
    const { note } = await waitFor('the Event', async () => {
      const { items } = await cluster.client().list(EVENTS, { namespace: 'platform-other' });
      return items.find(({ reason }) => reason === 'OtherRoleBound');
    });
    expect(note).toContain('berth-role-dev binds ClusterRole view');
    expect(named((await bindingOf('platform-other', DEV))?.subjects)).toEqual(['ann']);
  });
});

describe("the operator's token", () => {
  it.for([
    ['in kube-system', 'kube-system', ADMIN, ['--group=oidc:admins'], ADMIN, 'does not serve'],
    ['for a user', BEFORE, DEV, ['--user=ann'], DEV, 'only to the groups of its configuration'],
    ['for an account', BEFORE, DEV, ['--serviceaccount=a:b'], DEV, 'only to the groups of its configuration'],
    ['for the group of another role', BEFORE, ADMIN, ['--group=oidc:devs'], ADMIN, 'only to the groups'],
    ['for the group of the default namespace', BEFORE, DEV, ['--group=oidc:all'], DEV, 'only to the groups'],
    ['under another name', BEFORE, 'other', ['--group=oidc:devs'], DEV, 'each under its name'],
    ['of another role', BEFORE, ADMIN, ['--group=oidc:admins'], DEV, 'each under its name'],
    ['of a role of Kubernetes', BEFORE, DEV, ['--group=oidc:devs'], 'edit', 'forbidden'],
  ] as const)('cannot bind a role %s', async ([, namespace, name, subject, role, says]) => {
    const { code, stderr } = await bindAsOperator(namespace, name, [...subject], role);
    expect(stderr).toContain(says);
    expect(code).not.toBe(0);
  });
});

describe('the credentials of the image storage', () => {
  const BINDING = 'berth-image-storage-writers';

  /** Applies the subjects, because `kubectl patch` would also need the right to get the RoleBinding. */
  async function bindWriters(subjects: object[], namespace = 'berth-system', name = BINDING) {
    const apiVersion = 'rbac.authorization.k8s.io/v1';
    const roleRef = { apiGroup: 'rbac.authorization.k8s.io', kind: 'Role', name: BINDING };
    const binding = { apiVersion, kind: 'RoleBinding', metadata: { name, namespace }, roleRef, subjects };
    const apply = ['apply', '--server-side', '--force-conflicts', '--dry-run=server', '-f', '-'];
    const options = { input: JSON.stringify(binding), allowFailure: true };
    return await cluster.kubectl([...apply, ...AS_OPERATOR], options);
  }

  const user = (name: string) => ({ apiGroup: 'rbac.authorization.k8s.io', kind: 'User', name });

  it('can be given to hosts by the operator, which cannot list Secrets itself', async () => {
    expect(await bindWriters([user('system:node:one')])).toMatchObject({ code: 0 });
    const question = ['auth', 'can-i', 'list', 'secrets', '-n', 'berth-system'];
    const { stdout } = await cluster.kubectl([...question, ...AS_OPERATOR], { allowFailure: true });
    expect(stdout).toMatch(/^no/);
  });

  it.for([
    ['a user', user('ann')],
    ['a group of hosts', { ...user('system:nodes'), kind: 'Group' }],
    ['an account', { kind: 'ServiceAccount', name: 'berth-operator', namespace: 'berth-system' }],
  ] as const)('cannot be given to %s by it', async ([, subject]) => {
    const { code, stderr } = await bindWriters([subject]);
    expect(stderr).toContain('only to the groups of its configuration');
    expect(code).not.toBe(0);
  });

  it('are for no host without a task', async () => {
    const { subjects = [] } = (await bindingOf('berth-system', BINDING)) ?? {};
    expect(subjects).toEqual([]);
    const as = ['--as=system:node:one', '--as-group=system:nodes', '--as-group=system:authenticated'];
    const question = ['auth', 'can-i', 'get', 'secrets/berth-image-storage', '-n', 'berth-system', ...as];
    const { stdout } = await cluster.kubectl(question, { allowFailure: true });
    expect(stdout).toMatch(/^no/);
  });
});

it('other groups in the configuration replace the earlier groups, and nobody else', async () => {
  expect(faultsIn(operator.logFile)).toEqual([]);
  await operator.stop();
  await allowGroups(LATER);
  operator = await cluster.startOperator({ config: { roles: LATER }, name: 'later' });
  await untilBound('platform-people', DEV, ['ann@example.com', 'oidc:makers']);
  await untilBound(DEFAULT, DEV, ['oidc:makers']);
  await untilBound(DEFAULT, ADMIN, ['oidc:owners']);
  await cluster.kubectl(['delete', 'namespace', 'platform-people', '--wait=false']);
  await untilBound('platform-after', DEV, ['oidc:makers']);
  expect(faultsIn(operator.logFile)).toEqual([]);
});

it('the level of the log follows the configuration file while the operator runs', async () => {
  await setDebugLevel(join(cluster.directory, 'later.yaml'), operator.logFile);
  const levels = readLogLines(readFileSync(operator.logFile, 'utf8')).map(({ level }) => level);
  expect(levels).toContain('info');
});
