/** The operator with controllers as in life: Redfish over TLS, IPMI over lanplus, and URLs over TLS. Users work with kubectl. */
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { hashSync } from 'bcryptjs';
import { pino } from 'pino';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { SYSTEM_NAMESPACE } from '../../api/v1alpha1/names.ts';
import { SERVERS } from '../../api/v1alpha1/resources.ts';
import type { PowerAction, Server, ServerController } from '../../api/v1alpha1/server.ts';
import { SERVER_USERS_SECRET } from '../../api/v1alpha1/serverusers.ts';
import { type Authority, createAuthority } from '../../hack/cluster/authority.ts';
import { type Cluster, startCluster } from '../../hack/cluster/index.ts';
import { waitFor } from '../../hack/wait.ts';
import { SECRETS } from '../../kube/core.ts';
import { Informer } from '../../kube/informer.ts';
import { HTTPClient } from '../wires/httpapi.ts';
import { basic } from '../worlds/power.ts';
import { CREDENTIALS, startIpmi, startRedfish, startWebhook } from '../worlds/powercontrollers.ts';

/** Time limit of one reading of the power and of what follows from it. The operator reads every 30 s, and a call can take 10 s. */
const READING = { deadlineMilliseconds: 90_000 };
/** Time limit of an action. A reboot has two commands, and each has its effect within 11 s and at a reading 5 s later. */
const ACTION = { deadlineMilliseconds: 120_000 };
/** Least cost of bcrypt. A check with it takes 2 ms. */
const LEAST_COST = 4;
/** Number of created Servers. Each has another address. */
let created = 0;
/** Time of the last requested action. Each action gets a later one. */
let requestedAt = Math.floor(Date.now() / 1_000) * 1_000;

let cluster: Cluster;
let api: HTTPClient;
let folder: string;
let authority: Authority;
const stopping = new AbortController();
/** Different values of `status.power` and of the result of the last action, by the name of the Server. */
const seen = new Map<string, string[]>();

beforeAll(async () => {
  authority = await createAuthority('berth power');
  folder = await mkdtemp(join(tmpdir(), 'berth-controllers-'));
  const file = join(folder, 'authority.crt');
  await writeFile(file, authority.certificate);
  cluster = await startCluster({ name: `server-controllers-${process.pid}` });
  const informer = new Informer(cluster.client(), SERVERS, { logger: pino({ level: 'silent' }) });
  informer.cache.onChange(({ object }) => record(object));
  informer.start(stopping.signal);
  await informer.synced;
  // The URLs of a webhook have no authority of their own.
  await cluster.startOperator({ environment: { NODE_EXTRA_CA_CERTS: file } });
  const users = `--from-literal=htpasswd=ann:${hashSync('correct horse', LEAST_COST)}`;
  await cluster.kubectl(['create', 'secret', 'generic', SERVER_USERS_SECRET, '-n', SYSTEM_NAMESPACE, users]);
  const server = await cluster.startServer({ config: { power: { enabled: true } } });
  api = new HTTPClient({ ...server, url: server.powerUrl });
});

afterAll(async () => {
  stopping.abort(new Error('the test is over'));
  await api?.close();
  await cluster?.stop();
  await rm(folder, { recursive: true, force: true });
});

function record({ metadata: { name }, status }: Readonly<Server>): void {
  const { power, lastAction } = status ?? {};
  const state = [power, lastAction?.action, lastAction?.result].filter((one) => one !== undefined).join(' ');
  const states = seen.get(name) ?? [];
  seen.set(name, states);
  if (state !== '' && states.at(-1) !== state) {
    states.push(state);
  }
}

async function createSecret(name: string, { username, password } = CREDENTIALS): Promise<void> {
  const literals = [`--from-literal=username=${username}`, `--from-literal=password=${password}`];
  const type = '--type=kubernetes.io/basic-auth';
  await cluster.kubectl(['create', 'secret', 'generic', name, '-n', SYSTEM_NAMESPACE, type, ...literals]);
}

async function createServer(name: string, controller: ServerController): Promise<void> {
  created += 1;
  const spec = { addresses: [`192.0.2.${created}`], controller: { ...controller, secretName: name } };
  await cluster.client().create(SERVERS, { metadata: { name }, spec });
}

async function read(name: string): Promise<Server> {
  return await cluster.client().get(SERVERS, { name });
}

async function ready(name: string): Promise<{ status?: string; reason?: string; message?: string }> {
  return (await read(name)).status?.conditions?.find(({ type }) => type === 'Ready') ?? {};
}

/** Requests an action as the page for users says, and resolves with its result. */
async function act(name: string, action: PowerAction): Promise<string> {
  requestedAt += 1_000;
  const time = new Date(requestedAt).toISOString().replace('.000', '');
  const patch = JSON.stringify({ spec: { powerAction: { action, requestedAt: time } } });
  await cluster.kubectl(['patch', 'server', name, '--type=merge', '--patch', patch]);
  return await waitFor(
    `${action} of ${name} to end`,
    async () => {
      const { lastAction } = (await read(name)).status ?? {};
      const isOver = lastAction?.id === time && lastAction.completedAt !== undefined;
      return isOver ? `${lastAction.result}${lastAction.message && `: ${lastAction.message}`}` : undefined;
    },
    ACTION,
  );
}

