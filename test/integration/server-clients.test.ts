/** Clients of another platform, replayed as they are: their names of namespaces, their JSON, and how strictly they read. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { MACHINE_ANNOTATION, MACHINE_CONDITION } from '../../api/v1alpha1/names.ts';
import { type Cluster, type OperatorProcess, startCluster } from '../../hack/cluster/index.ts';
import type { ServerProcess } from '../../hack/cluster/program.ts';
import { waitFor } from '../../hack/wait.ts';
import { type Pod, PODS } from '../../kube/core.ts';
import { IMAGE_CACHE_ENTRIES, IMAGES } from '../../api/v1alpha1/resources.ts';
import * as controller from '../fixtures/clients/agentcontroller.ts';
import * as cloud from '../fixtures/clients/cloudagents.ts';
import * as guide from '../fixtures/clients/guide.ts';
import { findKubernetes, pushDisk } from '../fixtures/clients/imagebuilder.ts';
import { probeByCurl } from '../fixtures/clients/jobexecutor.ts';
import { reachKubernetes } from '../fixtures/clients/orchestrator.ts';
import { checkAddress } from '../fixtures/clients/pipelinehooks.ts';
import { checkCluster } from '../fixtures/clients/runnersets.ts';
import { ALIASES, FIXED_NAMESPACE, type Site } from '../fixtures/clients/site.ts';
import { IMAGE, VMs } from '../fixtures/vms.ts';
import { accountToken } from '../support/members.ts';
import { HTTPClient } from '../wires/httpapi.ts';
import { ActingHost } from '../worlds/actinghost.ts';

const DEFAULT = 'platform-default';
const CI = 'platform-ci';
/** Name of that namespace for the clients. */
const CALLED = `${ALIASES.namespacePrefix}ci`;
const HOST = 'bare';
const ADDRESS = '192.0.2.9';
/** First port that the host of the test chooses. */
const FIRST_PORT = 20_000;

let cluster: Cluster;
let operator: OperatorProcess;
let server: ServerProcess;
let client: HTTPClient;
let host: ActingHost;
let vms: VMs;
let site: Site;
let stranger: Site;
let admin: Site;

beforeAll(async () => {
  cluster = await startCluster({ name: `server-clients-${process.pid}` });
  operator = await cluster.startOperator({
    config: { osx_node_platform_quota_pod: 16, imageStorage: { folder: true } },
  });
  await cluster.createNamespace(CI);
  host = await ActingHost.join(cluster.client(), HOST, { slots: 16 });
  await host.placeable();
  vms = new VMs(cluster, CI);
  server = await cluster.startServer({ config: { http: { aliases: ALIASES } } });
  client = new HTTPClient(server);
  site = { client, token: await tokenOf('ci', [CI, DEFAULT]), namespace: CALLED };
  stranger = { ...site, token: await tokenOf('stranger', []) };
  admin = { ...site, token: await tokenOf('admin', [CI], 'berth-role-admin') };
  await waitFor('the rights', async () => {
    await Promise.all([controller.listNodes(site), controller.listConfigs(site), guide.listMembers(admin)]);
    return true;
  });
});

afterAll(async () => {
  await client?.close();
  await server?.process.stop();
  await operator?.stop();
  await host?.silence();
  await cluster?.stop();
});

/** Returns the token of a new account with the role in these namespaces. */
async function tokenOf(name: string, namespaces: string[], role = 'berth-role-dev'): Promise<string> {
  return await accountToken(cluster, { namespace: CI, name }, { role, in: namespaces });
}

