/** The power API as a client sees it that knows only its promises: list, status and actions, as JSON and text. */
import { randomBytes } from 'node:crypto';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, expect, it } from 'vitest';
import { SYSTEM_NAMESPACE } from '../../api/v1alpha1/names.ts';
import { SERVERS } from '../../api/v1alpha1/resources.ts';
import type { Cluster } from '../../hack/cluster/index.ts';
import type { ServerProcess } from '../../hack/cluster/program.ts';
import { waitFor } from '../../hack/wait.ts';
import { KubeClient } from '../../kube/client.ts';
import { LEASES } from '../../kube/core.ts';
import { loadConnection } from '../../kube/credentials.ts';
import { createMetrics } from '../../kube/metrics.ts';
import { Transport } from '../../kube/transport.ts';
import { sharedCluster } from '../support/cluster.ts';
import { accountToken } from '../support/members.ts';
import { BerthCommand } from '../wires/berth.ts';
import type { HTTPAnswer, HTTPCall, HTTPClient } from '../wires/httpapi.ts';
import { basic, PowerWorld } from '../worlds/power.ts';

const id = randomBytes(4).toString('hex');
const SYSTEM = `berth-power-${id}`;
const namespace = `platform-power-${id}`;
const [ONE, TWO] = [`one-${id}`, `two-${id}`];
const LIST = '/core/api/servers';
const ANN = basic('ann', 'correct horse');
/** Addresses of this run. Other tests have Servers at the same time. */
const net = `2001:db8:f${id.slice(0, 3)}:e${id.slice(3, 6)}`;

let cluster: Cluster;
let world: PowerWorld;
let replicas: [ServerProcess, ServerProcess];
let api: HTTPClient;
let other: HTTPClient;
const tokens: Record<string, string> = {};

beforeAll(async () => {
  cluster = await sharedCluster();
  await cluster.createNamespace(namespace);
  world = await PowerWorld.create(cluster, SYSTEM, { ann: 'correct horse', bob: 'battery staple' });
  await world.createServer(ONE, {
    displayName: 'Rack 1, unit 7',
    addresses: [`${net}::7`, `198.51.100.${id.length}`],
    type: 'Mac mini M4',
    location: 'Dublin',
    status: 'In use',
    creationDate: '2026-03-01T09:00:00Z',
    nodeName: `host-${id}`,
  });
  await world.createServer(TWO, { addresses: [`${net}::8`, `${net}::7`] });
  replicas = [await world.startReplica(), await world.startReplica()];
  [api, other] = [world.client(replicas[0]), world.client(replicas[1])];
  for (const [name, role] of [
    ['user', 'berth-power-user'],
    ['reader', 'berth-view'],
  ] as const) {
    tokens[name] = await accountToken(cluster, { namespace, name }, { role, in: 'cluster' });
  }
  tokens['stranger'] = await accountToken(cluster, { namespace, name: 'stranger' });
  await waitFor(
    'the rights of the user',
    async () => (await api.call(LIST, { token: tokens['user'] })).status === 200,
  );
});

afterAll(async () => {
  await world?.end();
  await cluster?.kubectl(['delete', 'namespace', namespace, '--wait=false']);
  await cluster?.kubectl(['delete', 'clusterrolebinding', `${namespace}-user`, `${namespace}-reader`]);
  await cluster?.disconnect();
});

beforeEach(async () => {
  world.standIn.answer = () => ({});
  world.standIn.taken.splice(0);
  // The power changes twice, so that no replica still has the request of the test before.
  const last = { request: null, lastAction: null };
  for (const power of ['Rebooting', 'Off']) {
    await cluster
      .client()
      .mergePatch(SERVERS, { name: ONE }, { status: { ...last, power } }, { subresource: 'status' });
    await waitFor(`both replicas to see the power ${power}`, async () => {
      const seen = await Promise.all(
        [api, other].map((client) => client.call(`${LIST}/${ONE}`, { headers: ANN })),
      );
      return seen.every(({ body }) => body.power === power);
    });
  }
});

async function act(action: string, call: HTTPCall = { headers: ANN }, client = api): Promise<HTTPAnswer> {
  return await client.call(`${LIST}/${ONE}/${action}`, call);
}

/** A text on one line, which is no JSON. */
function expectLine({ text, headers }: HTTPAnswer, pattern: RegExp): void {
  expect(text).toMatch(pattern);
  expect(text).toMatch(/^[^\r\n]+$/);
  expect(headers['content-type']).toBe('text/plain; charset=utf-8');
  expect(headers['cache-control']).toBe('no-store');
}

