/** The console: its page, and what it can read with the token of a user. */
import { randomBytes } from 'node:crypto';
import { afterAll, afterEach, beforeAll, expect, it } from 'vitest';
import { JOB_TIMES } from '../../api/v1alpha1/names.ts';
import { SERVERS, VM_POOLS, VMS } from '../../api/v1alpha1/resources.ts';
import { bundleConsole } from '../../hack/bundle.ts';
import type { Cluster } from '../../hack/cluster/index.ts';
import type { ServerProcess } from '../../hack/cluster/program.ts';
import { waitFor } from '../../hack/wait.ts';
import { writeData } from '../../kube/configmapdata.ts';
import { NAMESPACES } from '../../kube/core.ts';
import { sharedCluster } from '../support/cluster.ts';
import { accountToken } from '../support/members.ts';
import { WatchingPage } from '../wires/consolewatch.ts';
import { HTTPClient } from '../wires/httpapi.ts';

const namespace = `platform-console-${randomBytes(4).toString('hex')}`;
const OBJECTS = '/console/objects';
const SCOPE = `namespaces/${namespace}`;
/** Kinds in a namespace that the console reads. */
const KINDS = [
  'vms',
  'vmconfigs',
  'vmsnapshots',
  'vmpools',
  'images',
  'isos',
  'imagecacheentries',
  'emulators',
  'runnersets',
];
const CLUSTER_WIDE = [...KINDS, 'servers', 'nodes'];
/** Watches of one user at the same time, with the WebSockets that carry them. */
const USER_WATCHES = 30;

let cluster: Cluster;
let server: ServerProcess;
let api: HTTPClient;
let member: string;
let other: string;
let stranger: string;
let lead: string;
const pages = new Set<WatchingPage>();

afterEach(async () => {
  pages.forEach(({ socket }) => socket.terminate());
  await Promise.all([...pages].map(async ({ closed }) => await closed));
  pages.clear();
});

beforeAll(async () => {
  cluster = await sharedCluster();
  await cluster.createNamespace(namespace);
  await bundleConsole();
  server = await cluster.startServer({ name: `server-${namespace}` });
  api = new HTTPClient(server);
  member = await accountToken(cluster, { namespace, name: 'member' }, { role: 'berth-role-dev' });
  other = await accountToken(cluster, { namespace, name: 'other' }, { role: 'berth-role-dev' });
  stranger = await accountToken(cluster, { namespace, name: 'stranger' });
  lead = await accountToken(cluster, { namespace, name: 'lead' }, { role: 'cluster-admin', in: 'cluster' });
  const vm = { metadata: { name: 'one', namespace }, spec: { image: 'image' } };
  await cluster.client().create(VMS, vm);
  await waitFor('the rights to be known', async () => {
    const paths = [
      [`${OBJECTS}/${SCOPE}/vms`, member],
      [`${OBJECTS}/${SCOPE}/vms`, other],
      [`${OBJECTS}/nodes`, lead],
    ] as const;
    const answers = await Promise.all(paths.map(async ([path, token]) => await api.call(path, { token })));
    return answers.every(({ status }) => status === 200);
  });
});

afterAll(async () => {
  await api?.close();
  await server?.process.stop();
  await cluster?.kubectl(['delete', 'namespace', namespace, '--wait=false']);
  await cluster?.kubectl(['delete', 'clusterrolebinding', `${namespace}-lead`]);
  await cluster?.disconnect();
});

it('serves everybody a page that runs no script but its own, in no frame of another site', async () => {
  const { status, headers, text } = await api.call('/console');
  expect(status).toBe(200);
  const policy = String(headers['content-security-policy']);
  for (const part of [
    "default-src 'none'",
    "script-src 'self'",
    "connect-src 'self'",
    "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",
  ]) {
    expect(policy).toContain(part);
  }
  expect(policy).not.toContain('unsafe');
  expect(text).not.toMatch(/<script[^>]*>[^<]|<style| on[a-z]+=/);
  const files = [...text.matchAll(/(?:src|href)="(\/[^"]*)"/g)].map(([, path = '']) => path);
  expect(files).toHaveLength(2);
  for (const file of files) {
    const answer = await api.call(file);
    expect([file, answer.status, answer.text.length > 1_000]).toEqual([file, 200, true]);
  }
});

