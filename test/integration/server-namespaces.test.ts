/** Namespaces, service accounts, their tokens and members over the HTTP API, and names that clients have fixed. */
import { randomBytes } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { NAMESPACES, NODES, ROLE_BINDINGS } from '../../kube/core.ts';
import { unlessMissing } from '../../kube/errors.ts';
import type { Cluster } from '../../hack/cluster/index.ts';
import type { ServerProcess } from '../../hack/cluster/program.ts';
import { waitFor } from '../../hack/wait.ts';
import { VMS } from '../../api/v1alpha1/resources.ts';
import { sharedCluster } from '../support/cluster.ts';
import { accountToken } from '../support/members.ts';
import { type HTTPAnswer, HTTPClient } from '../wires/httpapi.ts';

const ID = randomBytes(4).toString('hex');
/** Namespace of the accounts of this test, in which `admin` and `member` have their roles. */
const HOME = `platform-home-${ID}`;
const MADE = `platform-made-${ID}`;
const PLAIN = `platform-plain-${ID}`;
const GONE = `platform-gone-${ID}`;
/** Namespace that Berth does not serve. */
const OTHER = `other-${ID}`;
const FORMER_HOME = `former-home-${ID}`;
const HOST = `host-${ID}`;
const DEFAULT = 'platform-default';
const DEV = 'berth-role-dev';
const SUBJECTS = `${HOME}/rolebindings/${DEV}/subjects`;

let cluster: Cluster;
let server: ServerProcess;
let api: HTTPClient;
/** May create and delete namespaces, and sees into none. */
let owner: string;
let admin: string;
let member: string;
let stranger: string;

beforeAll(async () => {
  cluster = await sharedCluster();
  await cluster.createNamespace(HOME);
  const aliases = { namespacePrefix: 'former-', devRoleBinding: 'former-dev' };
  server = await cluster.startServer({ name: `server-${HOME}`, config: { http: { aliases } } });
  api = new HTTPClient(server);
  const account = (name: string) => ({ namespace: HOME, name });
  const everywhere = { role: 'berth-role-namespace-admin', in: 'cluster' } as const;
  owner = await accountToken(cluster, account('owner'), everywhere);
  admin = await accountToken(cluster, account('admin'), { role: 'berth-role-admin' });
  member = await accountToken(cluster, account('member'), { role: DEV });
  stranger = await accountToken(cluster, account('stranger'));
  await waitFor('the rights of the roles', async () => {
    const answers = [await get('', owner), await get(SUBJECTS, admin), await get(`${HOME}/vms`, member)];
    return answers.every(({ status }) => status === 200);
  });
});

afterAll(async () => {
  await api?.close();
  await server?.process.stop();
  const bindings = [`${HOME}-owner`, `${HOME}-pods`];
  await cluster?.kubectl(['delete', 'clusterrolebinding', ...bindings, '--ignore-not-found']);
  await cluster?.kubectl(['delete', 'node', HOST, '--ignore-not-found']);
  await cluster?.kubectl([
    'delete',
    'namespace',
    HOME,
    MADE,
    PLAIN,
    GONE,
    OTHER,
    '--wait=false',
    '--ignore-not-found',
  ]);
  await cluster?.disconnect();
});

async function call(
  method: 'GET' | 'POST' | 'DELETE',
  path: string,
  token: string,
  body?: unknown,
): Promise<HTTPAnswer> {
  return await api.call(`/api/v1/namespaces${path === '' ? '' : `/${path}`}`, { method, token, body });
}

const get = async (path: string, token: string) => await call('GET', path, token);
const namesIn = ({ body }: HTTPAnswer) => (body.items as { name: string }[]).map(({ name }) => name);

async function subjects(): Promise<string[]> {
  return namesIn(await get(SUBJECTS, admin)).toSorted();
}