/** Runs the next VM on the host of the test while the client waits for its deployment. */
async function deployed<T>(deployment: Promise<T>): Promise<T> {
  const early = deployment.then(() => {
    throw new Error('the deployment was answered before its VM ran');
  });
  const { metadata } = await Promise.race([bound(), early]);
  const ref = { namespace: CI, name: metadata.name };
  const machine = JSON.parse(metadata.annotations?.[MACHINE_ANNOTATION] ?? '') as { automaticPorts?: [] };
  const endpoints = machine.automaticPorts?.map((_port, index) => FIRST_PORT + index);
  const message = JSON.stringify({ endpoints });
  await host.setPodCondition(ref, { type: MACHINE_CONDITION, status: 'True', reason: 'Reported', message });
  await host.run(ref);
  return await deployment;
}

async function bound(): Promise<Pod> {
  return await waitFor('a VM on the host', async () => {
    const { items } = await cluster.client().list(PODS, { namespace: CI });
    return items.find(
      ({ spec, status }) => spec.nodeName === HOST && status?.containerStatuses === undefined,
    );
  });
}

/** Ends the machine of a VM that was deleted, as its agent would. */
async function ended(name: string): Promise<void> {
  await host.end({ namespace: CI, name });
  await vms.waitUntilGone(name);
}

describe('facts about the cluster', () => {
  it('reach the controller of runner sets within a second, whatever its token', async () => {
    for (const token of [site.token, 'expired']) {
      // A busy machine may miss the second once. A slow answer misses it each time.
      const facts = await waitFor('an answer within a second', () => checkCluster(server, token));
      expect(facts).toEqual({ clientID: 'berth', provider: '' });
    }
  });

  it('lead the image builder and the orchestrator to the Kubernetes API', async () => {
    const { url, serverName } = await findKubernetes(server);
    expect([url.protocol, url.pathname, serverName]).toEqual(['https:', '/', url.hostname]);
    expect(Number(url.port)).toBeGreaterThan(0);
    expect(await reachKubernetes(server)).toBe('TLSv1.3');
  });

  it('answer the probes of shell scripts', async () => {
    expect(await probeByCurl(server)).toMatch(/^https:\/\/[^/]+:\d+$/);
    expect(await checkAddress(client)).toMatch(/^\d+\.\d+\.\d+/);
  });
});

describe.each(['', '/'] as const)('the agent controller, with %j after the address', (addressEnd) => {
  const at = (): Site => ({ ...site, addressEnd });
  const config = addressEnd === '' ? 'plain' : 'slashed';

  it('reads what its forms show', async () => {
    await controller.createConfig(at(), config, IMAGE, addressEnd === '' ? '4.8' : '0.0');
    expect(await controller.listConfigs(at())).toContainEqual({
      name: config,
      image: IMAGE,
      cpu: 2,
      memory: addressEnd === '' ? Math.fround(4.8) : undefined,
    });
    const spec = { source: { registry: { reference: IMAGE } } };
    await cluster.client().create(IMAGES, { metadata: { namespace: DEFAULT, name: config }, spec });
    expect(await controller.listImages(at())).toContainEqual({ name: config, description: '', type: '' });
    const fixed = { ...at(), namespace: FIXED_NAMESPACE };
    expect(await controller.listNodes(fixed)).toMatchObject([
      { name: HOST, nodeIP: ADDRESS, phase: 'READY', allocatableCpu: 16, allocatableMemory: '68.72G' },
    ]);
  });

  it('deploys agents of both generations, and deletes them', async () => {
    const former = await deployed(controller.deployFromConfig(at(), config, 'agent'));
    expect(former).toEqual({
      name: expect.stringMatching(/^agent-[a-z0-9]{5}$/),
      ip: ADDRESS,
      ssh: FIRST_PORT,
    });
    const present = await deployed(controller.deployImage(at(), 'agent-x1y2z', IMAGE));
    expect(present).toEqual({ name: 'agent-x1y2z', ip: ADDRESS, ssh: FIRST_PORT });
    expect((await vms.get('agent-x1y2z')).spec).toMatchObject({ displayDPI: 220 });
    const staying = await deployed(controller.deployPermanent(at(), config, HOST, 8822));
    expect(staying).toMatchObject({ ip: ADDRESS, ssh: 8822 });
    for (const { name } of [former, present, staying]) {
      await controller.deleteMachine(at(), name);
      await ended(name);
    }
  });
});

