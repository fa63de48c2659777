/** The agent as a DaemonSet's Pod runs it: privileged, from its image, which is removed with the Pod. Its machines outlive the Pod. */
import { existsSync } from 'node:fs';
import { mkdir, readdir, readFile, readlink, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { stringify } from 'yaml';
import { readMachineFile } from '../../agent/drivers/qemu/state.ts';
import { IMAGES } from '../../api/v1alpha1/resources.ts';
import { isMissing, undefinedIf } from '../../base/errors.ts';
import { type Cluster, startCluster } from '../../hack/cluster/index.ts';
import { freePort } from '../../hack/cluster/ports.ts';
import { waitFor } from '../../hack/wait.ts';
import { NODES } from '../../kube/core.ts';
import { createImage, guestFile, shareGuest } from '../fixtures/images.ts';
import { VMs } from '../fixtures/vms.ts';
import { page, tell } from '../worlds/qemuguest.ts';
import { Container } from './container.ts';
import { ContainerHost } from './host.ts';
import { copyImage } from './image.ts';
import { image, unfit as unfitHere } from './provided.ts';

const NODE = 'daemon';
const VM = 'x';
/** Time limit. The agent runs a guest to try the accelerator, and then gets two certificates and a Node. */
const JOIN = { deadlineMilliseconds: 120_000 };
/** Time limit. The guest's image may have to be made first. */
const SET_UP_MILLISECONDS = 400_000;
/** Time limit for an emulated guest. On an idle machine it takes 5 s. */
const BOOT = { deadlineMilliseconds: 120_000, intervalMilliseconds: 200 };

const unfit = unfitHere ?? (process.arch === 'x64' ? undefined : 'the guest is for x86');
let cluster: Cluster;
let host: ContainerHost;
let vms: VMs;
let agent: Container;
let dataDirectory: string;
let guestPort: number;

beforeAll(async () => {
  if (unfit !== undefined) {
    return;
  }
  const guest = await guestFile('amd64');
  const operatorConfig = { imageStorage: { folder: true } };
  cluster = await startCluster({ name: `oci-agent-${process.pid}`, operator: true, operatorConfig });
  vms = new VMs(cluster);
  dataDirectory = join(cluster.directory, 'data');
  host = await ContainerHost.start(cluster.directory);
  await mkdir(dataDirectory);
  // Some hosts allow no programs on their data disks. The hypervisor must start there too.
  await host.run('mount', '--bind', dataDirectory, dataDirectory);
  await host.run('mount', '-o', 'remount,bind,nosuid,nodev,noexec', dataDirectory);
  await shareGuest(cluster, guest);
  await createImage(cluster, 'guest', { sharedFile: { path: 'guest.qcow2' } });
  await configure();
}, SET_UP_MILLISECONDS);

afterAll(async () => {
  await agent?.remove();
  await cluster?.stop();
});

/** Writes the files that the DaemonSet's ConfigMap and Secret contain. */
async function configure(): Promise<void> {
  const folder = join(cluster.directory, 'configuration');
  const { kubeconfig } = await cluster.createAgentBootstrap(NODE);
  const config = {
    nodeName: NODE,
    address: '127.0.0.1',
    dataDirectory,
    bootstrapKubeconfig: 'bootstrap.kubeconfig',
    kubelet: { clientCAFile: 'ca.crt' },
    network: { driver: 'user' },
    images: { sharedRoots: [join(cluster.directory, 'images')], storageFolder: storageFolder() },
    cpuOvercommit: 8,
  };
  await mkdir(folder);
  await mkdir(storageFolder());
  await writeFile(join(folder, 'agent.yaml'), stringify(config));
  await writeFile(join(folder, 'bootstrap.kubeconfig'), await readFile(kubeconfig));
  await writeFile(join(folder, 'ca.crt'), await readFile(join(cluster.directory, 'pki', 'ca.crt')));
}

function storageFolder(): string {
  return join(cluster.directory, 'storage');
}

/** Starts the agent from a root file system of its own, as each Pod has one. */
async function startAgent(name: string): Promise<Container> {
  const images = join(cluster.directory, 'images');
  return await Container.start(host, {
    name,
    image: await copyImage(image('agent'), join(cluster.directory, name)),
    privileged: true,
    mounts: [
      { source: join(cluster.directory, 'configuration'), destination: '/etc/berth' },
      { source: dataDirectory, destination: dataDirectory, writable: true },
      { source: images, destination: images },
      { source: storageFolder(), destination: storageFolder(), writable: true },
    ],
  });
}

/** Removes the container and its files, as the deletion of a Pod does. */
async function deletePod(container: Container, name: string): Promise<void> {
  await container.remove();
  await rm(join(cluster.directory, name), { recursive: true });
}

/** Returns the process id of a VM's machine on the host. */
async function machineProcess(name = VM): Promise<number> {
  const { metadata } = await vms.pod(name);
  const state = await readMachineFile(join(dataDirectory, 'machines', metadata.uid ?? ''));
  return state?.process?.pid ?? 0;
}

async function ofMachine(file: string): Promise<string> {
  return await readFile(host.proc(String(await machineProcess()), file), 'utf8');
}

/** Returns the process id of the machine's log writer on the host. */
async function logWriter(): Promise<string> {
  const machine = await machineProcess();
  const [writer = ''] = (await ofMachine(`task/${machine}/children`)).split(' ');
  return writer;
}

test('joins from its image, and runs a guest', async ({ skip }) => {
  if (unfit !== undefined) {
    skip(unfit);
  }
  agent = await startAgent('agent');
  await waitFor(
    'the host to join',
    async () => (await cluster.client().get(NODES, { name: NODE })).status?.allocatable?.['berth.dev/slot'],
    JOIN,
  ).catch((error: unknown) => {
    throw new Error(agent.readLogTail(), { cause: error });
  });
  guestPort = await freePort();
  await vms.create(VM, {
    image: 'guest',
    cpu: 1,
    memory: '256Mi',
    ports: [`${guestPort}:80`],
  });
  await vms.waitForPhase(VM, 'Running', undefined, BOOT);
  expect(await page(guestPort)).toMatchObject({ boots: '1' });
});

test('gives a machine a control group and a root file system of its own, and no rights', async ({ skip }) => {
  if (unfit !== undefined) {
    skip(unfit);
  }
  const { metadata } = await vms.pod(VM);
  const groups = (await ofMachine('cgroup')).trim().split('\n');
  // This ignores the unified hierarchy beside those of v1, and hierarchies that the container's runtime does not use.
  expect(groups.filter((line) => line.includes('berth-'))).toEqual([]);
  expect(groups.some((line) => line.endsWith(`/berth/${metadata.uid}`))).toBe(true);
  const mounts = await ofMachine('mountinfo');
  expect(mounts).toMatch(/ \/usr ro,nosuid,nodev,relatime /);
  expect(mounts).toContain(` ${join(dataDirectory, 'machines', metadata.uid ?? '')} rw,`);
  for (const path of ['agent/root', 'configuration']) {
    expect(mounts).not.toContain(join(cluster.directory, path));
  }
  expect(await ofMachine('status')).toMatch(/^CapEff:\t0+$/m);
  const writer = await logWriter();
  expect(await readFile(host.proc(writer, 'comm'), 'utf8')).toBe('berth-log-write\n');
  for (const file of ['cgroup', 'mountinfo']) {
    expect(await readFile(host.proc(writer, file), 'utf8')).toBe(await ofMachine(file));
  }
});

test('leaves machines running when its Pod is deleted, and a new Pod takes them over', async ({ skip }) => {
  if (unfit !== undefined) {
    skip(unfit);
  }
  const before = { process: await machineProcess(), page: await page(guestPort) };
  const writer = await logWriter();
  await deletePod(agent, 'agent');
  expect(existsSync(host.proc(writer))).toBe(true);
  expect(await page(guestPort)).toMatchObject({ boot_id: before.page['boot_id'] });
  agent = await startAgent('next');
  expect(await machineProcess()).toBe(before.process);
  // Only an agent that has found the machine can suspend it. The guest shows whether it was booted since.
  await vms.patch(VM, { powerState: 'Suspended' });
  await vms.waitForPhase(VM, 'Suspended', undefined, BOOT);
  await vms.patch(VM, { powerState: 'Running' });
  await vms.waitForPhase(VM, 'Running', undefined, BOOT);
  expect(await page(guestPort)).toMatchObject({ boot_id: before.page['boot_id'], boots: '1' });
});

test('starts a guest from the memory of an image, which its hypervisor can only read', async ({ skip }) => {
  if (unfit !== undefined) {
    skip(unfit);
  }
  expect(await tell(guestPort, 'agent=0')).toBe('listening\n');
  await createImage(cluster, 'warm', { fromVM: { name: VM, memory: true } });
  const isSaved = async () =>
    (await cluster.client().get(IMAGES, { namespace: vms.namespace, name: 'warm' })).status?.memory !==
    undefined;
  await waitFor('the memory to be saved', isSaved, BOOT);
  const port = await freePort();
  await vms.create('warm', { image: 'warm', cpu: 1, memory: '256Mi', ports: [`${port}:80`] });
  await vms.waitForCondition('warm', 'WarmStart', { status: 'True' }, BOOT);
  expect(await page(port)).toMatchObject({ boots: '1' });
  const pid = String(await machineProcess('warm'));
  expect(await readFile(host.proc(pid, 'mountinfo'), 'utf8')).toMatch(/ \S+\/ram ro,/);
  expect(await flagsOf(pid, '/ram')).toEqual(['0100000']);
  await vms.delete('warm');
});

/** Returns the flags of the open files of a process whose paths have this end. The last digit 0 means that a file is open only for reading. */
async function flagsOf(pid: string, end: string): Promise<(string | undefined)[]> {
  const flags: (string | undefined)[] = [];
  for (const descriptor of await readdir(host.proc(pid, 'fd'))) {
    // The process can close a file at any time.
    const path = await undefinedIf(isMissing, readlink(host.proc(pid, `fd/${descriptor}`)));
    if (path?.endsWith(end) === true) {
      const info = await readFile(host.proc(pid, `fdinfo/${descriptor}`), 'utf8');
      flags.push(/^flags:\s+(\d+)$/m.exec(info)?.[1]);
    }
  }
  return flags;
}

test('ends a machine that an earlier Pod started', async ({ skip }) => {
  if (unfit !== undefined) {
    skip(unfit);
  }
  const machine = await machineProcess();
  await vms.delete(VM);
  await vms.waitUntilGone(VM, BOOT);
  expect(existsSync(host.proc(String(machine)))).toBe(false);
});