describe('namespaces', () => {
  it('are listed for their members, and for nobody else', async () => {
    expect(namesIn(await get('', owner))).toEqual(expect.arrayContaining([DEFAULT, HOME]));
    expect(namesIn(await get('', owner))).not.toContain('kube-system');
    expect((await get('', member)).body).toEqual({ items: [{ name: HOME, customPods: false }] });
    expect((await get('', stranger)).body).toEqual({ items: [] });
    expect((await get('', 'invented')).status).toBe(401);
    expect((await get(HOME, member)).body).toEqual({ name: HOME, customPods: false });
    for (const [name, token, code] of [
      [HOME, stranger, 403],
      [DEFAULT, member, 403],
      [`platform-none-${ID}`, owner, 404],
      ['kube-system', owner, 404],
    ] as const) {
      const { status, body } = await get(name, token);
      expect([name, status, body.code]).toEqual([name, code, code]);
    }
  });

  it('are created with the prefix, and with Pods of users only by a role of its own', async () => {
    const create = async () => await call('POST', '', owner, { name: MADE, enableCustomPods: true });
    const { status, body } = await create();
    expect([status, body.message]).toEqual([
      403,
      expect.stringContaining('only users with the role berth-role-custom-pods'),
    ]);
    const role = ['--clusterrole=berth-role-custom-pods', `--serviceaccount=${HOME}:owner`];
    await cluster.kubectl(['create', 'clusterrolebinding', `${HOME}-pods`, ...role]);
    const made = await waitFor('the role', async () => {
      const answer = await create();
      return answer.status === 403 ? undefined : answer;
    });
    expect(made.body).toMatchObject({ kind: 'Status', status: 'Success' });
    expect((await get(MADE, owner)).body).toEqual({ name: MADE, customPods: true });
    const { metadata } = await cluster.client().get(NAMESPACES, { name: MADE });
    expect(metadata.labels).toMatchObject({
      'berth.dev/custom-pods': 'true',
      'pod-security.kubernetes.io/enforce': 'privileged',
    });
    expect((await call('POST', '', owner, { name: PLAIN })).status).toBe(200);
    expect((await get(PLAIN, owner)).body).toEqual({ name: PLAIN, customPods: false });
    for (const [name, token, code] of [
      [MADE, owner, 409],
      [`else-${ID}`, owner, 422],
      ['platform-', owner, 422],
      [`platform-other-${ID}`, admin, 403],
    ] as const) {
      expect([name, (await call('POST', '', token, { name })).status]).toEqual([name, code]);
    }
  });

  it('are deleted without hosts and VMs, and stay with them', async () => {
    const client = cluster.client();
    expect((await call('POST', '', owner, { name: GONE })).status).toBe(200);
    await client.create(VMS, { metadata: { name: 'one', namespace: GONE }, spec: { image: 'image' } });
    const labels = {
      'berth.node-restriction.kubernetes.io/host': 'true',
      'berth.node-restriction.kubernetes.io/namespace': GONE,
    };
    await client.create(NODES, { metadata: { name: HOST, labels } });
    const refused = await call('DELETE', GONE, owner);
    expect([refused.status, refused.body.message]).toEqual([
      409,
      // The caller has no right to list VMs, so the message names none.
      `Namespace ${GONE} still has hosts (${HOST}), and VMs`,
    ]);
    await client.delete(NODES, { name: HOST });
    expect((await call('DELETE', GONE, owner)).body.message).toBe(`Namespace ${GONE} still has VMs`);
    await client.delete(VMS, { name: 'one', namespace: GONE });
    await client.create(NODES, { metadata: { name: HOST, labels } });
    expect((await call('DELETE', GONE, owner)).body.message).toBe(
      `Namespace ${GONE} still has hosts (${HOST})`,
    );
    await client.delete(NODES, { name: HOST });
    const denied = await call('DELETE', GONE, admin);
    expect([denied.status, denied.body.message]).toEqual([403, expect.stringContaining('cannot delete')]);
    expect((await call('DELETE', DEFAULT, owner)).status).toBe(409);
    expect((await get(GONE, owner)).status).toBe(200);
    expect((await call('DELETE', GONE, owner)).status).toBe(200);
    const left = await unlessMissing(client.get(NAMESPACES, { name: GONE }));
    expect(left === undefined || left.metadata.deletionTimestamp !== undefined).toBe(true);
  });

  it('get the label for keyless tolerations only from users who may update them', async () => {
    const [name, label] = [`${MADE}-lenient`, 'berth.dev/keyless-tolerations'];
    const labelled = { apiVersion: 'v1', kind: 'Namespace', metadata: { name, labels: { [label]: 'true' } } };
    const creation = async (...as: string[]) =>
      await cluster.kubectl(['create', '--dry-run=server', '-f', '-', ...as], {
        allowFailure: true,
        input: JSON.stringify(labelled),
      });
    const { code, stderr } = await creation(`--as=system:serviceaccount:${HOME}:owner`);
    expect([code, stderr]).toEqual([1, expect.stringContaining(`may set the label ${label}`)]);
    expect(await creation()).toMatchObject({ code: 0 });
  });

  it('are created and deleted by the role only if Berth serves them, also without the HTTP API', async () => {
    const client = cluster.client();
    const creation = async (name: string, ...as: string[]) =>
      await cluster.kubectl(['create', 'namespace', name, '--dry-run=server', ...as], { allowFailure: true });
    const owning = `--as=system:serviceaccount:${HOME}:owner`;
    const strange = await creation(OTHER, owning);
    expect([strange.code, strange.stderr]).toEqual([
      1,
      expect.stringContaining('may create and delete only namespaces whose names begin with platform-'),
    ]);
    expect(await creation(`${MADE}-more`, owning)).toMatchObject({ code: 0 });
    await client.create(NAMESPACES, { metadata: { name: OTHER } });
    const deletion = async (name: string, ...as: string[]) =>
      await cluster.kubectl(['delete', 'namespace', name, '--dry-run=server', ...as], { allowFailure: true });
    const withoutCheck = await deletion(HOME, owning);
    // Only the HTTP API looks for VMs before it deletes a namespace.
    expect([withoutCheck.code, withoutCheck.stderr]).toEqual([
      1,
      expect.stringContaining('cannot delete resource "namespaces"'),
    ]);
    const httpAPI = '--as=system:serviceaccount:berth-system:berth-server';
    for (const name of [OTHER, DEFAULT]) {
      const { code, stderr } = await deletion(name, httpAPI);
      expect([name, code, stderr]).toEqual([
        name,
        1,
        expect.stringContaining('may create and delete only namespaces whose names begin with platform-'),
      ]);
      expect(await deletion(name)).toMatchObject({ code: 0 });
    }
    expect(await deletion(HOME, httpAPI)).toMatchObject({ code: 0 });
    // The controller of namespaces has no role of Berth, and no right to update namespaces.
    const controller = '--as=system:serviceaccount:kube-system:namespace-controller';
    expect(await deletion(OTHER, controller)).toMatchObject({ code: 0 });
  });
});

