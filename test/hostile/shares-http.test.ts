/** Callers who take the share of others at the HTTP API: what another user and the probes feel, beside the same requests without them. */
import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { afterAll, beforeAll, expect, it } from 'vitest';
import type { Cluster } from '../../hack/cluster/index.ts';
import type { ServerProcess } from '../../hack/cluster/program.ts';
import { waitFor } from '../../hack/wait.ts';
import { sharedCluster } from '../support/cluster.ts';
import { accountToken } from '../support/members.ts';
import { HTTPClient } from '../wires/httpapi.ts';
import type { BodyAttack } from './support/bodyattack.ts';

/** Number of connections of the attacker. */
const CONNECTIONS = 48;
/** Number of requests of the other user that are measured. */
const REQUESTS = 60;
const ATTACK = join(import.meta.dirname, 'support', 'bodyattack.ts');
/** Longest time of the other user's requests beside the attack, as a multiple of the time without it. */
const RATIO = 3;
/** Times below this number are noise of a busy machine, also in a quiet run. */
const NOISE_MILLISECONDS = 80;
/** Time limit of a probe: the promise to the kubelet, which would restart the server. */
const PROBE_MILLISECONDS = 1_000;

const namespace = `platform-shares-${randomBytes(4).toString('hex')}`;
const VMS = `/api/v1/namespaces/${namespace}/vms`;

let cluster: Cluster;
let server: ServerProcess;
let api: HTTPClient;
const tokens = { member: '', stranger: '', greedy: '' };

beforeAll(async () => {
  cluster = await sharedCluster();
  await cluster.createNamespace(namespace);
  server = await cluster.startServer({ name: `server-${namespace}` });
  api = new HTTPClient(server);
  tokens.member = await accountToken(cluster, { namespace, name: 'member' }, { role: 'edit' });
  tokens.greedy = await accountToken(cluster, { namespace, name: 'greedy' }, { role: 'edit' });
  tokens.stranger = await accountToken(cluster, { namespace, name: 'stranger' });
  for (const token of [tokens.member, tokens.greedy]) {
    await waitFor('the rights', async () => (await api.call(VMS, { token })).status === 200);
  }
});

afterAll(async () => {
  await api?.close();
  await server?.process.stop();
  await cluster?.kubectl(['delete', 'namespace', namespace, '--wait=false']);
  await cluster?.disconnect();
});

async function timed(work: () => Promise<unknown>): Promise<number> {
  const begun = performance.now();
  await work();
  return performance.now() - begun;
}

/** Returns the time below which 95 % of the member's requests are, and the longest time of a probe, in milliseconds. */
async function measure(): Promise<{ member: number; probe: number }> {
  const client = new HTTPClient(server);
  const times: number[] = [];
  let probe = 0;
  try {
    for (let count = 0; count < REQUESTS; count += 1) {
      times.push(
        await timed(async () => expect((await client.call(VMS, { token: tokens.member })).status).toBe(200)),
      );
      probe = Math.max(
        probe,
        await timed(async () =>
          expect((await fetch(`${server.process.healthUrl}/healthz`)).status).toBe(200),
        ),
      );
    }
  } finally {
    await client.close();
  }
  return { member: times.toSorted((a, b) => a - b)[Math.floor(REQUESTS * 0.95)] ?? 0, probe };
}

it.each([
  ['a caller without any right', 'stranger', '403'],
  ['a member of the namespace', 'greedy', '413'],
] as const)(
  'expensive bodies of %s are refused, and delay neither others nor the probes',
  async (_, who, refusal) => {
    const quiet = await measure();
    const attack: BodyAttack = {
      authority: server.authority,
      url: server.url + VMS,
      token: tokens[who],
      connections: CONNECTIONS,
    };
    const attacker = spawn(process.execPath, [ATTACK, JSON.stringify(attack)], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    const outcomes = new Set<string>();
    createInterface(attacker.stdout).on('line', (line) => outcomes.add(line));
    try {
      await waitFor('the first answer to the attacker', () => outcomes.size > 0);
      const beside = await measure();
      expect(beside.probe).toBeLessThan(PROBE_MILLISECONDS);
      expect(beside.member).toBeLessThan(RATIO * Math.max(NOISE_MILLISECONDS, quiet.member));
    } finally {
      attacker.kill('SIGKILL');
    }
    expect([...outcomes]).toEqual([refusal]);
  },
);
