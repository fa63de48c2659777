/** Behaviour of the agent when its cluster or its network fails, against a real API server. The machines are stand-ins. */
import { readdir, writeFile } from 'node:fs/promises';
import { Agent, get } from 'node:https';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { NAT_READY_CONDITION, NETWORK_CONDITION } from '../../../api/v1alpha1/names.ts';
import type { KubeClient } from '../../../kube/client.ts';
import { CERTIFICATE_SIGNING_REQUESTS, EVENTS, NODES, type Pod, PODS } from '../../../kube/core.ts';
import { type Cluster, startCluster } from '../../../hack/cluster/index.ts';
import { waitFor } from '../../../hack/wait.ts';
import { machineFor, operatorClient, podFor, TestHost } from '../../worlds/agenthost.ts';

const NAMESPACE = 'platform-agent-faults';

let cluster: Cluster;
let operator: KubeClient;
const hosts: TestHost[] = [];

beforeAll(async () => {
  cluster = await startCluster({ name: `agent-faults-${process.pid}` });
  await cluster.createNamespace(NAMESPACE);
  operator = await operatorClient(cluster);
});

afterEach(async () => {
  await Promise.all(hosts.splice(0).map((host) => host.remove()));
});

afterAll(async () => {
  await cluster?.stop();
});

async function makeHost(settings: Parameters<typeof TestHost.make>[1]): Promise<TestHost> {
  const host = await TestHost.make(cluster, settings);
  hosts.push(host);
  return host;
}

async function waitForPod(name: string, what: string, test: (pod: Pod) => boolean): Promise<Pod> {
  return await waitFor(`${name} ${what}`, async () => {
    const pod = await operator.get(PODS, { namespace: NAMESPACE, name });
    if (!test(pod)) {
      throw new Error(JSON.stringify(pod.status));
    }
    return pod;
  });
}

function status(pod: Pod, type: string): string | undefined {
  return pod.status?.conditions?.find((one) => one.type === type)?.status;
}

async function natReady(host: TestHost): Promise<string | undefined> {
  const node = await cluster.client().get(NODES, { name: host.name });
  return node.status?.conditions?.find(({ type }) => type === NAT_READY_CONDITION)?.status;
}

test('a host whose certificate request is denied says why and gives up', async () => {
  const host = await makeHost({ name: 'denied' });
  await host.launch({ approve: false });
  const request = await waitFor('a request', async () => {
    const { items } = await cluster.client().list(CERTIFICATE_SIGNING_REQUESTS);
    return items.find(({ metadata }) => metadata.name.includes('-denied-'));
  });
  const denied = {
    type: 'Denied',
    status: 'True',
    reason: 'NodeExists',
    message: 'delete Node denied first',
  };
  await cluster
    .client()
    .mergePatch(
      CERTIFICATE_SIGNING_REQUESTS,
      { name: request.metadata.name },
      { status: { conditions: [denied] } },
      { subresource: 'approval' },
    );
  await expect(host.ended()).rejects.toThrow('NodeExists: delete Node denied first');
  hosts.splice(0);
  await expect(host.remove()).rejects.toThrow('NodeExists');
});

/** Returns the host's answer to the question whether it is ready. */
function readiness(port: number): Promise<{ status: number | undefined; said: string }> {
  return new Promise((resolve, reject) => {
    // The question is asked as a kubelet asks it, without a check of the certificate.
    const agent = new Agent({ rejectUnauthorized: false });
    const request = get(`https://127.0.0.1:${port}/readyz`, { agent }, (response) => {
      text(response).then((said) => resolve({ status: response.statusCode, said: said.trim() }), reject);
    });
    request.once('error', reject);
  });
}

/** Returns the answer of the host once it is ready. */
function untilReady(port: number): Promise<{ status: number | undefined; said: string }> {
  return waitFor('the host to be ready', async () => {
    const answer = await readiness(port);
    return answer.status === 200 && answer;
  });
}

test('a machine that was never reported as running is destroyed when the host is cut off, and runs later; others run on', async () => {
  // The machine must run before the host counts as cut off, also on a busy machine.
  const host = await makeHost({ name: 'cut', fenceAfterSeconds: 10 });
  await host.start();
  const { status: node } = await cluster.client().get(NODES, { name: host.name });
  const port = node?.daemonEndpoints?.kubeletEndpoint?.Port ?? 0;
  // The Node may exist before the agent has started completely.
  expect(await untilReady(port)).toEqual({ status: 200, said: 'ok' });
  await operator.create(PODS, podFor(host, machineFor(NAMESPACE, 'seen')));
  const seen = await waitForPod('seen', 'Ready', (pod) => status(pod, 'Ready') === 'True');
  let open: () => void = () => undefined;
  host.images.gate = new Promise((resolve) => {
    open = resolve;
  });
  const made = await operator.create(PODS, podFor(host, machineFor(NAMESPACE, 'unseen')));
  await waitForPod('unseen', 'Pulling', (pod) => pod.status?.containerStatuses !== undefined);
  const server = cluster.component('kube-apiserver');
  await server.signal('SIGSTOP');
  try {
    open();
    const unseen = made.metadata.uid ?? '';
    await waitFor('the machine to run', () => host.driver.machines.get(unseen)?.kind === 'running');
    await waitFor('the machine to be fenced', () => host.driver.machines.get(unseen)?.kind === 'stopped');
    // The agent releases network and ports once the machine is off.
    await waitFor('its network to be gone', () => !host.network.attachments.has(unseen));
    expect(await readiness(port)).toEqual({ status: 503, said: 'This host is cut off from the cluster' });
    expect(host.driver.machines.get(seen.metadata.uid ?? '')?.kind).toBe('running');
  } finally {
    await server.signal('SIGCONT');
  }
  expect(await untilReady(port)).toEqual({ status: 200, said: 'ok' });
  // A late report of the machine's first run could still have reached the API server at this point.
  await waitFor('the machine to run again', () => {
    return host.driver.machines.get(made.metadata.uid ?? '')?.kind === 'running';
  });
  await waitForPod('unseen', 'Ready', (pod) => status(pod, 'Ready') === 'True');
}, 180_000);