describe('service accounts', () => {
  it('become members of their namespace, and their tokens end with them', async () => {
    expect((await call('POST', `${HOME}/serviceaccounts/ci.runner`, admin)).status).toBe(200);
    expect((await get(`${HOME}/serviceaccounts`, admin)).body.items).toContainEqual({
      name: 'ci.runner',
      namespace: HOME,
    });
    expect(await subjects()).toEqual(['ci.runner']);
    expect((await call('POST', `${HOME}/serviceaccounts/ci.runner`, admin)).status).toBe(409);
    const answer = await call('POST', `${HOME}/serviceaccounts/ci.runner/token`, admin, { duration: '1h' });
    expect([answer.status, answer.headers['cache-control']]).toEqual([200, 'no-store']);
    const { token } = answer.body as { token: string };
    await waitFor('the rights of the account', async () => (await get(`${HOME}/vms`, token)).status === 200);
    // The API server remembers for some seconds that a token is good. It has not seen this one.
    const { token: unused } = (await call('POST', `${HOME}/serviceaccounts/ci.runner/token`, admin)).body;
    expect((await call('DELETE', `${HOME}/serviceaccounts/ci.runner`, admin)).status).toBe(200);
    expect(await subjects()).toEqual([]);
    await waitFor('the tokens to end', async () => (await get(`${HOME}/vms`, unused)).status === 401);
    const left = { serviceaccounts: [{ namespace: HOME, name: 'ci.runner' }] };
    expect((await call('POST', `${SUBJECTS}/add`, admin, left)).status).toBe(200);
    expect((await call('DELETE', `${HOME}/serviceaccounts/ci.runner`, admin)).status).toBe(404);
    expect(await subjects()).toEqual([]);
  });

  it('get tokens with the life that the request gives, as long as the API server allows', async () => {
    const path = `${HOME}/serviceaccounts/member/token`;
    for (const [body, seconds] of [
      [undefined, 31_536_000],
      [{ expirationSeconds: 600 }, 600],
      [{ noExpiration: true }, 2 ** 32],
    ] as const) {
      const { token, expirationTimestamp } = (await call('POST', path, admin, body)).body;
      const given = (Date.parse(expirationTimestamp) - Date.now()) / 1000;
      expect([body, Math.abs(given - seconds) < 60]).toEqual([body, true]);
      expect((await get(`${HOME}/vms`, token)).status).toBe(200);
    }
    for (const [name, body, token, code] of [
      ['member', { duration: '1m' }, admin, 422],
      ['member', { duration: '1h', noExpiration: true }, admin, 422],
      ['none', {}, admin, 404],
      ['member%2Ftoken', {}, admin, 404],
      ['admin', {}, member, 403],
    ] as const) {
      const { status } = await call('POST', `${HOME}/serviceaccounts/${name}/token`, token, body);
      expect([name, body, status]).toEqual([name, body, code]);
    }
  });

  it('are not created without the role', async () => {
    const rules = [{ apiGroups: [''], resources: ['serviceaccounts'], verbs: ['create', 'delete'] }];
    const manifest = {
      apiVersion: 'rbac.authorization.k8s.io/v1',
      kind: 'Role',
      metadata: { name: 'accounts', namespace: HOME },
      rules,
    };
    await cluster.kubectl(['create', '-f', '-'], { input: JSON.stringify(manifest) });
    const binding = ['--role=accounts', `--serviceaccount=${HOME}:stranger`];
    await cluster.kubectl(['-n', HOME, 'create', 'rolebinding', 'accounts', ...binding]);
    const { message } = await waitFor('the right to create accounts', async () => {
      const { body } = await call('POST', `${HOME}/serviceaccounts/half`, stranger);
      return body.message.includes('rolebindings') ? (body as { message: string }) : undefined;
    });
    expect(message).toContain('cannot get resource "rolebindings"');
    expect(namesIn(await get(`${HOME}/serviceaccounts`, admin))).not.toContain('half');
  });
});

