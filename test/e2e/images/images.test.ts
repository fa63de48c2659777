/** VMs from images of a private registry, from an ISO of a web server, and from the examples for users, with real guests. */
import { execFile } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { type AddressInfo, connect, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { promisify } from 'node:util';
import { afterAll, beforeAll, expect, test } from 'vitest';
import {
  entryText,
  PULL_SECRET_KEY,
  PULL_SECRET_TYPE,
  registrySecretName,
  REGISTRIES_CONFIG_MAP,
} from '../../../api/v1alpha1/registrycredentials.ts';
import { contentName } from '../../../api/v1alpha1/cachetargets.ts';
import type { GuestArchitecture } from '../../../hack/guest.ts';
import { CONFIG_MAPS, NODES, SECRETS } from '../../../kube/core.ts';
import type { Condition } from '../../../kube/objects.ts';
import { IMAGES, ISOS, VMS } from '../../../api/v1alpha1/resources.ts';
import { AgentProcess } from '../../../hack/cluster/agent.ts';
import { freePort } from '../../../hack/cluster/ports.ts';
import { logIn, makeKey } from '../../../hack/login.ts';
import { exampleObjects, type Replaced } from '../../fixtures/examples.ts';
import { Downloads } from '../../wires/downloads.ts';
import { guestFile } from '../../fixtures/images.ts';
import { waitForObject } from '../../fixtures/objects.ts';
import { setDebugLevel } from '../../support/loglevel.ts';
import { ProgressHistory } from '../../support/progresshistory.ts';
import { HttpProxy } from '../../wires/httpproxy.ts';
import { PASSWORD, PROXIED_NAME, startRegistry, type TestRegistry, USER } from '../../wires/registry.ts';
import { pushTart } from '../../fixtures/tart.ts';
import { pushContainerDisk, writeRawDisk } from '../../fixtures/vmimages.ts';
import { waitFor } from '../../../hack/wait.ts';
import { page } from '../../worlds/qemuguest.ts';
import { makeTartProgram, tartOf } from '../../worlds/tarthost.ts';
import { BOOT, SET_UP_MILLISECONDS, STEP, World } from '../../worlds/vm.ts';

const TEST_MILLISECONDS = 300_000;
/** Name of the Secret with the registry's password. */
const SECRET = 'pull';
/** Namespace beside the default one. */
const OTHER = 'platform-other';
const SECTOR_BYTES = 512;
/** Size of a guest beside others. */
const SMALL = { cpu: 1, memory: '256Mi' };
/** Tag of the host, which an example asks for. */
const TAG = 'fast';
/** Address of the Apple host, on the loopback of this machine. */
const MAC_ADDRESS = '127.0.0.3';
const MAC_DISK_BYTES = 64 * 1024;
/** Password of the proxy, which no log shows. */
const PROXY_PASSWORD = 'planted-5c1d90';
/** Largest ratio of transferred bytes to the size of an image that is fetched once. The rest is TLS and other requests. */
const ONCE = 1.1;

let folder: string;
let registry: TestRegistry;
let world: World;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-images-'));
  registry = await startRegistry({ directory: join(folder, 'registry') });
  const { host, caFile } = registry;
  world = await World.start({
    name: 'images',
    architecture: 'amd64',
    hosts: { host: '127.0.0.1' },
    images: { allowLoopbackHttp: true, registries: [{ host, caFile }] },
    agentConfig: { tags: [TAG] },
  });
  await makeSecret(SECRET, PASSWORD);
}, SET_UP_MILLISECONDS);

afterAll(async () => {
  await world?.[Symbol.asyncDispose]();
  await registry?.close();
  await rm(folder, { recursive: true, force: true });
});

/** Disk of the guest. The disk for amd64 can also boot as an ISO. */
async function rawGuest(architecture: GuestArchitecture): Promise<string> {
  const raw = join(folder, `guest-${architecture}.raw`);
  const parameters = ['convert', '-f', 'qcow2', '-O', 'raw', await guestFile(architecture), raw];
  await promisify(execFile)('qemu-img', parameters);
  return raw;
}

async function makeSecret(name: string, password: string): Promise<void> {
  const login = [
    `--docker-server=${registry.host}`,
    `--docker-username=${USER}`,
    `--docker-password=${password}`,
  ];
  await world.kubectl('create', 'secret', 'docker-registry', name, ...login);
}

