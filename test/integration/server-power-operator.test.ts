/** The power API with a real operator and a controller: a client that knows only the promises switches servers, with VMs and without. */
import { afterAll, beforeAll, expect, it } from 'vitest';
import { SERVERS } from '../../api/v1alpha1/resources.ts';
import type { ServerSpec } from '../../api/v1alpha1/server.ts';
import { type Cluster, type OperatorProcess, startCluster } from '../../hack/cluster/index.ts';
import type { ServerProcess } from '../../hack/cluster/program.ts';
import { waitFor } from '../../hack/wait.ts';
import { VMs } from '../fixtures/vms.ts';
import { accountToken } from '../support/members.ts';
import { type HTTPAnswer, HTTPClient } from '../wires/httpapi.ts';
import { ActingHost } from '../worlds/actinghost.ts';
import { Plug } from '../worlds/plug.ts';

const LIST = '/core/api/servers';
const HOST = 'host-1';
const namespace = 'platform-default';

let cluster: Cluster;
let operator: OperatorProcess;
let server: ServerProcess;
let api: HTTPClient;
let host: ActingHost;
let vms: VMs;
let token: string;
let viewerToken: string;
const plugs: Plug[] = [];

beforeAll(async () => {
  cluster = await startCluster({ name: `server-power-operator-${process.pid}` });
  [operator, server] = await Promise.all([
    cluster.startOperator(),
    cluster.startServer({ config: { power: { enabled: true } } }),
  ]);
  api = new HTTPClient({ ...server, url: server.powerUrl });
  vms = new VMs(cluster);
  host = await ActingHost.join(cluster.client(), HOST, { staysReady: true });
  token = await accountToken(
    cluster,
    { namespace, name: 'racks' },
    { role: 'berth-power-user', in: 'cluster' },
  );
  viewerToken = await accountToken(cluster, { namespace, name: 'viewer' }, { role: 'berth-view' });
  const user = [`--serviceaccount=${namespace}:viewer`, '--clusterrole=berth-power-user'];
  await cluster.kubectl(['create', 'clusterrolebinding', 'viewer-power', ...user]);
  await waitFor('the rights', async () => {
    const answers = [token, viewerToken].map(async (one) => (await api.call(LIST, { token: one })).status);
    return (await Promise.all(answers)).every((status) => status === 200);
  });
});

afterAll(async () => {
  await api?.close();
  await host?.remove();
  await Promise.all(plugs.map((plug) => plug[Symbol.asyncDispose]()));
  await server?.process.stop();
  await operator?.stop();
  await cluster?.stop();
});

async function create(
  name: string,
  spec: Partial<ServerSpec> & Pick<ServerSpec, 'addresses'>,
): Promise<Plug> {
  const plug = await Plug.start('on');
  plugs.push(plug);
  await cluster
    .client()
    .create(SERVERS, { metadata: { name }, spec: { controller: plug.controller, ...spec } });
  await waitForPower(name, 'On');
  return plug;
}

async function call(path: string, caller = token): Promise<HTTPAnswer> {
  return await api.call(`${LIST}/${path}`, { token: caller });
}

async function waitForPower(name: string, power: string): Promise<void> {
  await waitFor(`${name} to be ${power}`, async () => (await call(name)).body.power === power);
}

it('switches a server off and on, and reboots it; the answer comes with the acceptance, and the power follows', async () => {
  const plug = await create('plain', { addresses: ['192.0.2.1'] });
  expect((await call('192.0.2.1/off')).text).toBe('True');
  await waitForPower('plain', 'Off');
  // The server is off already, so nothing is sent.
  expect((await call('plain/OFF', viewerToken)).text).toBe('True');
  expect(plug.commands).toEqual(['off']);
  expect((await call('plain/On')).text).toBe('True');
  await waitForPower('plain', 'On');
  const answers = await Promise.all([call('plain/Reboot'), call('plain/reboot', viewerToken)]);
  expect(answers.map(({ text }) => text)).toEqual(['True', 'True']);
  await waitForPower('plain', 'Rebooting');
  await waitForPower('plain', 'On');
  expect(plug.commands).toEqual(['off', 'on', 'off', 'on']);
  const { status } = await cluster.client().get(SERVERS, { name: 'plain' });
  expect(status?.lastAction?.by).toMatch(/^system:serviceaccount:platform-default:/);
});

it('refuses to switch off a host with VMs, and names them to callers who may list them', async () => {
  const plug = await create('rack', { addresses: ['192.0.2.2'], nodeName: HOST });
  await vms.create('guest', { placement: { node: HOST } });
  await host.waitForPod({ namespace, name: 'guest' });
  await host.run({ namespace, name: 'guest' });
  await vms.waitForPhase('guest', 'Running');
  const refused = await waitFor('the refusal', async () => {
    const answer = await call('rack/off', viewerToken);
    return answer.status === 409 ? answer : undefined;
  });
  expect(refused.text).toBe(`Off was refused: 1 machine runs on host ${HOST}: ${namespace}/guest`);
  expect((await call('rack/off')).text).toBe(`Off was refused: 1 machine runs on host ${HOST}`);
  expect(plug.commands).toEqual([]);
  expect((await call('rack')).body.power).toBe('On');
});

it('says in one line that the controller does not answer, and that its power cannot be read', async () => {
  const plug = await create('away', { addresses: ['192.0.2.3'] });
  plugs.splice(plugs.indexOf(plug), 1);
  await plug[Symbol.asyncDispose]();
  const { status, text } = await call('away/off');
  expect([status, text]).toEqual([502, expect.stringMatching(/^Off failed: [^\r\n]+$/)]);
  await waitForPower('away', 'Error');
});