it.each(CLUSTER_WIDE)('reads %s of the whole cluster for those who may', async (plural) => {
  const path = `${OBJECTS}/${plural}`;
  const { status, body } = await api.call(path, { token: lead });
  expect([status, Array.isArray(body.items), body.resourceVersion]).toEqual([
    200,
    true,
    expect.stringMatching(/^\d+$/),
  ]);
  const refused = await api.call(path, { token: member });
  expect([refused.status, refused.body.reason]).toEqual([403, 'Forbidden']);
  expect(refused.body.message).toContain(`cannot list resource "${plural}"`);
  expect((await api.call(path)).status).toBe(401);
  expect((await api.call(path, { token: 'invented' })).status).toBe(401);
});

it.each(KINDS)('reads %s of a namespace for its members only', async (plural) => {
  const path = `${OBJECTS}/${SCOPE}/${plural}`;
  expect((await api.call(path, { token: member })).status).toBe(200);
  expect((await api.call(path, { token: stranger })).status).toBe(403);
  for (const method of ['POST', 'PUT', 'PATCH', 'DELETE'] as const) {
    const { status, headers } = await api.call(path, { method, token: lead });
    expect([method, status, headers['allow']]).toEqual([method, 405, 'GET']);
  }
});

it('lists whole objects, without the fields of their managers', async () => {
  const { body } = await api.call(`${OBJECTS}/${SCOPE}/vms`, { token: member });
  const [vm] = body.items;
  expect(vm).toMatchObject({ metadata: { name: 'one', namespace }, spec: { image: 'image' } });
  expect(vm.metadata).not.toHaveProperty('managedFields');
});

it('lists as few objects at a time as the page asks for', async () => {
  await cluster.client().create(VMS, { metadata: { name: 'three', namespace }, spec: { image: 'image' } });
  const path = `${OBJECTS}/${SCOPE}/vms?limit=1`;
  const first = (await api.call(path, { token: member })).body;
  const position = encodeURIComponent(first.continue);
  const next = (await api.call(`${path}&continue=${position}`, { token: member })).body;
  const names = [...first.items, ...next.items].map(({ metadata }) => metadata.name);
  expect(names).toEqual(['one', 'three']);
});

it('passes on nothing else', async () => {
  for (const path of [
    ...['pods', 'secrets', 'configmaps', 'serviceaccounts', 'events', 'namespaces', 'nodes'].map(
      (one) => `${OBJECTS}/${SCOPE}/${one}/x`,
    ),
    ...['pods', 'secrets', 'configmaps', 'serviceaccounts'].map((one) => `${OBJECTS}/${SCOPE}/${one}`),
    `${OBJECTS}/secrets`,
    `${OBJECTS}/events`,
    `${OBJECTS}/namespaces`,
    `${OBJECTS}/nodes/x`,
    `${OBJECTS}/nodes/x/proxy`,
    `${OBJECTS}/${SCOPE}/vms/one/status`,
    `${OBJECTS}/${SCOPE}/vms/%2e%2e`,
    `${OBJECTS}/namespaces/kube-system/vms`,
    `${OBJECTS}/namespaces/berth-system/vms`,
    `/console/watch/${SCOPE}/secrets?resourceVersion=1`,
    '/console/api/v1/secrets',
    '/console/objects',
    '/console/console.mjs',
    '/console/../package.json',
    '/console/%2e%2e/package.json',
  ]) {
    const { status } = await api.call(path, { token: lead });
    expect([path, status]).toEqual([path, 404]);
  }
});

it('reads no single object, whatever its name looks like', async () => {
  for (const name of ['one', '..%2f..%2fsecrets', '..%2Fsecrets', 'one%3fwatch=true']) {
    for (const plural of ['vms', 'vmpools']) {
      const { status, headers } = await api.call(`${OBJECTS}/${SCOPE}/${plural}/${name}`, { token: lead });
      expect([plural, name, status, headers['allow']]).toEqual([plural, name, 405, 'PATCH']);
    }
  }
  expect((await api.call(`${OBJECTS}/servers/rack-1`, { token: lead })).status).toBe(405);
});