/** Returns the fields of a VM that boots from the image, and serves its page at the port of the host. */
function guest(image: string, secret: string, port: number) {
  const ports = [`${port}:80`];
  const readiness = { type: 'Port', port: 80 } as const;
  return { ...SMALL, image, imagePullSecrets: [{ name: secret }], ports, readiness };
}

/** Makes a VM that serves its page at the port. */
async function make(
  name: string,
  image: string,
  secret: string,
  port: number,
  architecture: GuestArchitecture = 'amd64',
): Promise<void> {
  await world.vms.create(name, { architecture, ...guest(image, secret, port) });
}

/** Applies an example with the objects of this world in the place of those that its readers have. */
async function applyExample(name: string, replaced: Replaced): Promise<void> {
  await world.cluster.kubectl(['apply', '-f', '-'], { input: await exampleObjects(name, replaced) });
}

/** Returns the names of all images that the Node lists. */
async function listed(): Promise<string[]> {
  const { status } = await world.cluster.client().get(NODES, { name: 'host' });
  return (status?.images ?? []).flatMap(({ names }) => names ?? []);
}

/** Returns the size of the image's layers. Hosts fetch only some kilobytes more. */
async function layerBytes(image: string): Promise<number> {
  const manifest = JSON.parse(await registry.skopeo('inspect', '--raw', `docker://${image}`)) as {
    layers: { size: number }[];
  };
  return manifest.layers.reduce((sum, { size }) => sum + size, 0);
}

test(
  'the examples of a private registry and a VM config: fetched once for two VMs and the cache, both boot, and the host lists its digest',
  async () => {
    const image = await pushContainerDisk(registry, 'team/guest:1', await guestFile('amd64'));
    const bytes = await layerBytes(image);
    const before = registry.traffic.received;
    const [port, otherPort] = [await freePort(), await freePort()];
    const entry = { reference: image, pullSecretName: SECRET };
    await Promise.all([
      applyExample('private-registry', { ImageCacheEntry: entry, VM: guest(image, SECRET, port) }),
      applyExample('vmconfig-ci-small', { VMConfig: guest(image, SECRET, otherPort) }),
    ]);
    await Promise.all(['team-desktop', 'job-1'].map((name) => world.waitForCondition('Ready', name)));
    expect(await page(port)).toMatchObject({ boots: '1', architecture: 'x86_64' });
    expect(await page(otherPort)).toMatchObject({ boots: '1' });
    const fetched = registry.traffic.received - before;
    expect(fetched).toBeGreaterThan(bytes);
    expect(fetched, 'bytes that were fetched').toBeLessThan(bytes * ONCE);
    const { status } = await world.vms.get('team-desktop');
    const digest = status?.image?.digest ?? '';
    expect(digest).toMatch(/^sha256:[0-9a-f]{64}$/);
    const isListed = async () => (await listed()).includes(contentName(digest));
    await waitFor('the Node to list the image', isListed, STEP);
    // The registry gives the image to users with a password alone, so the Node does not tell its name.
    expect((await listed()).filter((name) => name.includes('team/guest'))).toEqual([]);
    await world.kubectl(
      'wait',
      '--for=condition=Ready',
      'ice/desktop',
      `--timeout=${STEP.deadlineMilliseconds}ms`,
    );
    await world.kubectl('delete', '--wait=false', 'vm', 'team-desktop', 'job-1');
  },
  TEST_MILLISECONDS,
);

test(
  'with a wrong or no password, a VM waits with a reason, although the image is on the host; with the right one it runs',
  async () => {
    const image = `${registry.host}/team/guest:1`;
    await makeSecret('wrong', 'not the password');
    await make('denied', image, 'wrong', await freePort());
    const port = await freePort();
    await applyExample('cloud-init-secret', { VM: guest(image, 'later', port) });
    const denied = { status: 'False', reason: 'ImageAccessDenied' } as const;
    const { message } = await world.vms.waitForCondition('denied', 'ImageReady', denied, STEP);
    expect(message).toContain(`${registry.host}/team/guest`);
    const missing = { status: 'False', reason: 'PullSecretMissing' } as const;
    const waiting = await world.vms.waitForCondition('with-secret', 'ImageReady', missing, STEP);
    expect(waiting.message).toContain('The pull secret later in platform-default does not exist');
    expect((await world.vms.get('with-secret')).status?.phase).toBe('Pulling');
    expect(await world.kubectl('get', 'vm', 'denied', '-o', 'wide')).toMatch(
      /^denied +Pulling +False +ImageAccessDenied /m,
    );
    await makeSecret('later', PASSWORD);
    await world.waitForCondition('Ready', 'with-secret');
    expect(await page(port)).toMatchObject({ boots: '1' });
    await world.waitForCondition('UserDataReady', 'with-secret');
    expect((await world.vms.get('denied')).status?.phase).toBe('Pulling');
    await world.kubectl('delete', '--wait=false', 'vm', 'denied', 'with-secret');
    // Other hosts that join later must not fetch the image too.
    await world.kubectl('delete', 'ice', 'desktop');
  },
  TEST_MILLISECONDS,
);