const WAYS = [
  ['redfish', startRedfish],
  ['ipmi', startIpmi],
  ['webhook', startWebhook],
] as const;

// Most of their time is waiting for the next reading of the power.
describe.concurrent('a Server', () => {
  it.each(WAYS)('with %s is switched on, rebooted and switched off, state by state', async (way, start) => {
    const name = `${way}-states`;
    await using world = await start({ authority });
    await createSecret(name);
    await createServer(name, world.controller);
    await waitFor('the first reading', async () => (await read(name)).status?.power === 'Off', READING);
    expect(await ready(name)).toMatchObject({ status: 'True', reason: 'ControllerAnswers' });
    for (const action of ['On', 'Reboot', 'Off'] as const) {
      expect(await act(name, action)).toBe(`Succeeded: The controller of Server ${name} confirmed ${action}`);
    }
    const states = seen.get(name) ?? [];
    const ends = ['On On Succeeded', 'On Reboot Succeeded', 'Off Off Succeeded'];
    expect(states.filter((state) => state.endsWith('Succeeded'))).toEqual(ends);
    // A controller can confirm a reboot before the operator has written that it accepted it. Then no state has the power Rebooting.
    const rebooting = states.filter((state) => state.startsWith('Rebooting'));
    expect(['Rebooting Reboot Running', undefined]).toContain(rebooting[0]);
    expect(rebooting.length).toBeLessThan(2);
    expect(await act(name, 'Off')).toBe(`Succeeded: Server ${name} is already off`);
    expect((await ready(name)).status).toBe('True');
  });

  it('answers a client of the power API with True when its controller has accepted, and the power follows', async () => {
    const name = 'power-api';
    await using world = await startRedfish({ authority });
    await createSecret(name);
    await createServer(name, world.controller);
    const call = async (path: string) =>
      await api.call(`/core/api/servers/${path}`, { headers: basic('ann', 'correct horse') });
    const until = async (power: string): Promise<void> => {
      await waitFor(`the power ${power}`, async () => (await call(name)).body.power === power, READING);
    };
    await until('Off');
    for (const [action, between, power] of [
      ['on', 'Off', 'On'],
      ['Reboot', 'Rebooting', 'On'],
    ] as const) {
      expect((await call(`${name}/${action}`)).text).toBe('True');
      // The emulator changes the power after a second at the earliest.
      expect((await call(name)).body.power).toBe(between);
      await until(power);
    }
    await world.stop();
    const { status, text } = await call(`${name}/Off`);
    expect({ status, text }).toMatchObject({
      status: 502,
      text: expect.stringMatching(/ECONNREFUSED/) as string,
    });
  });

  it.each(WAYS)(
    'with %s tells a wrong password until it is corrected, and an absent controller',
    async (way, start) => {
      const name = `${way}-faults`;
      await using world = await start({ authority });
      await createSecret(name, { ...CREDENTIALS, password: 'wrong' });
      await createServer(name, world.controller);
      const becomes = async (reason: string): Promise<string> =>
        await waitFor(
          `the reason ${reason}`,
          async () => {
            const now = await ready(name);
            return now.reason === reason ? `${(await read(name)).status?.power}: ${now.message}` : undefined;
          },
          READING,
        );
      expect(await becomes('CredentialsRefused')).toMatch(/^Error: .*(401|HMAC)/);
      const data = { password: Buffer.from(CREDENTIALS.password).toString('base64') };
      await cluster.client().mergePatch(SECRETS, { namespace: SYSTEM_NAMESPACE, name }, { data });
      // An action reads the power at once, with the present Secret.
      expect(await act(name, 'Off')).toBe(`Succeeded: Server ${name} is already off`);
      await world.stop();
      // One of them waits for the next reading, and the others read by an action.
      const reported = way === 'webhook' ? becomes('ControllerUnreachable') : act(name, 'On');
      expect(await reported).toMatch(/^(Error|Failed): .*(ECONNREFUSED|Unable to establish)/);
    },
  );

  it.each(WAYS.filter(([way]) => way !== 'ipmi'))(
    'with %s does not talk to a controller whose certificate has another name',
    async (way, start) => {
      const name = `${way}-other`;
      await using world = await start({ authority, otherName: 'other.example' });
      await createSecret(name);
      await createServer(name, world.controller);
      await waitFor(
        'the certificate to be refused',
        async () => (await ready(name)).reason === 'CertificateRefused',
        READING,
      );
      expect((await read(name)).status?.power).toBe('Error');
      expect(await act(name, 'On')).toMatch(
        /^Failed: .*the certificate is not trusted: Hostname\/IP does not match/,
      );
    },
  );
});
