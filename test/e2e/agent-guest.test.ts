/** A VM on a real host: control plane, operator, agent and a QEMU guest, through what can happen to each. */
import { existsSync } from 'node:fs';
import { copyFile, mkdir, readdir } from 'node:fs/promises';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { isAlive, killForCertain, type ProcessIdentity } from '../../agent/machines/process.ts';
import { guestImage } from '../../hack/guest-image.ts';
import { AgentProcess, endMachines } from '../cluster/agent.ts';
import { type Cluster, startCluster } from '../cluster/index.ts';
import { waitFor } from '../support/wait.ts';

const NAMESPACE = 'platform-default';
/** An emulated guest on a busy machine; on an idle one it takes 5 s. */
const BOOT = { deadlineMilliseconds: 90_000, intervalMilliseconds: 250 };

let cluster: Cluster;
let agent: AgentProcess;
let port: number;

beforeAll(async () => {
  const image = await guestImage('amd64', (text) => process.stderr.write(`guest image: ${text}\n`));
  cluster = await startCluster({ name: `guest-${process.pid}`, operator: true });
  const shared = join(cluster.directory, 'images');
  await mkdir(shared);
  await copyFile(image, join(shared, 'guest.qcow2'));
  agent = await AgentProcess.start(cluster, {
    nodeName: 'host',
    config: { architecture: 'amd64', cpuOvercommit: 8, images: { sharedRoots: [shared] } },
  });
  port = await freePort();
  await apply('Image', 'guest', { source: { sharedFile: { path: 'guest.qcow2' } } });
}, 300_000);

afterAll(async () => {
  await agent?.stop();
  if (cluster !== undefined) {
    await endMachines(cluster.directory);
    await cluster.stop();
  }
});

async function freePort(): Promise<number> {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const address = server.address();
  await new Promise((resolve) => server.close(resolve));
  return typeof address === 'object' && address !== null ? address.port : 0;
}

async function apply(kind: 'Image' | 'VM', name: string, spec: object): Promise<void> {
  const object = { apiVersion: 'berth.dev/v1alpha1', kind, metadata: { name, namespace: NAMESPACE }, spec };
  await cluster.kubectl(['apply', '-f', '-'], { input: JSON.stringify(object) });
}

async function kubectl(...args: string[]): Promise<string> {
  return (await cluster.kubectl(['-n', NAMESPACE, ...args])).stdout;
}

async function makeVM(name: string, spec: object = {}): Promise<void> {
  const readiness = { type: 'Port', port: 80 };
  await apply('VM', name, {
    image: 'guest',
    cpu: 1,
    memory: '256Mi',
    ports: [`${port}:80`],
    readiness,
    ...spec,
  });
}

async function setPower(name: string, powerState: string): Promise<void> {
  await kubectl('patch', 'vm', name, '--type=merge', '-p', JSON.stringify({ spec: { powerState } }));
}

async function phase(name: string): Promise<string> {
  return kubectl('get', 'vm', name, '-o', 'jsonpath={.status.phase}');
}

async function ready(name: string): Promise<void> {
  await waitFor(
    `VM ${name} to be Ready`,
    async () =>
      (await kubectl('get', 'vm', name, '-o', 'jsonpath={.status.conditions[?(@.type=="Ready")].status}')) ===
      'True',
    BOOT,
  );
}

async function page(): Promise<string> {
  return (await fetch(`http://127.0.0.1:${port}/`)).text();
}

async function theMachine(): Promise<ProcessIdentity> {
  return waitFor('one machine', async () => {
    const machines = [...(await agent.machines()).values()];
    return machines.length === 1 ? machines[0] : undefined;
  });
}

/** Nothing of any machine is on the host, and its port is free. */
async function nothingLeft(machine: ProcessIdentity): Promise<void> {
  expect(await isAlive(machine)).toBe(false);
  expect(await readdir(join(agent.dataDirectory, 'machines'))).toEqual([]);
  expect(await readdir(join(agent.dataDirectory, 'pods'))).toEqual([]);
  await expect(page()).rejects.toThrow('fetch failed');
}

test('runs, answers on its reserved port, tells its story and its console, and is deleted without a trace', async () => {
  await makeVM('whole');
  await ready('whole');
  expect(await page()).toContain('boots=1');
  expect(await kubectl('logs', 'whole')).toContain('berth-guest: ready');
  expect(await kubectl('logs', 'whole', '--tail=1', '--timestamps')).toMatch(/^\d{4}-\d\d-\d\dT\S+Z /);
  const story = await kubectl('describe', 'pod', 'whole');
  expect(story).toContain('Pulled');
  expect(story).toContain('Started');
  const machine = await theMachine();
  const began = performance.now();
  await kubectl('delete', 'vm', 'whole');
  // The guest obeys its power button: far less than its grace of 30 s.
  expect(performance.now() - began).toBeLessThan(20_000);
  await nothingLeft(machine);
}, 180_000);

test('outlives its agent: killed while it runs, the next one goes on with the same process', async () => {
  await makeVM('kept');
  await ready('kept');
  const machine = await theMachine();
  await agent.kill('SIGKILL');
  await agent.startAgain();
  await agent.ready();
  expect(await theMachine()).toEqual(machine);
  expect(await page()).toContain('boots=1');
  await ready('kept');

  // A power cut of the host: all its processes end, then the agent starts again.
  await agent.powerOff();
  await agent.startAgain();
  await waitFor('the second boot of the same disk', async () => (await page()).includes('boots=2'), BOOT);
  await ready('kept');

  // The hypervisor dies alone: the guest's end, and with restartPolicy Never the VM's.
  await killForCertain(await theMachine());
  await waitFor('VM kept to be Failed', async () => (await phase('kept')) === 'Failed');
  expect(await kubectl('get', 'vm', 'kept', '-o', 'jsonpath={.status.failure.message}')).toContain('SIGKILL');
  const pod = await kubectl('get', 'pod', 'kept', '-o', 'jsonpath={.metadata.uid}');
  expect(existsSync(join(agent.dataDirectory, 'machines', pod, 'disk.qcow2'))).toBe(true);
  await kubectl('delete', 'vm', 'kept');
  expect(await readdir(join(agent.dataDirectory, 'machines'))).toEqual([]);
}, 300_000);

test('is stopped and started in place, and what cannot start says what QEMU said', async () => {
  await makeVM('power');
  await ready('power');
  await setPower('power', 'Stopped');
  await waitFor('VM power to be Stopped', async () => (await phase('power')) === 'Stopped');
  await expect(page()).rejects.toThrow('fetch failed');
  await setPower('power', 'Running');
  await ready('power');
  expect(await page()).toContain('boots=2');
  await kubectl('delete', 'vm', 'power');

  // A reserved port that something else on the host has taken.
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(port, '127.0.0.1', resolve));
  try {
    await makeVM('taken');
    await waitFor('an Event PortTaken', async () =>
      (await kubectl('get', 'events', '-o', 'jsonpath={.items[*].reason}')).includes('PortTaken'),
    );
  } finally {
    server.close();
  }
  await kubectl('delete', 'vm', 'taken');
}, 300_000);