/** Returns whether the progress of a transfer was reported more than once during it. */
function isFollowed(percents: readonly number[]): boolean {
  return percents.filter((percent) => percent > 0 && percent < 100).length > 1;
}

function expectRising(percents: readonly number[]): void {
  expect(percents).toEqual([...new Set(percents)].toSorted((a, b) => a - b));
}

test(
  'an ISO of a slow web server: ISO and VM show the progress, and the VM boots from it beside an empty disk',
  async () => {
    await using downloads = await Downloads.serve(await rawGuest('amd64'));
    downloads.slowDown();
    const client = world.cluster.client();
    using isos = await ProgressHistory.start(client, ISOS);
    using vms = await ProgressHistory.start(client, VMS);
    const http = downloads.next();
    const metadata = { name: 'debian-installer', namespace: world.vms.namespace };
    const [port, diskBytes] = [await freePort(), 128 * 1024 ** 2];
    const vm = { ...SMALL, diskSize: String(diskBytes), ports: [`${port}:80`] };
    await applyExample('install-from-iso', { ISO: { source: { http } }, VM: vm });
    const followed = 'to tell more than once how much is there';
    await waitFor(`ISO debian-installer ${followed}`, () => isFollowed(isos.of('debian-installer')), STEP);
    await waitFor(`VM installing ${followed}`, () => isFollowed(vms.of('installing')), STEP);
    downloads.release();
    expect(await page(port)).toMatchObject({ boots: '1', disk_sectors: String(diskBytes / SECTOR_BYTES) });
    // The VM has the file as soon as the host has it. The ISO is Ready when its Job has ended.
    const ready = await waitForObject(
      'ISO debian-installer to be Ready',
      async () => await client.get(ISOS, metadata),
      ({ status }) => status?.phase === 'Ready',
      STEP,
    );
    expect(ready).toMatchObject({
      status: { digest: `sha256:${http.sha256}`, size: String(downloads.bytes) },
    });
    expectRising(isos.of('debian-installer'));
    expectRising(vms.of('installing'));
  },
  TEST_MILLISECONDS,
);

test(
  'the examples with ports, with cloud-init and with a desktop boot, and are reached as they say',
  async () => {
    await using downloads = await Downloads.serve(await guestFile('amd64'));
    const key = join(folder, 'key');
    const sshAuthorizedKeys = [await makeKey(key)];
    const port = await freePort();
    const source = () => ({ source: { http: downloads.next() } });
    const image = `${registry.host}/team/guest:1`;
    const server = { ...SMALL, image, imagePullSecrets: [{ name: SECRET }], sshAuthorizedKeys };
    const grown = { ...SMALL, diskSize: '128Mi' };
    await applyExample('ssh-and-ports', { VM: { ...server, ports: [':22', `${port}:80`] } });
    await applyExample('desktop', { Image: source(), VM: { ...grown, sshAuthorizedKeys } });
    await applyExample('ubuntu-http-cloud-init', { Image: source(), VM: grown });
    const { kubectlPath, kubeconfig } = world.cluster;
    for (const vm of ['server', 'desktop']) {
      await world.waitForCondition('Ready', vm);
      const login = { kubectlPath, kubeconfig, namespace: world.vms.namespace, vm, user: 'root', key };
      expect(await logIn(login, 'cat /etc/os-release')).toBe('PRETTY_NAME="Berth guest"\n');
    }
    expect(await page(port)).toMatchObject({ boots: '1' });
    expect(await world.kubectl('describe', 'vm', 'desktop')).toContain('a screen of 1920×1080 pixels');
    const booted = async () => (await world.kubectl('logs', 'ubuntu')).includes('berth-guest: ready');
    await waitFor('the console of VM ubuntu to tell that its guest is there', booted, BOOT);
    await world.kubectl('delete', '--wait=false', 'vm', 'server', 'desktop', 'ubuntu');
  },
  TEST_MILLISECONDS,
);