it('gives everybody the schemas of its forms, with the bounds of the server', async () => {
  const { status, body } = await api.call('/console/forms');
  expect([status, Object.keys(body)]).toEqual([
    200,
    ['deploy', 'change', 'claim', 'scale', 'snapshot', 'token'],
  ]);
  expect(body.deploy.properties.cpu).toMatchObject({ type: 'integer', minimum: 1, maximum: 256 });
  expect(body.deploy.properties.displayDPI).toMatchObject({ minimum: 60, maximum: 240 });
  expect(JSON.stringify(body)).not.toContain('x-kubernetes');
});

/** Sends a change, and returns the status of the answer and its message. */
async function patch(path: string, body: object, token: string) {
  const answer = await api.call(`${OBJECTS}/${path}`, { method: 'PATCH', token, body });
  return [answer.status, String(answer.body.message)] as const;
}

it('changes the fields of a VM that can be changed, and removes them, as the generation that was seen', async () => {
  const changing = { name: 'changing', namespace };
  await cluster.client().create(VMS, { metadata: changing, spec: { image: 'image', cpu: 2 } });
  const path = `${SCOPE}/vms/changing`;
  const set = { cpu: 3, memory: '6Gi', ttlSecondsAfterFinished: 60 };
  expect((await patch(path, { generation: 1, set }, member))[0]).toBe(200);
  const { spec, metadata } = await cluster.client().get(VMS, changing);
  expect([spec, metadata.generation]).toEqual([{ image: 'image', ...set }, 2]);
  const [stale, why] = await patch(path, { generation: 1, set: { cpu: 4 } }, member);
  expect([stale, why]).toEqual([409, 'VM changing was changed by somebody else. Look at it again']);
  const removal = { generation: 2, remove: ['memory', 'ttlSecondsAfterFinished'] };
  expect((await patch(path, removal, member))[0]).toBe(200);
  expect((await cluster.client().get(VMS, changing)).spec).toEqual({ image: 'image', cpu: 3 });
});

it.each([
  ['a field that never changes', { set: { image: 'other' } }, /set.image: is not a known field/],
  ['the removal of such a field', { remove: ['image'] }, /remove.0: must be cpu or memory/],
  ['a value out of its bounds', { set: { cpu: 257 } }, /set.cpu: must/],
  ['a change of labels', { metadata: { labels: {} } }, /metadata: is not a known field/],
  ['a change of nothing', {}, /set: must have at least one field/],
  ['another kind of value', { set: { cpu: 'many' } }, /set.cpu: must be a number/],
])('refuses %s', async (_, change, message) => {
  const [status, text] = await patch(`${SCOPE}/vms/one`, { generation: 1, ...change }, member);
  expect([400, 422]).toContain(status);
  expect(text).toMatch(message);
  const { spec } = await cluster.client().get(VMS, { name: 'one', namespace });
  expect(spec).toEqual({ image: 'image' });
});

it('scales a pool, and changes nothing else of it', async () => {
  const pool = { name: 'fresh', namespace };
  const spec = { replicas: 0, template: { spec: { image: 'image' } } };
  await cluster.client().create(VM_POOLS, { metadata: pool, spec });
  const path = `${SCOPE}/vmpools/fresh`;
  expect((await patch(path, { replicas: 2 }, member))[0]).toBe(200);
  expect((await cluster.client().get(VM_POOLS, pool)).spec).toMatchObject({ ...spec, replicas: 2 });
  for (const change of [{ replicas: -1 }, { replicas: 'two' }, {}, { replicas: 1, template: {} }]) {
    expect([400, 422]).toContain((await patch(path, change, member))[0]);
  }
});