test('NAT that cannot be repaired fails machines before their first run, is reported for running machines, and marks the host', async () => {
  const host = await makeHost({ name: 'nat', network: 'nat' });
  await host.start();
  await waitFor('NATReady True', async () => (await natReady(host)) === 'True');
  await operator.create(PODS, podFor(host, machineFor(NAMESPACE, 'old')));
  await waitForPod('old', 'Ready', (pod) => status(pod, 'Ready') === 'True');
  const began = performance.now();
  host.network.fault = 'table berth is dropped by another';
  await waitFor('NATReady False', async () => (await natReady(host)) === 'False');
  await waitForPod('old', 'told', (pod) => status(pod, NETWORK_CONDITION) === 'False');
  expect(performance.now() - began).toBeLessThan(5_000);
  await operator.create(PODS, podFor(host, machineFor(NAMESPACE, 'new')));
  const failed = await waitForPod('new', 'Failed', (pod) => pod.status?.phase === 'Failed');
  expect(failed.status).toMatchObject({
    reason: 'NATSelfHealFailed',
    message: 'table berth is dropped by another',
  });
  expect(host.network.attachments.has(failed.metadata.uid ?? '')).toBe(false);
  host.network.fault = undefined;
  await waitFor('NATReady True', async () => (await natReady(host)) === 'True');
  const healed = await waitForPod('old', 'healed', (pod) => status(pod, NETWORK_CONDITION) === 'True');
  expect(healed.status?.phase).toBe('Running');
});

test('an unreadable record fails its own machine, whose disk stays; other machines run on', async () => {
  const host = await makeHost({ name: 'damaged' });
  await host.start();
  for (const name of ['hurt', 'well']) {
    await operator.create(PODS, podFor(host, machineFor(NAMESPACE, name)));
  }
  const [hurt = '', well = ''] = await Promise.all(
    ['hurt', 'well'].map(async (name) => {
      const pod = await waitForPod(name, 'Ready', (one) => status(one, 'Ready') === 'True');
      return pod.metadata.uid;
    }),
  );
  await host.stop();
  await writeFile(join(host.dataDirectory, 'pods', `${hurt}.json`), '');
  const before = host.driver.calls.length;
  await host.start();
  const failed = await waitForPod('hurt', 'Failed', (pod) => pod.status?.phase === 'Failed');
  expect(failed.status).toMatchObject({
    reason: 'RecordDamaged',
    message: expect.stringContaining("The agent's record of this machine cannot be read") as string,
  });
  // Tenants read the message, and learn no folder of the host.
  expect(failed.status?.message).not.toContain(host.dataDirectory);
  const calls = (): string[] => host.driver.calls.slice(before);
  expect(calls()).toEqual([`power ${hurt}`, `stop ${hurt}`]);
  expect(host.network.attachments.has(hurt)).toBe(false);
  expect(host.driver.machines.get(well)?.kind).toBe('running');
  await operator.delete(PODS, { namespace: NAMESPACE, name: 'hurt' });
  await waitFor('the disk to be gone', () => calls().includes(`delete ${hurt}`));
  await waitFor('nothing to be left', async () => {
    const names = await readdir(join(host.dataDirectory, 'pods'));
    return names.length === 1 && names[0] === `${well}.json`;
  });
});

test('an agent that is stopped sends the Events of its machines first', async () => {
  const host = await makeHost({ name: 'leaves' });
  await host.start();
  const names = ['a', 'b', 'c', 'd'].map((letter) => `told-${letter}`);
  for (const name of names) {
    await operator.create(PODS, podFor(host, machineFor(NAMESPACE, name)));
  }
  await waitFor(
    'all machines to run',
    () => [...host.driver.machines.values()].filter(({ kind }) => kind === 'running').length === names.length,
  );
  await host.stop();
  const { items } = await cluster.client().list(EVENTS, { namespace: NAMESPACE });
  const ofVMs = items.filter(({ reason, regarding }) => reason === 'Started' && regarding.kind === 'VM');
  const started = ofVMs.map(({ regarding }) => regarding.name);
  expect(names.filter((name) => !started.includes(name))).toEqual([]);
});