test(
  'an arm64 VM image in the form of Tart boots on an ARM host, and is refused on another with both architectures',
  async () => {
    const raw = await rawGuest('arm64');
    const image = await pushTart(registry, 'team/tart:v1', raw, { architecture: 'arm64' });
    const [port, otherPort] = [await freePort(), await freePort()];
    await make('x86', image, SECRET, otherPort);
    const { host, caFile } = registry;
    const arm = await AgentProcess.start(world.cluster, {
      nodeName: 'arm',
      config: {
        architecture: 'arm64',
        address: '127.0.0.2',
        images: { registries: [{ host, caFile }] },
      },
    });
    world.hosts.set('arm', arm);
    await make('tart', image, SECRET, port, 'arm64');
    const refused = await world.vms.waitForVM(
      'x86',
      'VM x86 to fail',
      ({ status }) => status?.failure !== undefined,
      STEP,
    );
    expect(refused.status?.failure).toMatchObject({
      reason: 'ImageArchitectureMismatch',
      message: expect.stringContaining('is an image for arm64, and the machine is amd64') as string,
    });
    await world.vms.waitForCondition('tart', 'Ready', { status: 'True' }, BOOT);
    expect(await page(port, '127.0.0.2')).toMatchObject({ boots: '1', architecture: 'aarch64' });
  },
  TEST_MILLISECONDS,
);

test(
  'a host pulls an image through its proxy, which alone knows the registry, and its log does not show the password of the proxy',
  async () => {
    const port = new URL(registry.url).port;
    const name = `${PROXIED_NAME}:${port}`;
    const image = (await pushContainerDisk(registry, 'team/guest:2', await guestFile('amd64'))).replace(
      registry.host,
      name,
    );
    await using proxy = await HttpProxy.open({
      servers: { [name]: Number(port) },
      credentials: `berth:${PROXY_PASSWORD}`,
    });
    const closed = await AgentProcess.start(world.cluster, {
      nodeName: 'closed',
      config: {
        architecture: 'amd64',
        address: '127.0.0.3',
        images: { registries: [{ host: name, caFile: registry.caFile }] },
      },
      environment: { HTTPS_PROXY: proxy.url },
    });
    world.hosts.set('closed', closed);
    const login = [`--docker-server=${name}`, `--docker-username=${USER}`, `--docker-password=${PASSWORD}`];
    await world.kubectl('create', 'secret', 'docker-registry', 'proxied', ...login);
    await world.makeVM('proxied', {
      image,
      imagePullSecrets: [{ name: 'proxied' }],
      placement: { node: 'closed' },
    });
    await world.vms.waitForCondition('proxied', 'ImageReady', { status: 'True' }, STEP);
    expect((await world.vms.get('proxied')).status?.image?.digest).toMatch(/^sha256:/);
    expect(new Set(proxy.requests)).toEqual(new Set([`CONNECT ${name}`]));
    const log = await readFile(closed.logFile, 'utf8');
    expect(log).toContain(new URL(proxy.url).origin);
    expect(log).not.toContain(PROXY_PASSWORD);
    await world.kubectl('delete', '--wait=false', 'vm', 'proxied');
    await setDebugLevel(closed.configFile, closed.logFile);
    // This host knows no other registry, so the Images of other tests must not go to it.
    await world.kubectl('cordon', 'closed');
  },
  TEST_MILLISECONDS,
);

test(
  'an Image of a registry of an unknown authority: fetched for the namespace that allows it, and for no other',
  async () => {
    const strange = await startRegistry({ directory: join(folder, 'strange') });
    try {
      const disk = join(folder, 'strange.raw');
      await writeRawDisk(disk, 4);
      const reference = await pushContainerDisk(strange, 'team/strange:1', disk);
      const { namespace } = world.vms;
      await world.cluster.createNamespace(OTHER);
      await makeCredential(namespace, strange, true);
      await makeCredential(OTHER, strange, false);
      // The Images name no Secret.
      for (const each of [namespace, OTHER]) {
        const metadata = { name: 'strange', namespace: each };
        const spec = { architecture: 'amd64' as const, source: { registry: { reference } } };
        await world.cluster.client().create(IMAGES, { metadata, spec });
      }
      await waitFor('the Image', async () => (await readyOf(namespace))?.status === 'True', BOOT);
      const isRefused = async (): Promise<Condition | false> => {
        const ready = await readyOf(OTHER);
        return ready?.reason === 'ImageFetchFailed' && ready;
      };
      const refused = await waitFor('the refusal', isRefused, STEP);
      expect(refused.message).toContain('certificate');
    } finally {
      await strange.close();
    }
  },
  TEST_MILLISECONDS,
);

