/** Emulators of the HTTP API. No operator runs: the test writes the statuses itself. */
import { randomBytes } from 'node:crypto';
import { afterAll, beforeAll, expect, it } from 'vitest';
import type { Emulator } from '../../api/v1alpha1/emulator.ts';
import { EMULATORS } from '../../api/v1alpha1/resources.ts';
import type { Cluster } from '../../hack/cluster/index.ts';
import type { ServerProcess } from '../../hack/cluster/program.ts';
import { waitFor } from '../../hack/wait.ts';
import { sharedCluster } from '../support/cluster.ts';
import { accountToken } from '../support/members.ts';
import { type HTTPAnswer, HTTPClient } from '../wires/httpapi.ts';

const namespace = `platform-emulators-${randomBytes(4).toString('hex')}`;
const COLLECTION = `/api/v1/namespaces/${namespace}/emulators`;
const ADB = { address: '192.0.2.7', port: 5555 };

let cluster: Cluster;
let server: ServerProcess;
let api: HTTPClient;
let token: string;
/** Token of an account that may only see. */
let viewer: string;

beforeAll(async () => {
  cluster = await sharedCluster();
  await cluster.createNamespace(namespace);
  server = await cluster.startServer({ name: `server-${namespace}` });
  api = new HTTPClient(server);
  [token, viewer] = await Promise.all([accountWith('member', 'edit'), accountWith('viewer', 'view')]);
  for (const name of ['runs', 'waits']) {
    await cluster.kubectl(['create', '-f', '-'], { input: JSON.stringify(vm(name)) });
  }
  await setStatus('vm', 'runs', { phase: 'Running' });
});

afterAll(async () => {
  await api?.close();
  await server?.process.stop();
  await cluster?.kubectl(['delete', 'namespace', namespace, '--wait=false']);
  await cluster?.disconnect();
});

/** Makes an account with this role, and returns its token when the role holds. */
async function accountWith(name: string, role: 'edit' | 'view'): Promise<string> {
  const token = await accountToken(cluster, { namespace, name }, { role });
  await waitFor(
    `the rights of the account ${name}`,
    async () => (await api.call(COLLECTION, { token })).status === 200,
  );
  return token;
}

function vm(name: string): object {
  return {
    apiVersion: 'berth.dev/v1alpha1',
    kind: 'VM',
    metadata: { name, namespace },
    spec: { image: 'image' },
  };
}

async function setStatus(kind: string, name: string, status: object): Promise<void> {
  const patch = ['--subresource=status', '--type=merge', '-p', JSON.stringify({ status })];
  await cluster.kubectl(['-n', namespace, 'patch', kind, name, ...patch]);
}

async function deploy(body: object, signal?: AbortSignal): Promise<HTTPAnswer> {
  return await api.call(COLLECTION, { method: 'POST', token, body, ...(signal && { signal }) });
}

async function emulators(): Promise<Emulator[]> {
  return (await cluster.client().list(EMULATORS, { namespace })).items;
}

/** Waits for the emulator that the server makes, whose name the test may not know. */
async function made(isWanted: (emulator: Emulator) => boolean): Promise<Emulator> {
  return await waitFor('the emulator', async () => (await emulators()).find(isWanted));
}

