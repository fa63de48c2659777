/** The operator as a Pod runs it: from its image, with the files of a ServiceAccount, without rights and without a writable folder. */
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { get } from 'node:http';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { stringify } from 'yaml';
import { type Cluster, startCluster } from '../../hack/cluster/index.ts';
import { freePorts } from '../../hack/cluster/ports.ts';
import { componentToken } from '../../hack/cluster/tokens.ts';
import { VMs } from '../fixtures/vms.ts';
import { waitFor } from '../../hack/wait.ts';
import { Container, type Mount } from './container.ts';
import { ContainerHost } from './host.ts';
import { isError } from '../support/loglines.ts';
import { image, unfit } from './provided.ts';

const SERVICE_ACCOUNT = '/var/run/secrets/kubernetes.io/serviceaccount';
/** Time from the request for a container to the operator's first write. */
const FIRST_RECONCILE_MILLISECONDS = 2_000;
/** Largest number of attempts, of which the best counts, because other tests may use the processors. */
const STARTS = 10;
/** Time limit of an operator's start on a busy machine. */
const READY = { deadlineMilliseconds: 90_000 };

let cluster: Cluster;
let host: ContainerHost;
let mounts: Mount[];
let healthPort: number;
let operator: Container | undefined;

beforeAll(async () => {
  if (unfit !== undefined) {
    return;
  }
  cluster = await startCluster({ name: `oci-operator-${process.pid}` });
  host = await ContainerHost.start(cluster.directory);
  mounts = await makeMounts();
});

afterAll(async () => {
  await operator?.remove();
  await cluster?.stop();
});

/** Writes the files that a kubelet mounts: the account's token, and the configuration. */
async function makeMounts(): Promise<Mount[]> {
  const account = join(cluster.directory, 'serviceaccount');
  const configuration = join(cluster.directory, 'configuration');
  await mkdir(account);
  await mkdir(configuration);
  await writeFile(join(account, 'token'), await componentToken(cluster.client(), 'berth-operator', false));
  await writeFile(join(account, 'namespace'), 'berth-system');
  await writeFile(join(account, 'ca.crt'), await readFile(join(cluster.directory, 'pki', 'ca.crt')));
  const [metrics, health] = (await freePorts(2)) as [number, number];
  healthPort = health;
  const config = {
    metrics: { address: `127.0.0.1:${metrics}` },
    health: { address: `127.0.0.1:${health}` },
  };
  await writeFile(join(configuration, 'operator.yaml'), stringify(config));
  return [
    { source: account, destination: SERVICE_ACCOUNT },
    { source: configuration, destination: '/etc/berth' },
  ];
}

async function start(name: string): Promise<Container> {
  const { hostname, port } = new URL(cluster.server);
  const environment = { KUBERNETES_SERVICE_HOST: hostname, KUBERNETES_SERVICE_PORT: port };
  return await Container.start(host, { name, image: image('operator'), environment, mounts });
}

async function readyz(): Promise<string> {
  return await new Promise((resolve, reject) => {
    get(`http://127.0.0.1:${healthPort}/readyz`, (response) => {
      text(response).then((body) => resolve(`${response.statusCode} ${body.trim()}`), reject);
    }).once('error', reject);
  });
}

/** Starts an operator, ends it, and returns the milliseconds until its first write. */
async function firstReconcile(name: string): Promise<number> {
  // A new host has no slots yet, so the first write of the operator gives it slots.
  await cluster.addHosts(1, { slots: undefined });
  const started = await start(name);
  try {
    const act = await waitFor(
      'the first reconcile',
      () => started.log().find(({ msg }) => msg === 'setting the resources of a host'),
      READY,
    );
    await started.stop();
    return Date.parse(act.time) - started.askedAt;
  } catch (error) {
    throw new Error(started.readLogTail(), { cause: error });
  } finally {
    await started.remove();
  }
}

test('acts within 2 s of its start', async ({ skip }) => {
  if (unfit !== undefined) {
    skip(unfit);
  }
  const times: number[] = [];
  const isFast = (): boolean => Math.min(...times) < FIRST_RECONCILE_MILLISECONDS;
  for (let round = 0; round < STARTS && !isFast(); round += 1) {
    times.push(await firstReconcile(`operator-${round}`));
  }
  process.stderr.write(`start to first reconcile: ${times.map((time) => `${time} ms`).join(', ')}\n`);
  expect(Math.min(...times)).toBeLessThan(FIRST_RECONCILE_MILLISECONDS);
});

test('runs a VM on a simulated host', async ({ skip }) => {
  if (unfit !== undefined) {
    skip(unfit);
  }
  operator = await start('operator');
  await waitFor('the operator to be ready', async () => (await readyz()).startsWith('200'), READY);
  const vms = new VMs(cluster);
  await vms.create('x');
  await vms.waitForPhase('x', 'Running', undefined, READY);
  expect(operator.log().filter(isError)).toEqual([]);
});

test('needs no rights of the machine, and writes no files', async ({ skip }) => {
  if (unfit !== undefined) {
    skip(unfit);
  }
  const status = await operator?.proc('status');
  expect(status).toMatch(/^Uid:\t65532\t65532\t65532\t65532$/m);
  expect(status).toMatch(/^Gid:\t65532\t65532\t65532\t65532$/m);
  expect(status).toMatch(/^CapEff:\t0+$/m);
  expect(status).toMatch(/^CapBnd:\t0+$/m);
  expect(status).toMatch(/^NoNewPrivs:\t1$/m);
  const tables = (await operator?.proc('mountinfo'))?.trim().split('\n') ?? [];
  const files = tables
    .map((line) => line.split(' '))
    .filter((fields) => fields.at(-3) === 'ext4' || fields[4] === '/');
  expect(files.length).toBeGreaterThan(0);
  for (const fields of files) {
    expect(fields[5]).toMatch(/^ro(,|$)/);
  }
});

test('ends when asked to, and releases its Lease', async ({ skip }) => {
  if (unfit !== undefined) {
    skip(unfit);
  }
  await operator?.stop();
  const lease = await cluster.kubectl([
    '-n',
    'berth-system',
    'get',
    'lease',
    'berth-operator',
    '-o',
    'jsonpath={.spec.holderIdentity}',
  ]);
  expect(lease.stdout).toBe('');
});
