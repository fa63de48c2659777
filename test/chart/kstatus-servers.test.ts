/** Servers as clients see them that wait for objects. See kstatus.test.ts. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { SERVERS } from '../../api/v1alpha1/resources.ts';
import type { PowerAction, ServerSpec } from '../../api/v1alpha1/server.ts';
import { timestamp } from '../../base/time.ts';
import { type Cluster, startCluster } from '../../hack/cluster/index.ts';
import { untilReported } from '../fixtures/objects.ts';
import { VMs } from '../fixtures/vms.ts';
import { Health } from '../support/health.ts';
import { ActingHost } from '../worlds/actinghost.ts';
import { Plug } from '../worlds/plug.ts';

let folder: string;
let health: Health;
let cluster: Cluster;
let host: ActingHost;
let plug: Plug;
let count = 0;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-health-'));
  health = await Health.open(folder);
  cluster = await startCluster({ name: `kstatus-servers-${process.pid}`, operator: true });
  host = await ActingHost.join(cluster.client(), 'bare');
  plug = await Plug.start();
});

afterAll(async () => {
  await plug?.[Symbol.asyncDispose]();
  await host?.silence();
  await cluster?.stop();
  await rm(folder, { recursive: true });
});

async function create(name: string, spec: Partial<ServerSpec> = {}): Promise<void> {
  count += 1;
  const addresses = [`192.0.2.${count}`];
  await cluster
    .client()
    .create(SERVERS, { metadata: { name }, spec: { addresses, controller: plug.controller, ...spec } });
}

function asked(action: PowerAction) {
  return { action, requestedAt: timestamp(Date.now()) };
}

/** States of a Server: its spec, the reason or condition that it gets, its verdict, and words of its message. */
const STATES: readonly (readonly [string, () => Partial<ServerSpec>, string, string, RegExp])[] = [
  ['read', () => ({}), 'Ready', 'Current Healthy', /tells the power/],
  [
    'switched',
    () => ({ powerAction: asked('On') }),
    'ControllerAnswers',
    'Current Healthy',
    /tells the power/,
  ],
  [
    'refused',
    () => ({ nodeName: 'bare', powerAction: asked('Off') }),
    'PowerActionRefused',
    'Failed Degraded',
    /^1 machine runs on host bare$/,
  ],
  [
    'away',
    () => ({ controller: { redfish: { endpoint: 'https://127.0.0.1:9' } } }),
    'ControllerUnreachable',
    'InProgress Progressing',
    /ECONNREFUSED/,
  ],
  [
    'twin',
    () => ({ addresses: ['192.0.2.1'] }),
    'AddressInUse',
    'Failed Degraded',
    /Server read already has the address 192\.0\.2\.1/,
  ],
];

it('a Server is finished when its power is read and its declared action is done, and says why it is not', async () => {
  const vms = new VMs(cluster);
  await vms.create('runs', { placement: { node: 'bare' } });
  await host.waitForPod({ namespace: vms.namespace, name: 'runs' });
  await host.run({ namespace: vms.namespace, name: 'runs' });
  for (const [name, spec, word] of STATES) {
    await create(name, spec());
    await untilReported(`Server ${name}`, () => cluster.client().get(SERVERS, { name }), word);
  }
  const objects = await Promise.all(STATES.map(([name]) => cluster.client().get(SERVERS, { name })));
  const verdicts = await health.judge(objects);
  const found = STATES.map(([name], index) => {
    const { kstatus, script } = verdicts[index] ?? {};
    return `${name}: ${kstatus} ${script}`;
  });
  expect(found).toEqual(STATES.map(([name, , , verdict]) => `${name}: ${verdict}`));
  for (const [index, [name, , , , says]] of STATES.entries()) {
    expect.soft(verdicts[index]?.reported, name).toMatch(says);
  }
});

it('a Server that waits for its VMs is in progress, and the message says how long', async () => {
  const policy = { whenOccupied: 'Wait', waitSeconds: 3_600 } as const;
  await cluster.client().delete(SERVERS, { name: 'refused' });
  await create('waiting', { nodeName: 'bare', policy, powerAction: asked('Off') });
  const read = () => cluster.client().get(SERVERS, { name: 'waiting' });
  await untilReported('Server waiting', read, 'PowerActionWaiting');
  const [verdict] = await health.judge([await read()]);
  expect(verdict).toMatchObject({ kstatus: 'InProgress', script: 'Progressing' });
  expect(verdict?.message).toMatch(/^1 machine runs on host bare\. Berth waits until /);
});