it('lists each server once for each address, for a user with a password and for one with a token', async () => {
  const facts = {
    id: ONE,
    name: 'Rack 1, unit 7',
    type: 'Mac mini M4',
    location: 'Dublin',
    status: 'In use',
    creation_date: '2026-03-01T09:00:00Z',
    cancel_date: null,
  };
  const empty = { type: null, location: null, status: null, creation_date: null, cancel_date: null };
  for (const call of [{ headers: ANN }, { token: tokens['user'] }, { token: tokens['reader'] }]) {
    const { status, headers, body } = await api.call(LIST, call);
    expect([status, headers['content-type'], headers['cache-control']]).toEqual([
      200,
      'application/json',
      'no-store',
    ]);
    const own = (body as { id: string }[]).filter((record) => record.id.endsWith(id));
    // The address that both Servers have belongs to the one that was created first.
    expect(own).toEqual([
      { ...facts, ip: `${net}::7` },
      { ...facts, ip: `198.51.100.${id.length}` },
      { id: TWO, name: TWO, ip: `${net}::8`, ...empty },
    ]);
  }
});

it('finds a server by its id and by every notation of its addresses, and tells its power', async () => {
  await world.standIn.set(ONE, { power: 'Rebooting' });
  await waitFor(
    'the power',
    async () => (await api.call(`${LIST}/${ONE}`, { headers: ANN })).body.power === 'Rebooting',
  );
  const long = `${net}:0:0:0:7`;
  for (const name of [
    ONE,
    `${net}::7`,
    long.toUpperCase(),
    encodeURIComponent(long),
    `198.51.100.${id.length}/`,
  ]) {
    const { status, body } = await api.call(`${LIST}/${name}`, {
      headers: { ...ANN, accept: 'application/json', 'content-type': 'application/json' },
    });
    expect([name, status, body]).toEqual([
      name,
      200,
      {
        id: ONE,
        name: 'Rack 1, unit 7',
        power: 'Rebooting',
        type: 'Mac mini M4',
        location: 'Dublin',
        status: 'In use',
        creation_date: '2026-03-01T09:00:00Z',
        cancel_date: null,
      },
    ]);
  }
  // Nobody has read the power of the other server.
  expect((await api.call(`${LIST}/${TWO}`, { headers: ANN })).body.power).toBe('Error');
});

it('answers an action with the four letters True when the controller has accepted it', async () => {
  for (const action of ['On', 'off', 'REBOOT']) {
    const { status, text, headers } = await act(action);
    expect([status, text, headers['content-type']]).toEqual([200, 'True', 'text/plain; charset=utf-8']);
  }
  expect(world.standIn.taken).toEqual(
    ['On', 'Off', 'Reboot'].map((action) => ({ server: ONE, action, by: 'berth-server-users/ann' })),
  );
  expect((await act('On', { token: tokens['user'] })).text).toBe('True');
  expect(world.standIn.taken.at(-1)?.by).toBe(`system:serviceaccount:${namespace}:user`);
});

it('acts once for requests that come twice, at once or one after the other, at one replica or two', async () => {
  let release = (): void => undefined;
  const held = new Promise<void>((resolve) => {
    release = resolve;
  });
  world.standIn.answer = async () => {
    await held;
    return {};
  };
  const answers = [api, other, api, other].map((client) => act('On', { headers: ANN }, client));
  await waitFor('the request', async () => {
    const { status } = await cluster.client().get(SERVERS, { name: ONE });
    return status?.request !== undefined;
  });
  const busy = await act('Off', { headers: basic('bob', 'battery staple') }, other);
  expect(busy.status).toBe(409);
  expectLine(busy, /^The server is busy: On has not ended yet/);
  release();
  expect((await Promise.all(answers)).map(({ text }) => text)).toEqual(['True', 'True', 'True', 'True']);
  expect((await act('On', { headers: ANN }, other)).text).toBe('True');
  expect(world.standIn.taken).toHaveLength(1);
  // Another caller cannot know of it, and asks for an action of its own.
  expect((await act('On', { headers: basic('bob', 'battery staple') }, other)).text).toBe('True');
  expect(world.standIn.taken).toHaveLength(2);
  // Two replicas write at the same moment, and one of them reads again. The watch can be faster than a single pair.
  for (const [index, action] of ['Off', 'On', 'Off', 'On', 'Off', 'On'].entries()) {
    const both = await Promise.all([api, other].map((client) => act(action, { headers: ANN }, client)));
    expect(both.map(({ text }) => text)).toEqual(['True', 'True']);
    expect(world.standIn.taken).toHaveLength(3 + index);
  }
});

