/**
 * Lock-outs of the power API from two replicas: failed sign-ins are counted together, and a locked-out source gets nothing. The replicas run
 * with the rights that the chart gives them in the system namespace.
 */
import { randomBytes } from 'node:crypto';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { SYSTEM_NAMESPACE } from '../../api/v1alpha1/names.ts';
import type { Cluster } from '../../hack/cluster/index.ts';
import type { ServerProcess } from '../../hack/cluster/program.ts';
import { waitFor } from '../../hack/wait.ts';
import { type Lease, LEASES } from '../../kube/core.ts';
import { sharedCluster } from '../support/cluster.ts';
import { accountToken } from '../support/members.ts';
import type { HTTPCall, HTTPClient } from '../wires/httpapi.ts';
import { basic, PowerWorld } from '../worlds/power.ts';

const id = randomBytes(4).toString('hex');
const namespace = `platform-lockout-${id}`;
const LIST = '/core/api/servers';
const RIGHT = basic('ann', 'correct horse');
const WRONG = basic('ann', 'wrong');
/** The lock-out of the product lasts 300 s. */
const SECONDS = 10;
/** Time in milliseconds without an answer after which a test takes a request for one that gets none. Answers take a few milliseconds. */
const SILENCE_MILLISECONDS = 2_500;

let cluster: Cluster;
let world: PowerWorld;
let replicas: [ServerProcess, ServerProcess];
let strangerToken: string;

beforeAll(async () => {
  cluster = await sharedCluster();
  await cluster.createNamespace(namespace);
  world = await PowerWorld.create(cluster, SYSTEM_NAMESPACE, { ann: 'correct horse' });
  const options = { lockout: { seconds: SECONDS } };
  replicas = [await world.startReplica(options), await world.startReplica(options)];
  strangerToken = await accountToken(cluster, { namespace, name: 'stranger' });
});

afterAll(async () => {
  await world?.end();
  await cluster?.kubectl(['delete', 'namespace', namespace, '--wait=false']);
  await cluster?.disconnect();
});

/** Returns clients of both replicas that have this address. */
function clientsAt(address: string): [HTTPClient, HTTPClient] {
  return [world.client(replicas[0], address), world.client(replicas[1], address)];
}

/** Returns the status of the answer, or `nothing`. */
async function statusOf(client: HTTPClient, call: HTTPCall): Promise<number | 'nothing'> {
  const signal = AbortSignal.timeout(SILENCE_MILLISECONDS);
  try {
    return (await client.call(LIST, { ...call, signal })).status;
  } catch (error) {
    expect(error).toBe(signal.reason);
    return 'nothing';
  }
}

async function leases(): Promise<Lease[]> {
  const { items } = await cluster
    .client()
    .list(LEASES, { namespace: SYSTEM_NAMESPACE, labelSelector: 'berth.dev/lockout' });
  return items;
}

it('gives the 21st request nothing at both replicas, right credentials or not, and serves others', async () => {
  const [one, two] = clientsAt('127.0.0.31');
  for (let count = 0; count < 20; count += 1) {
    expect([count, await statusOf(count % 2 === 0 ? one : two, { headers: WRONG })]).toEqual([count, 401]);
  }
  const [other] = clientsAt('127.0.0.32');
  const requests = [one, two].flatMap((client) =>
    [{ headers: RIGHT }, { headers: WRONG }, {}, { method: 'HEAD' as const }, { token: strangerToken }].map(
      async (call) => await statusOf(client, call),
    ),
  );
  const answers = await Promise.all([...requests, statusOf(other, { headers: RIGHT })]);
  expect(answers).toEqual([...requests.map(() => 'nothing'), 200]);
  expect((await leases()).map(({ spec }) => [spec?.holderIdentity, spec?.leaseTransitions])).toEqual([
    ['127.0.0.31', 20],
  ]);
  await waitFor('the end of the lock-out', async () => (await statusOf(one, { headers: RIGHT })) === 200);
  await waitFor('the end of the Lease', async () => (await leases()).length === 0);
});

it('answers only 20 of many wrong requests at the same time', async () => {
  const clients = clientsAt('127.0.0.33');
  const answers = await Promise.all(
    Array.from({ length: 40 }, (_, index) => index).map(async (index) => {
      const client = clients[index % 2] as HTTPClient;
      return await statusOf(client, { headers: basic('ann', `wrong-${index % 4}`) });
    }),
  );
  const counts = Object.groupBy(answers, String);
  expect([counts['401']?.length, counts['nothing']?.length, answers.length]).toEqual([20, 20, 40]);
});

it('counts invented tokens and malformed credentials, and a right password does not reset the count', async () => {
  const [one, two] = clientsAt('127.0.0.34');
  for (let count = 0; count < 10; count += 1) {
    expect(await statusOf(one, { token: `invented-${count}` })).toBe(401);
    expect(await statusOf(two, { headers: { authorization: 'Basic !' } })).toBe(401);
    // After the last failure, the source gets nothing.
    expect(await statusOf(two, { headers: RIGHT })).toBe(count === 9 ? 'nothing' : 200);
  }
});

it('does not count missing credentials and missing rights', async () => {
  const [one] = clientsAt('127.0.0.35');
  for (let count = 0; count < 25; count += 1) {
    expect(await statusOf(one, {})).toBe(401);
    expect(await statusOf(one, { token: strangerToken })).toBe(403);
  }
  expect(await statusOf(one, { headers: RIGHT })).toBe(200);
  expect((await leases()).map(({ spec }) => spec?.holderIdentity)).not.toContain('127.0.0.35');
});
