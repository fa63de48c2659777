/** VMs from images of a private registry, and from an ISO of a web server, with real guests. */
import { execFile } from 'node:child_process';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, expect, test } from 'vitest';
import {
  entryText,
  PULL_SECRET_KEY,
  PULL_SECRET_TYPE,
  registrySecretName,
  REGISTRIES_CONFIG_MAP,
} from '../../../api/v1alpha1/registrycredentials.ts';
import type { GuestArchitecture } from '../../../hack/guest.ts';
import { CONFIG_MAPS, NODES, SECRETS } from '../../../kube/core.ts';
import type { Condition } from '../../../kube/objects.ts';
import { IMAGES, ISOS, VMS } from '../../../api/v1alpha1/resources.ts';
import { AgentProcess } from '../../../hack/cluster/agent.ts';
import { freePort } from '../../../hack/cluster/ports.ts';
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
import { BOOT, SET_UP_MILLISECONDS, STEP, World } from '../../worlds/vm.ts';

const TEST_MILLISECONDS = 300_000;
/** Name of the Secret with the registry's password. */
const SECRET = 'pull';
/** Namespace beside the default one. */
const OTHER = 'platform-other';
const SECTOR_BYTES = 512;
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

/** Applies a VM with kubectl. The VM serves its page at the port. */
async function apply(
  name: string,
  image: string,
  secret: string,
  port: number,
  architecture = 'amd64',
): Promise<void> {
  const manifest = `
apiVersion: berth.dev/v1alpha1
kind: VM
metadata: {name: ${name}, namespace: ${world.vms.namespace}}
spec:
  image: ${image}
  architecture: ${architecture}
  imagePullSecrets: [{name: ${secret}}]
  cpu: 1
  memory: 256Mi
  ports: ["${port}:80"]
  readiness: {type: Port, port: 80}
`;
  await world.cluster.kubectl(['apply', '-f', '-'], { input: manifest });
}

/** Returns the images of this repository that the Node lists. */
async function listed(repository: string): Promise<string[]> {
  const { status } = await world.cluster.client().get(NODES, { name: 'host' });
  return (status?.images ?? [])
    .flatMap(({ names }) => names ?? [])
    .filter((name) => name.includes(repository));
}

/** Returns the size of the image's layers. Hosts fetch only some kilobytes more. */
async function layerBytes(image: string): Promise<number> {
  const manifest = JSON.parse(await registry.skopeo('inspect', '--raw', `docker://${image}`)) as {
    layers: { size: number }[];
  };
  return manifest.layers.reduce((sum, { size }) => sum + size, 0);
}

test(
  'a container disk, pulled with a secret by two VMs at once: fetched once, both boot, and the host lists it',
  async () => {
    const image = await pushContainerDisk(registry, 'team/guest:1', await guestFile('amd64'));
    const bytes = await layerBytes(image);
    const before = registry.traffic.received;
    const [port, otherPort] = [await freePort(), await freePort()];
    await Promise.all([apply('one', image, SECRET, port), apply('two', image, SECRET, otherPort)]);
    await Promise.all([world.waitForCondition('Ready', 'one'), world.waitForCondition('Ready', 'two')]);
    expect(await page(port)).toMatchObject({ boots: '1', architecture: 'x86_64' });
    expect(await page(otherPort)).toMatchObject({ boots: '1' });
    const fetched = registry.traffic.received - before;
    expect(fetched).toBeGreaterThan(bytes);
    expect(fetched, 'bytes that were fetched').toBeLessThan(bytes * ONCE);
    const { status } = await world.vms.get('one');
    const digest = status?.image?.digest ?? '';
    expect(digest).toMatch(/^sha256:[0-9a-f]{64}$/);
    await waitFor('the Node to list the image', async () => (await listed('team/guest')).length > 0, STEP);
    expect(await listed('team/guest')).toEqual([image, `${registry.host}/team/guest@${digest}`]);
    await world.kubectl('delete', '--wait=false', 'vm', 'one', 'two');
  },
  TEST_MILLISECONDS,
);

test(
  'with a wrong or no password, a VM waits with a reason, although the image is on the host; with the right one it runs',
  async () => {
    const image = `${registry.host}/team/guest:1`;
    await makeSecret('wrong', 'not the password');
    await apply('denied', image, 'wrong', await freePort());
    const port = await freePort();
    await apply('patient', image, 'later', port);
    const denied = { status: 'False', reason: 'ImageAccessDenied' } as const;
    const { message } = await world.vms.waitForCondition('denied', 'ImageReady', denied, STEP);
    expect(message).toContain(`${registry.host}/team/guest`);
    const missing = { status: 'False', reason: 'PullSecretMissing' } as const;
    const waiting = await world.vms.waitForCondition('patient', 'ImageReady', missing, STEP);
    expect(waiting.message).toContain('The pull secret later in platform-default does not exist');
    expect((await world.vms.get('patient')).status?.phase).toBe('Pulling');
    expect(await world.kubectl('get', 'vm', 'denied', '-o', 'wide')).toMatch(
      /^denied +Pulling +False +ImageAccessDenied /m,
    );
    await makeSecret('later', PASSWORD);
    await world.waitForCondition('Ready', 'patient');
    expect(await page(port)).toMatchObject({ boots: '1' });
    expect((await world.vms.get('denied')).status?.phase).toBe('Pulling');
    await world.kubectl('delete', '--wait=false', 'vm', 'denied', 'patient');
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
    const metadata = { name: 'installer', namespace: world.vms.namespace };
    await client.create(ISOS, { metadata, spec: { source: { http } } });
    const [port, diskBytes] = [await freePort(), 128 * 1024 ** 2];
    await world.vms.create('installed', {
      iso: 'installer',
      diskSize: String(diskBytes),
      cpu: 1,
      memory: '256Mi',
      ports: [`${port}:80`],
    });
    const followed = 'to tell more than once how much is there';
    await waitFor(`ISO installer ${followed}`, () => isFollowed(isos.of('installer')), STEP);
    await waitFor(`VM installed ${followed}`, () => isFollowed(vms.of('installed')), STEP);
    downloads.release();
    expect(await page(port)).toMatchObject({ boots: '1', disk_sectors: String(diskBytes / SECTOR_BYTES) });
    // The VM has the file as soon as the host has it. The ISO is Ready when its Job has ended.
    const ready = await waitForObject(
      'ISO installer to be Ready',
      async () => await client.get(ISOS, metadata),
      ({ status }) => status?.phase === 'Ready',
      STEP,
    );
    expect(ready).toMatchObject({
      status: { digest: `sha256:${http.sha256}`, size: String(downloads.bytes) },
    });
    expectRising(isos.of('installer'));
    expectRising(vms.of('installed'));
  },
  TEST_MILLISECONDS,
);

test(
  'an arm64 VM image in the form of Tart boots on an ARM host, and is refused on another with both architectures',
  async () => {
    const raw = await rawGuest('arm64');
    const image = await pushTart(registry, 'team/tart:v1', raw, { architecture: 'arm64' });
    const [port, otherPort] = [await freePort(), await freePort()];
    await apply('x86', image, SECRET, otherPort);
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
    await apply('tart', image, SECRET, port, 'arm64');
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