it('answers when Android has booted, and shows and deletes the emulator', async () => {
  const answer = deploy({ VM: 'runs', name: 'phone', deviceProfile: 'pixel_tablet', memory: 4096, cpu: 0 });
  const { metadata, spec } = await made(({ metadata: { name } }) => name === 'phone');
  expect(spec).toEqual({ vmName: 'runs', device: 'pixel_tablet', memory: '4096Mi' });
  expect(metadata.annotations).toMatchObject({
    'berth.dev/created-by': `system:serviceaccount:${namespace}:member`,
  });
  const common = { name: 'phone', vm: 'runs', platform: 'android-36', imageType: 'google_apis' };
  const item = { ...common, deviceProfile: 'pixel_tablet', status: 'Pending', phase: 'Pending' };
  expect((await api.call(`${COLLECTION}/phone`, { token })).body).toEqual(item);
  await setStatus('emulator', 'phone', { phase: 'Running', nodeName: 'host', adb: ADB });
  const relay = { adbRelayIP: ADB.address, adbRelayPort: 5555, relayIp: ADB.address, relayPort: 5555 };
  const running = { ...item, status: 'Running', phase: 'Running', node: 'host', ...relay };
  const { status, body } = await answer;
  expect([status, body]).toEqual([200, running]);
  expect((await api.call(COLLECTION, { token })).body.items).toEqual([running]);
  const deleted = await api.call(`${COLLECTION}/phone`, { method: 'DELETE', token });
  expect([deleted.status, deleted.body.status]).toEqual([200, 'Success']);
  expect((await api.call(`${COLLECTION}/phone`, { token })).status).toBe(404);
});

it('answers 500 with the words of the emulator when it fails, and deletes it', async () => {
  const answer = deploy({ vm: 'runs', timeout: 20 });
  const { metadata, spec } = await made(({ metadata: { name } }) => name.startsWith('emulator-'));
  expect(spec.deployTimeoutSeconds).toBe(1200);
  const failure = { reason: 'EmulatorFailed', message: 'No KVM here', time: '2026-11-01T10:00:00Z' };
  await setStatus('emulator', metadata.name, { phase: 'Failed', failure });
  const { status, body } = await answer;
  expect([status, body.message, body.details.causes[0].reason]).toEqual([
    500,
    'No KVM here',
    'EmulatorFailed',
  ]);
  expect(await emulators()).toEqual([]);
});

it('deletes an emulator whose client is gone without its name, and keeps one that the client named', async () => {
  const gone = new AbortController();
  const answers = Promise.allSettled([
    deploy({ vm: 'runs' }, gone.signal),
    deploy({ vm: 'runs', name: 'named' }, gone.signal),
  ]);
  await waitFor('both emulators', async () => (await emulators()).length === 2);
  gone.abort();
  expect((await answers).map(({ status }) => status)).toEqual(['rejected', 'rejected']);
  await waitFor('the end of one emulator', async () => (await emulators()).length === 1);
  expect((await emulators()).map(({ metadata }) => metadata.name)).toEqual(['named']);
  expect((await api.call(`${COLLECTION}/named`, { method: 'DELETE', token })).status).toBe(200);
});

it('refuses an emulator without a running VM, and values that are not offered', async () => {
  for (const [body, code, expected] of [
    [{ vm: 'waits' }, 409, 'VM waits is not running'],
    [{ vm: 'missing' }, 404, 'not found'],
    [{}, 422, 'vm: is required'],
    [{ vm: 'runs', config: 'tests' }, 422, 'there are no emulator configs'],
    [{ vm: 'runs', memory: 1024 }, 422, 'memory: must be from 2560 to 16777216, not 1024'],
    [{ vm: 'runs', platform: '../android' }, 422, 'platform'],
  ] as const) {
    const answer = await deploy(body);
    expect([body, answer.status, answer.body.message]).toEqual([
      body,
      code,
      expect.stringContaining(expected),
    ]);
  }
  expect(await emulators()).toEqual([]);
});

it('refuses callers who may only see, whatever the state of the VM', async () => {
  for (const name of ['runs', 'waits']) {
    const { status, body } = await api.call(COLLECTION, {
      method: 'POST',
      token: viewer,
      body: { vm: name },
    });
    expect([status, body.message]).toEqual([
      403,
      expect.stringContaining('cannot create resource "emulators"'),
    ]);
  }
});

it('answers with the waiting emulator when the server stops, and leaves it to its VM', async () => {
  const answer = deploy({ vm: 'runs' });
  const { metadata } = await made(() => true);
  await server.process.kill('SIGTERM');
  const { status, body } = await answer;
  await server.process.stop();
  expect([status, body]).toMatchObject([200, { name: metadata.name, status: 'Pending' }]);
  expect(await emulators()).toHaveLength(1);
});