async function readyOf(namespace: string): Promise<Condition | undefined> {
  const { status } = await world.cluster.client().get(IMAGES, { name: 'strange', namespace });
  return status?.conditions?.find(({ type }) => type === 'Ready');
}

async function makeCredential(
  namespace: string,
  strange: TestRegistry,
  allowInsecure: boolean,
): Promise<void> {
  const { host } = strange;
  const secretName = registrySecretName(host);
  const credential = { scheme: 'https', registry: host, secretName, allowInsecure } as const;
  await world.cluster.client().create(SECRETS, {
    metadata: { name: secretName, namespace },
    type: PULL_SECRET_TYPE,
    stringData: { [PULL_SECRET_KEY]: strange.dockerConfigJson() },
  });
  await world.cluster.client().create(CONFIG_MAPS, {
    metadata: { name: REGISTRIES_CONFIG_MAP, namespace },
    data: { [secretName]: entryText(credential) },
  });
}

test(
  'macOS images in the form of Tart run on an Apple host, whose `tart` is a stand-in, also through a kill of its agent',
  async () => {
    const program = join(folder, 'tart-stand-in');
    makeTartProgram(program);
    const disk = join(folder, 'mac.raw');
    await writeFile(disk, Buffer.alloc(MAC_DISK_BYTES));
    const least = { cpuCountMin: 1, memorySizeMin: 1 };
    const machine = { os: 'darwin', ecid: 'ZWNpZA==', hardwareModel: 'bW9kZWw=', ...least };
    const image = await pushTart(registry, 'team/macos:v1', disk, { architecture: 'arm64', machine });
    const { host, caFile } = registry;
    const agent = await AgentProcess.start(world.cluster, {
      nodeName: 'mac',
      config: {
        architecture: 'arm64',
        address: MAC_ADDRESS,
        machines: { driver: 'tart', tart: program },
        network: { driver: 'vmnet' },
        images: { registries: [{ host, caFile }] },
      },
    });
    world.hosts.set('mac', agent);
    const tart = tartOf(agent.dataDirectory);
    tart.give('macos-shuts-down');
    // The address of a sleeping guest is the loopback address, so this server stands for a program in the guest.
    const server = createServer((socket) => socket.end('hello')).listen(0, '127.0.0.1');
    await once(server, 'listening');
    const inside = (server.address() as AddressInfo).port;
    const port = await freePort();
    const hello = async () => (await text(connect(port, MAC_ADDRESS))) === 'hello';
    const size = { cpu: 1, memory: '256Mi', imagePullSecrets: [{ name: SECRET }] };
    const spec = { ...size, image, os: 'MacOS', readiness: { type: 'None' } } as const;
    await world.vms.create('mac1', { ...spec, ports: [`${port}:${inside}`] });
    await world.vms.create('mac2', spec);
    await world.vms.waitForPhase('mac1', 'Running');
    await world.vms.waitForPhase('mac2', 'Running');
    await world.vms.create('mac3', spec);
    const { message } = await world.vms.waitForCondition('mac3', 'Scheduled', { status: 'False' });
    expect(message).toContain('1 with two macOS guests already');
    await waitFor('the guest to answer', hello);
    const before = await agent.machines();
    expect(before.size).toBe(2);
    await agent.kill();
    await agent.startAgain();
    await agent.ready();
    await waitFor('the guest to answer again', hello);
    expect(await agent.machines()).toEqual(before);
    await world.vms.patch('mac1', { powerState: 'Suspended' });
    await world.vms.waitForPhase('mac1', 'Suspended');
    await world.vms.patch('mac1', { powerState: 'Running' });
    await world.vms.waitForPhase('mac1', 'Running');
    await world.vms.delete('mac2');
    await world.vms.waitForPhase('mac3', 'Running');
    await world.kubectl('delete', 'vm', 'mac1', 'mac3');
    await waitFor('nothing to be left on the host', async () => {
      const left = await Promise.all(
        ['machines', 'tart/vms'].map(async (name) => await readdir(join(agent.dataDirectory, name))),
      );
      return left.flat().filter((name) => !name.startsWith('.')).length === 0;
    });
    expect([tart.faults, tart.runningMacOS]).toEqual([[], 0]);
    server.close();
  },
  TEST_MILLISECONDS,
);
