import { type ChildProcess, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { pino } from 'pino';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { CONFIG_MAPS, LEASES } from '../../kube/core.ts';
import { Informer } from '../../kube/informer.ts';
import type { Cluster } from '../../hack/cluster/index.ts';
import { sharedCluster } from '../support/cluster.ts';
import { waitFor } from '../../hack/wait.ts';

const namespace = `kube-lease-${randomBytes(4).toString('hex')}`;
const PROGRAM = fileURLToPath(new URL('kube-candidate.ts', import.meta.url));

interface Candidate {
  identity: string;
  process: ChildProcess;
  said: string[];
}

let cluster: Cluster;
let name: string;
let candidates: Candidate[];
let end: AbortController;

async function start(identity: string): Promise<Candidate> {
  const child = spawn(process.execPath, [PROGRAM, cluster.kubeconfig, namespace, name, identity], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const said: string[] = [];
  createInterface({ input: child.stdout }).on('line', (line) => said.push(line));
  const candidate = { identity, process: child, said };
  candidates.push(candidate);
  await saying(candidate, 'started');
  return candidate;
}

async function saying(candidate: Candidate, what: string, deadlineMilliseconds = 60_000): Promise<void> {
  await waitFor(
    `${candidate.identity} to say "${what}"; it said ${candidate.said.join(', ')}`,
    () => candidate.said.includes(what),
    {
      deadlineMilliseconds,
      intervalMilliseconds: 10,
    },
  );
}

async function writer(): Promise<string | undefined> {
  return (await cluster.client().get(CONFIG_MAPS, { namespace, name })).data?.writer;
}

/** Starts two candidates. The first leads and writes. The second stands by and has seen the lease. */
async function startTwo(): Promise<[Candidate, Candidate]> {
  const first = await start('first');
  await saying(first, 'leading');
  await waitFor('the first to write', async () => (await writer()) === 'first');
  const second = await start('second');
  const renewals = new Set<string | undefined>();
  await waitFor('two renewals with the second watching', async () => {
    const lease = await cluster.client().get(LEASES, { namespace, name });
    return renewals.add(lease.spec?.renewTime).size > 2;
  });
  expect(second.said).toEqual(['started']);
  return [first, second];
}

/** Returns the names of the writers, in the order of the server's history. */
async function followWriters(): Promise<(string | undefined)[]> {
  const writers: (string | undefined)[] = [];
  const informer = new Informer(cluster.client(), CONFIG_MAPS, {
    namespace,
    fieldSelector: `metadata.name=${name}`,
    logger: pino({ level: 'silent' }),
  });
  informer.cache.onChange(({ object }) => writers.push(object.data?.writer));
  informer.start(end.signal);
  await informer.synced;
  return writers;
}

beforeAll(async () => {
  cluster = await sharedCluster();
  await cluster.createNamespace(namespace);
});

afterAll(async () => {
  await cluster.kubectl(['delete', 'namespace', namespace, '--wait=false']);
});

beforeEach(async () => {
  name = `lease-${randomBytes(4).toString('hex')}`;
  candidates = [];
  end = new AbortController();
  await cluster.client().create(CONFIG_MAPS, { metadata: { name, namespace } });
});

afterEach(() => {
  end.abort();
  for (const { process: child } of candidates) {
    child.kill('SIGKILL');
  }
});

describe('leader election', () => {
  it('hands over within 2 s when the leader stops cleanly', async () => {
    const [first, second] = await startTwo();
    first.process.kill('SIGTERM');
    await saying(second, 'leading', 2_000);
    expect(first.said).not.toContain('lost');
    await waitFor('the second to write', async () => (await writer()) === 'second');
    const lease = await cluster.client().get(LEASES, { namespace, name });
    expect(lease.spec).toMatchObject({
      holderIdentity: 'second',
      leaseDurationSeconds: 9,
      leaseTransitions: 1,
    });
  });

  it('hands over within 15 s when the leader is killed, and not before its lease has ended', async () => {
    const [first, second] = await startTwo();
    const killed = performance.now();
    first.process.kill('SIGKILL');
    await saying(second, 'leading', 15_000);
    expect(performance.now() - killed).toBeGreaterThan(7_000);
  });

  it('a leader that was frozen until its lease ended loses it, and then writes nothing', async () => {
    const [first, second] = await startTwo();
    const writers = await followWriters();
    first.process.kill('SIGUSR2');
    await saying(second, 'leading', 15_000);
    await waitFor('the second to write', async () => (await writer()) === 'second');
    first.process.kill('SIGCONT');
    await saying(first, 'lost');
    await saying(first, 'refused FencedError');
    const count = writers.length;
    await waitFor('more writes of the second', () => writers.length > count + 5);
    expect(first.said.toSorted()).toEqual(['leading', 'lost', 'refused FencedError', 'started']);
    const changes = writers.slice(writers.indexOf('second'));
    expect(new Set(changes), 'the first wrote after the second').toEqual(new Set(['second']));
  });
});
