/** From a client of the power API through the operator to real controllers: the Redfish emulator over TLS, and the IPMI simulator. */
import { hashSync } from 'bcryptjs';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { SYSTEM_NAMESPACE } from '../../api/v1alpha1/names.ts';
import { SERVERS } from '../../api/v1alpha1/resources.ts';
import { SERVER_USERS_SECRET } from '../../api/v1alpha1/serverusers.ts';
import { type Authority, createAuthority } from '../../hack/cluster/authority.ts';
import { type Cluster, startCluster } from '../../hack/cluster/index.ts';
import { waitFor } from '../../hack/wait.ts';
import { SECRETS } from '../../kube/core.ts';
import { type HTTPAnswer, HTTPClient } from '../wires/httpapi.ts';
import { basic } from '../worlds/power.ts';
import { CREDENTIALS, type PowerWorld, startIpmi, startRedfish } from '../worlds/powercontrollers.ts';

/** Least cost of bcrypt. A check with it takes 2 ms. */
const LEAST_COST = 4;
const ANN = basic('ann', 'correct horse');
/** Largest time until a state is seen: a reading each 30 s, a call of 10 s, and the delay of the emulator. */
const SEEN = { deadlineMilliseconds: 90_000 };

let cluster: Cluster;
let authority: Authority;
let api: HTTPClient;

beforeAll(async () => {
  authority = await createAuthority('controllers');
  cluster = await startCluster({ name: `power-whole-${process.pid}`, operator: true });
  await cluster.client().create(SECRETS, {
    metadata: { namespace: SYSTEM_NAMESPACE, name: SERVER_USERS_SECRET },
    stringData: { htpasswd: `ann:${hashSync('correct horse', LEAST_COST)}\n` },
  });
  const server = await cluster.startServer({ config: { power: { enabled: true } } });
  api = new HTTPClient({ ...server, url: server.powerUrl });
});

afterAll(async () => {
  await api?.close();
  await cluster?.stop();
});

async function call(path: string): Promise<HTTPAnswer> {
  return await api.call(`/core/api/servers/${path}`, { headers: ANN });
}

async function until(name: string, power: string): Promise<void> {
  await waitFor(`the power ${power}`, async () => (await call(name)).body.power === power, SEEN);
}

interface Way {
  readonly name: string;
  readonly address: string;
  readonly world: PowerWorld;
  /** Words of the controller about a wrong password, and of the driver about a controller that is away. */
  readonly refused: RegExp;
  readonly away: RegExp;
}

let ways: Way[];

beforeAll(async () => {
  const [redfish, ipmi] = await Promise.all([startRedfish({ authority }), startIpmi({ authority })]);
  ways = [
    { name: 'redfish', address: '192.0.2.21', world: redfish, refused: /401/, away: /ECONNREFUSED/ },
    { name: 'ipmi', address: '192.0.2.22', world: ipmi, refused: /RAKP 2/, away: /Unable to establish/ },
  ];
  for (const { name, address, world } of ways) {
    await create(name, address, world, CREDENTIALS.password);
  }
});

afterAll(async () => {
  await Promise.all(ways?.map(({ world }) => world[Symbol.asyncDispose]()) ?? []);
});

async function create(
  name: string,
  address: string,
  { controller }: PowerWorld,
  password: string,
): Promise<void> {
  await cluster.client().create(SECRETS, {
    metadata: { namespace: SYSTEM_NAMESPACE, name },
    type: 'kubernetes.io/basic-auth',
    stringData: { username: CREDENTIALS.username, password },
  });
  const spec = { addresses: [address], controller: { ...controller, secretName: name } };
  await cluster.client().create(SERVERS, { metadata: { name }, spec });
}

it('a server is switched on, rebooted and switched off: True at the acceptance, and the power follows', async () => {
  await Promise.all(
    ways.map(async ({ name, address }) => {
      await until(name, 'Off');
      for (const [action, between, power] of [
        ['on', 'Off', 'On'],
        ['Reboot', 'Rebooting', 'On'],
        ['OFF', 'On', 'Off'],
      ] as const) {
        const { text, status } = await call(`${address}/${action}`);
        expect({ text, status }, `${name} ${action}`).toEqual({ text: 'True', status: 200 });
        if (name === 'redfish') {
          // The emulator changes the power after a second at the earliest.
          expect((await call(name)).body.power, action).toBe(between);
        }
        await until(name, power);
      }
    }),
  );
});

it('a server is Error with a wrong password and while its controller is away, and an action says why', async () => {
  await Promise.all(
    ways.map(async ({ name, address, world, refused, away }) => {
      const other = `${name}-wrong`;
      await create(other, address.replace('.2.', '.3.'), world, 'wrong');
      await until(other, 'Error');
      const wrong = await call(`${other}/On`);
      expect(wrong.status).toBe(502);
      expect(wrong.text).toMatch(refused);
      await world.stop();
      const gone = await call(`${name}/On`);
      expect(gone.status).toBe(502);
      expect(gone.text).toMatch(away);
      await until(name, 'Error');
    }),
  );
});