it('requests the power of a server for those who may change Servers', async () => {
  const name = `rack-${randomBytes(4).toString('hex')}`;
  const spec = {
    addresses: ['192.0.2.7'],
    controller: {
      webhook: {
        onURL: 'https://power.example/on',
        offURL: 'https://power.example/off',
        statusURL: 'https://power.example/status',
        pattern: '(on|off)',
      },
    },
  };
  await cluster.client().create(SERVERS, { metadata: { name }, spec });
  try {
    expect((await patch(`servers/${name}`, { action: 'On' }, member))[0]).toBe(403);
    expect((await patch(`servers/${name}`, { action: 'Explode' }, lead))[0]).toBe(422);
    expect((await patch(`servers/${name}`, { action: 'On' }, lead))[0]).toBe(200);
    const { powerAction } = (await cluster.client().get(SERVERS, { name })).spec;
    expect(powerAction).toEqual({ action: 'On', requestedAt: expect.stringMatching(/Z$/) });
  } finally {
    await cluster.client().delete(SERVERS, { name });
  }
});

it.each([`${SCOPE}/vms/one`, `${SCOPE}/vmpools/fresh`])('refuses changes of %s by others', async (path) => {
  expect((await patch(path, { generation: 1, replicas: 1 }, stranger))[0]).toBe(403);
  expect((await api.call(`${OBJECTS}/${path}`, { method: 'PATCH', body: {} })).status).toBe(401);
  const elsewhere = path.replace(namespace, 'kube-system');
  expect((await patch(elsewhere, { generation: 1, replicas: 1 }, lead))[0]).toBe(404);
});

it.each([
  [`${OBJECTS}/vms?labelSelector=a`, /labelSelector/],
  [`${OBJECTS}/vms?watch=true`, /watch/],
  [`${OBJECTS}/vms?limit=0`, /limit/],
  [`${OBJECTS}/vms?limit=501`, /limit/],
  [`${OBJECTS}/vms?continue=${'x'.repeat(5_000)}`, /continue: must have at most 4096/],
  [`${OBJECTS}/${SCOPE}/events`, /regarding: is required/],
  [`${OBJECTS}/${SCOPE}/events?regarding=a,metadata.name!=b`, /regarding: must be the name of an object/],
])('refuses %s, and names the mistake', async (path, message) => {
  const { status, body } = await api.call(path, { token: lead });
  expect([400, 422]).toContain(status);
  expect(body.message).toMatch(message);
});

it('tells who the caller is, and which scope the caller can see', async () => {
  const session = async (token: string) => (await api.call('/console/session', { token })).body;
  expect(await session(lead)).toEqual({
    username: `system:serviceaccount:${namespace}:lead`,
    defaultNamespace: 'platform-default',
    mayWatch: { vms: true, hosts: true, servers: true },
  });
  expect(await session(member)).toMatchObject({ mayWatch: { vms: false, hosts: false, servers: false } });
  expect((await api.call('/console/session', { token: 'invented' })).status).toBe(401);
});

it('offers no sign-in without a provider', async () => {
  expect((await api.call('/console/sign-in')).body).toEqual({});
  const secret = 's'.repeat(43);
  const answer = {
    address: 'https://a.example/console/?code=x',
    verifier: secret,
    state: secret,
    nonce: secret,
  };
  const { status, body } = await api.call('/console/sign-in', { method: 'POST', body: answer });
  expect([status, body.message]).toEqual([404, 'This cluster has no identity provider']);
});