describe('members', () => {
  it('are added and removed, beside others who change the RoleBinding', async () => {
    const users = Array.from({ length: 6 }, (_one, index) => `user-${index}@example.com`);
    const added = await Promise.all(
      users.map((user) => call('POST', `${SUBJECTS}/add`, admin, { users: [user, 'all@example.com'] })),
    );
    expect(added.map(({ status }) => status)).toEqual(users.map(() => 200));
    expect(await subjects()).toEqual(['all@example.com', ...users]);
    const ci = { name: 'ci', namespace: DEFAULT };
    expect((await call('POST', `${SUBJECTS}/add`, admin, { serviceaccounts: [ci] })).status).toBe(200);
    expect((await get(SUBJECTS, admin)).body.items).toContainEqual({ kind: 'ServiceAccount', ...ci });
    const gone = [
      ...users.map((user) => ({ users: [user] })),
      { users: ['absent@example.com'], serviceaccounts: [ci] },
    ];
    const removed = await Promise.all(gone.map((one) => call('DELETE', `${SUBJECTS}/remove`, admin, one)));
    expect(removed.map(({ status }) => status)).toEqual(gone.map(() => 200));
    expect(await subjects()).toEqual(['all@example.com']);
  });

  it('are named by administrators only, and only for the role dev', async () => {
    const users = ['mallory@example.com'];
    expect((await call('POST', `${SUBJECTS}/add`, member, { users })).status).toBe(403);
    const other = SUBJECTS.replace(DEV, 'berth-role-admin');
    expect((await call('POST', `${other}/add`, admin, { users })).status).toBe(404);
    const client = cluster.client();
    await client.delete(ROLE_BINDINGS, { namespace: HOME, name: DEV });
    const binding = [DEV, '--clusterrole=cluster-admin', '--user=ann'];
    await cluster.kubectl(['-n', HOME, 'create', 'rolebinding', ...binding]);
    const { status, body } = await call('POST', `${SUBJECTS}/add`, admin, { users });
    expect([status, body.message]).toEqual([409, expect.stringContaining('cluster-admin')]);
    expect(await subjects()).toEqual(['ann']);
    await client.delete(ROLE_BINDINGS, { namespace: HOME, name: DEV });
  });
});

it('names that are fixed in clients work in paths and bodies, and in the answers to them', async () => {
  expect((await get(FORMER_HOME, member)).body).toEqual({ name: FORMER_HOME, customPods: false });
  const path = `${FORMER_HOME}/rolebindings/former-dev/subjects`;
  const account = { name: 'ci', namespace: FORMER_HOME };
  expect((await call('POST', `${path}/add`, admin, { serviceaccounts: [account] })).status).toBe(200);
  expect((await get(path, admin)).body.items).toEqual([{ kind: 'ServiceAccount', ...account }]);
  expect((await get(SUBJECTS, admin)).body.items).toMatchObject([{ namespace: HOME }]);
  expect((await get('former-default', member)).status).toBe(403);
});