it('switches a server on again that went off after the same action', async () => {
  expect((await act('On')).text).toBe('True');
  await world.standIn.set(ONE, { power: 'Off' });
  await waitFor(
    'the power',
    async () => (await api.call(`${LIST}/${ONE}`, { headers: ANN })).body.power === 'Off',
  );
  expect((await act('On')).text).toBe('True');
  expect(world.standIn.taken).toHaveLength(2);
});

it('never acts for HEAD, other methods, requests in advance, and early data', async () => {
  for (const method of ['HEAD', 'POST', 'PUT', 'DELETE', 'PATCH'] as const) {
    const { status, headers } = await act('Reboot', { method, headers: ANN });
    expect([method, status, headers['allow'], headers['cache-control']]).toEqual([
      method,
      405,
      'GET',
      'no-store',
    ]);
  }
  for (const [name, value, code] of [
    ['sec-purpose', 'prefetch', 403],
    ['sec-purpose', 'prefetch;prerender', 403],
    ['purpose', 'prefetch', 403],
    ['x-moz', 'prefetch', 403],
    ['early-data', '1', 425],
  ] as const) {
    const refused = await act('Reboot', { headers: { ...ANN, [name]: value } });
    expect([name, refused.status]).toEqual([name, code]);
    expectLine(refused, /does not answer requests/);
  }
  const { status } = await cluster.client().get(SERVERS, { name: ONE });
  expect([status?.request, world.standIn.taken]).toEqual([undefined, []]);
});

it('says True at once when an action waits for the VMs of the server', async () => {
  world.standIn.answer = () => ({ result: 'Waiting', acceptedAt: undefined, completedAt: undefined });
  expect((await act('Off')).text).toBe('True');
});

it('says in one line why an action failed, and after 15 s that the controller has not accepted it', async () => {
  world.standIn.answer = () => ({
    result: 'Failed',
    acceptedAt: undefined,
    message: 'the controller\nsays 500',
  });
  const failed = await act('On');
  expect(failed.status).toBe(502);
  expectLine(failed, /^On failed: the controller says 500$/);
  world.standIn.answer = () => undefined;
  const began = performance.now();
  const late = await act('Off');
  expect(late.status).toBe(502);
  expectLine(late, new RegExp(`^The controller of server ${ONE} has not accepted Off within 15 s`));
  expect(performance.now() - began).toBeGreaterThan(14_000);
  expect(performance.now() - began).toBeLessThan(20_000);
});

it('says the number of the machines because of which an action is refused', async () => {
  world.standIn.answer = () => ({
    result: 'Refused',
    acceptedAt: undefined,
    message: `2 machines run on host host-${id}`,
  });
  for (const call of [{ headers: ANN }, { token: tokens['user'] }]) {
    const refused = await act('Off', call);
    expect([refused.status, refused.text]).toEqual([
      409,
      `Off was refused: 2 machines run on host host-${id}`,
    ]);
  }
});

it('refuses in one line of text: unknown servers, actions and paths, missing rights and credentials', async () => {
  const { user, reader, stranger } = tokens;
  for (const [path, call, status, line] of [
    [`${LIST}/nothing`, { headers: ANN }, 404, /^No server has this id or IP address$/],
    [`${LIST}/192.0.2.99/On`, { token: user }, 404, /^No server has this id or IP address$/],
    [`${LIST}/${ONE}/Explode`, { headers: ANN }, 400, /^The action must be On, Off, Reboot/],
    ['/core/api/nothing', { headers: ANN }, 404, /^There is no such path/],
    [`${LIST}/${ONE}/On/now`, { headers: ANN }, 404, /^There is no such path/],
    [`${LIST}/%zz`, { headers: ANN }, 400, /percent-encoded/],
    [`${LIST}/${ONE}/On`, { token: reader }, 403, /has no right to create servers\/power/],
    [LIST, { token: stranger }, 403, /has no right to list servers/],
    [`${LIST}/${ONE}`, { token: stranger }, 403, /has no right to get servers/],
    [`${LIST}/nothing`, { token: stranger }, 403, /has no right to get servers/],
    [LIST, {}, 401, /^Unauthorized$/],
    [LIST, { token: 'invented' }, 401, /^Unauthorized$/],
    [LIST, { headers: basic('ann', 'wrong') }, 401, /^Unauthorized$/],
    [LIST, { headers: basic('nobody', 'wrong') }, 401, /^Unauthorized$/],
    [LIST, { headers: { authorization: 'Digest a' } }, 401, /^Unauthorized$/],
    ['/core/api/nothing', {}, 401, /^Unauthorized$/],
  ] as const) {
    const refused = await api.call(path, call);
    expect([path, call, refused.status]).toEqual([path, call, status]);
    expectLine(refused, line);
    expect(refused.headers['www-authenticate']).toEqual(
      status === 401 ? ['Basic realm="Berth", charset="UTF-8"', 'Bearer realm="Berth"'] : undefined,
    );
  }
});