describe('the agent controller', () => {
  it('shows why something failed', async () => {
    await expect(controller.listConfigs({ ...site, token: 'invented' })).rejects.toThrow(
      'HTTP Code: 401, Error: Unauthorized',
    );
    await expect(controller.listNodes(stranger)).rejects.toThrow(/^HTTP Code: 403, Error: .*hosts/);
    await expect(controller.deployFromConfig(site, 'absent', 'agent')).rejects.toThrow(
      /^HTTP Code: 404, Error: .*absent.* not found/,
    );
    await expect(controller.deleteMachine(site, 'absent')).rejects.toThrow(/^HTTP Code: 404, .*not found/);
  });

  it('learns at once that no host has room, and leaves no VM', async () => {
    await expect(controller.deployTagged(site, IMAGE, 'nowhere')).rejects.toThrow(/^HTTP Code: 500, Error: /);
    await vms.waitUntilGone('tagged');
  });

  it('deletes by its name a VM for which it waited too long', async () => {
    const patience = new AbortController();
    const deployment = controller.deployImage(site, 'slow', IMAGE, patience.signal);
    deployment.catch(() => undefined);
    await host.waitForPod({ namespace: CI, name: 'slow' });
    patience.abort();
    await expect(deployment).rejects.toThrow('aborted');
    await controller.deleteMachine(site, 'slow');
    await ended('slow');
  });
});

describe('the plug-in for cloud agents', () => {
  it('starts an agent from a config, follows it, and removes it', async () => {
    expect(await cloud.listConfigNames(site)).toContain('plain');
    const agent = await deployed(cloud.startAgent(site, 'plain'));
    expect(agent).toMatchObject({ ip: ADDRESS, ssh: FIRST_PORT });
    expect(await cloud.findAgent(site, agent.name)).toEqual(agent);
    await cloud.removeAgent(site, agent.name);
    await ended(agent.name);
    expect(await cloud.findAgent(site, agent.name)).toBeUndefined();
  });
});

it('the image builder pushes a disk, and takes no code but 200', async () => {
  const { name } = await deployed(cloud.startAgent(site, 'plain'));
  expect(await pushDisk(site, name, 'registry.example/team/built')).toMatch(/^vm-push-[a-z0-9]{5}$/);
  await expect(pushDisk(site, 'absent', 'registry.example/team/built')).rejects.toThrow('push: 404');
});

describe('the commands of a guide', () => {
  it('make a robot with a token, and manage members by the name of the role that the guide has', async () => {
    const token = await guide.makeRobot(admin, 'robot');
    await guide.addMembers(admin, 'ann@example.com', 'ci');
    const members = ['ann@example.com', `${CALLED}/ci`, `${CALLED}/robot`];
    expect(await guide.listMembers(admin)).toEqual(expect.arrayContaining(members));
    const robot = { ...site, token };
    await waitFor(
      'the rights of the robot',
      async () => (await cloud.findAgent(robot, 'absent')) === undefined,
    );
    await guide.removeMember(admin, 'ann@example.com');
    expect(await guide.listMembers(admin)).not.toContain('ann@example.com');
    await guide.removeRobot(admin, 'robot');
    expect(await guide.listMembers(admin)).not.toContain(`${CALLED}/robot`);
  });

  it('change the image cache by a name that is encoded twice', async () => {
    const shared = { ...site, namespace: FIXED_NAMESPACE };
    const image = 'registry.example/team/desktop:1';
    const changed = { status: 207, hosts: [[HOST, 200]] };
    expect(await guide.cycleCache(shared, image)).toEqual([changed, changed]);
    const { items } = await cluster.client().list(IMAGE_CACHE_ENTRIES);
    expect(items.map(({ spec }) => spec.reference)).toEqual([image]);
  });
});