it('tells how long jobs waited and ran to those who may list the VMs', async () => {
  const { uid } = (await cluster.client().get(NAMESPACES, { name: namespace })).metadata;
  const document = {
    namespaceUid: uid,
    begunAt: '2026-11-30T12:00:00Z',
    entries: [[5_930_000, 1, 4, 4, 0, 0, 0]],
  };
  // While no operator leads, the times of a deleted namespace stay. Here it is another namespace with the same name.
  const stale = { ...document, namespaceUid: 'uid-of-an-earlier-namespace' };
  const ref = { namespace: 'berth-system', name: JOB_TIMES };
  const stored = { [namespace]: JSON.stringify(document), 'platform-default': JSON.stringify(stale) };
  await writeData(cluster.client(), ref, stored);
  try {
    const own = `/console/times/namespaces/${namespace}`;
    expect((await api.call(own, { token: member })).body).toEqual({ documents: [document] });
    const { documents } = (await api.call('/console/times', { token: lead })).body;
    expect(documents).toContainEqual(document);
    expect(documents).not.toContainEqual(stale);
    const refused = ['/console/times', '/console/times/namespaces/platform-default', own];
    const tokens = [member, member, stranger];
    for (const [index, path] of refused.entries()) {
      const { status, body } = await api.call(path, { token: tokens[index] });
      expect([path, status, body.documents]).toEqual([path, 403, undefined]);
    }
    expect((await api.call(own)).status).toBe(401);
    expect((await api.call('/console/times/namespaces/kube-system', { token: lead })).status).toBe(404);
  } finally {
    await writeData(cluster.client(), ref, { [namespace]: null, 'platform-default': null });
  }
});

/** Opens a page of a user that watches objects. */
async function openPage(token: string): Promise<WatchingPage> {
  const page = await WatchingPage.open(server, token);
  pages.add(page);
  return page;
}

/** Returns the present version of all objects. */
async function version(): Promise<string> {
  return (await api.call(`${OBJECTS}/${SCOPE}/vms`, { token: member })).body.resourceVersion;
}

it('shows the changes of several kinds at once, over one WebSocket', async () => {
  const page = await openPage(other);
  const from = await version();
  const [vms, pools] = [page.start(`${SCOPE}/vms`, from), page.start(`${SCOPE}/vmpools`, from)];
  // The first line is empty. It comes at once, so that clients know that the watch has begun.
  await Promise.all([page.shows(vms, '\n'), page.shows(pools, '\n')]);
  await cluster.client().create(VMS, { metadata: { name: 'two', namespace }, spec: { image: 'image' } });
  const spec = { replicas: 0, template: { spec: { image: 'image' } } };
  await cluster.client().create(VM_POOLS, { metadata: { name: 'seen', namespace }, spec });
  const [, line = ''] = (await page.shows(vms, '}\n')).split('\n');
  expect(JSON.parse(line)).toMatchObject({ type: 'ADDED', object: { metadata: { name: 'two' } } });
  expect(await page.shows(pools, '"seen"')).not.toContain('"two"');
});

it('tells of a watch that is refused or has ended, and goes on with the others', async () => {
  const page = await openPage(member);
  const from = await version();
  const vms = page.start(`${SCOPE}/vms`, from);
  const end = async (path: string, at = from) => await page.ended(page.start(path, at));
  expect(await end('nodes')).toMatchObject({ code: 403, message: expect.stringContaining('cannot watch') });
  expect(await end('vms')).toMatchObject({ code: 403 });
  for (const path of [`${SCOPE}/secrets`, `${SCOPE}/nodes`, 'secrets', 'namespaces/kube-system/vms']) {
    expect([path, await end(path)]).toEqual([path, expect.objectContaining({ code: 404 })]);
  }
  // The API server says in the watch itself that it no longer has the events.
  const old = page.start(`${SCOPE}/vms`, '1');
  await page.shows(old, '"code":410');
  const stopped = page.start(`${SCOPE}/images`, from);
  await page.shows(stopped, '\n');
  page.stop(stopped);
  await cluster.client().create(VMS, { metadata: { name: 'later', namespace }, spec: { image: 'image' } });
  await page.shows(vms, '"later"');
});

it('two windows with all namespaces leave the six connections of a browser to other requests', async () => {
  const windows = [await openPage(lead), await openPage(lead)];
  const from = await version();
  for (const page of windows) {
    const watches = ['vms', 'emulators', 'nodes', 'servers'].map((path) => page.start(path, from));
    await Promise.all(watches.map(async (id) => await page.shows(id, '\n')));
  }
  const browser = new HTTPClient(server, { connections: 6 });
  try {
    const lists = CLUSTER_WIDE.map(async (kind) => await browser.call(`${OBJECTS}/${kind}`, { token: lead }));
    expect((await Promise.all(lists)).map(({ status }) => status)).toEqual(CLUSTER_WIDE.map(() => 200));
  } finally {
    await browser.close();
  }
});