it('shows its OpenAPI document and a page to everybody', async () => {
  const { status, body } = await api.call('/core/api/openapi.json');
  expect([status, Object.keys(body.paths)]).toEqual([200, [LIST, `${LIST}/{id}`, `${LIST}/{id}/{action}`]]);
  const page = await api.call('/core/api/docs/');
  expect([page.status, page.headers['content-security-policy']]).toEqual([
    200,
    expect.stringContaining("default-src 'none'"),
  ]);
  const files = [...page.text.matchAll(/(?:src|href)="(\/[^"]+)"/g)].map(([, file]) => file ?? '');
  expect(files).toHaveLength(3);
  for (const file of files) {
    expect([file, (await api.call(file)).status]).toEqual([file, 200]);
  }
});

it('lets users in that the command adds, with their new password, until the command removes them', async () => {
  await using command = await BerthCommand.make(cluster.kubeconfig);
  const users = async (input: string | undefined, ...args: string[]) =>
    await command.run(['server', 'user', ...args, '-n', SYSTEM], input === undefined ? {} : { input });
  const status = async (password: string) =>
    (await api.call(LIST, { headers: basic('carol', password) })).status;
  expect(await users('first secret\n', 'add', 'carol', '--password-stdin')).toMatchObject({
    code: 0,
    out: 'Successfully added server user carol\n',
  });
  await waitFor('the user', async () => (await status('first secret')) === 200);
  expect((await users('second secret', 'add', 'carol', '--password-stdin')).code).toBe(0);
  await waitFor('the new password', async () => (await status('second secret')) === 200);
  expect(await status('first secret')).toBe(401);
  expect(await users(undefined, 'remove', 'carol')).toMatchObject({
    code: 0,
    out: 'Successfully removed server user carol\n',
  });
  await waitFor('the end of the user', async () => (await status('second secret')) === 401);
  // The other users stay.
  expect((await api.call(LIST, { headers: ANN })).status).toBe(200);
  expect((await users(undefined, 'remove', 'carol')).err).toContain('server user carol not found');
  expect((await users(`${'a'.repeat(73)}\n`, 'add', 'carol', '--password-stdin')).err).toContain('72');
  expect((await users('secret\n', 'add', 'a:b', '--password-stdin')).err).toContain('without a colon');
});

it('lets the account of the HTTP API change nothing of a Server but its request, and no Lease but those of lock-outs', async () => {
  const connection = await loadConnection({ kubeconfigPath: join(cluster.directory, 'server.kubeconfig') });
  const transport = new Transport(connection, { metrics: createMetrics() });
  const client = new KubeClient(transport);
  const request = { id: 'a', action: 'On', requestedAt: '2026-03-01T09:00:00Z', by: 'ann' };
  const path = `/apis/berth.dev/v1alpha1/servers/${ONE}`;
  const patch = async (where: string, body: object) =>
    await client.call('PATCH', `${where}?dryRun=All`, { body, contentType: 'application/merge-patch+json' });
  expect((await patch(`${path}/status`, { status: { request } })).status).toBe(200);
  for (const status of [{ power: 'Error' }, { request, lastRequestedAt: request.requestedAt }]) {
    await expect(patch(`${path}/status`, { status })).rejects.toThrow(
      'may change only status.request of Servers',
    );
  }
  await expect(patch(path, { spec: { location: 'x' } })).rejects.toThrow('cannot patch resource "servers"');
  const lease = async (name: string) =>
    await client.create(LEASES, { metadata: { name, namespace: SYSTEM_NAMESPACE } }, { dryRun: true });
  expect((await lease('berth-lockout-a')).metadata.name).toBe('berth-lockout-a');
  await expect(lease('berth-operator-2')).rejects.toThrow(
    'only Leases whose names begin with berth-lockout-',
  );
  await transport.close();
});