it.each([
  ['without a token', { token: '' }, 401, /Unauthorized/],
  ['with an invented token', { token: 'invented' }, 401, /Unauthorized/],
  ['from a page of another server', { origin: 'https://evil.example' }, 403, /Only the console/],
  ['from no page', { origin: undefined }, 403, /Only the console/],
  ['without the protocol', { protocols: ['v5.channel.k8s.io'] }, 400, /must offer .*watch/],
])('refuses watches %s', async (_, options, status, message) => {
  const page = new WatchingPage(server, { token: member, ...options });
  expect(await page.refusal()).toEqual([status, expect.stringMatching(message)]);
});

it.each(['access_token', 'token', 'authorization'])(
  'takes no token from the address, as %s',
  async (name) => {
    const query = `?${name}=${encodeURIComponent(member)}`;
    for (const path of [
      '/console/session',
      `${OBJECTS}/${SCOPE}/vms`,
      `/console/times/${SCOPE}`,
      '/console/watch',
    ]) {
      const { status, body } = await api.call(path + query);
      expect([path, status]).toEqual([path, 401]);
      expect(JSON.stringify(body)).not.toContain(member);
    }
  },
);

it('tells a page without a WebSocket why its watches are refused', async () => {
  expect((await api.call('/console/watch', { token: member })).status).toBe(426);
  expect((await api.call('/console/watch')).status).toBe(401);
});

it.each([
  ['no JSON', 'vms', 1008],
  ['another request', JSON.stringify({ get: 'vms' }), 1008],
  ['a path with a query', JSON.stringify({ start: { id: 1, path: 'vms?x', resourceVersion: '1' } }), 1008],
  ['a path upwards', JSON.stringify({ start: { id: 1, path: '../vms', resourceVersion: '1' } }), 1008],
  ['no version', JSON.stringify({ start: { id: 1, path: 'vms', resourceVersion: '' } }), 1008],
  ['more than a page sends', JSON.stringify({ stop: 1 }).padEnd(2_000), 1009],
])('ends the WebSocket of a page that sends %s, and no other one', async (_, text, code) => {
  const bystander = await openPage(other);
  const page = await openPage(member);
  page.socket.send(text);
  expect((await page.closed)[0]).toBe(code);
  await bystander.shows(bystander.start(`${SCOPE}/vms`, await version()), '\n');
});

it('bounds the watches of a page and of a user, and leaves room for another one', async () => {
  const from = await version();
  const begin = async (page: WatchingPage, count: number) => {
    const watches = Array.from({ length: count }, () => page.start(`${SCOPE}/vms`, from));
    await Promise.all(watches.map(async (id) => await page.shows(id, '\n')));
  };
  const first = await openPage(member);
  await begin(first, 8);
  const ninth = await first.ended(first.start(`${SCOPE}/vms`, from));
  expect(ninth).toMatchObject({ code: 429, message: expect.stringContaining('at most 8 watches') });
  await begin(await openPage(member), 8);
  await begin(await openPage(member), 8);
  // Each WebSocket has a place, too: these are 27 of 30.
  const last = await openPage(member);
  await begin(last, 2);
  const refused = await last.ended(last.start(`${SCOPE}/vms`, from));
  const who = `${USER_WATCHES} requests of user system:serviceaccount:${namespace}:member`;
  expect(refused).toMatchObject({ code: 429, message: expect.stringContaining(who) });
  expect((await new WatchingPage(server, { token: member }).refusal())[0]).toBe(429);
  // A browser does not tell a page why its WebSocket was refused, so the page asks by a plain request.
  const { status, body } = await api.call('/console/watch', { token: member });
  expect([status, body.message]).toEqual([429, expect.stringContaining(who)]);
  await begin(await openPage(other), 1);
  first.socket.close();
  await first.closed;
  await waitFor('the places to be free', async () => {
    await begin(last, 1);
    return true;
  });
});
