/** The image cache with real hosts. Images are on hosts before VMs need them, and their removal breaks no deployment. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { contentName } from '../../../api/v1alpha1/cachetargets.ts';
import { TASK_ANNOTATION } from '../../../api/v1alpha1/names.ts';
import { NODES, PODS, SECRETS } from '../../../kube/core.ts';
import { IMAGES } from '../../../api/v1alpha1/resources.ts';
import { CacheEntries, rowOf } from '../../fixtures/cacheentries.ts';
import { Downloads } from '../../wires/downloads.ts';
import { createImage, guestFile } from '../../fixtures/images.ts';
import { startRegistry, type TestRegistry } from '../../wires/registry.ts';
import { pushContainerDisk } from '../../fixtures/vmimages.ts';
import { waitFor } from '../../../hack/wait.ts';
import { BOOT, SET_UP_MILLISECONDS, STEP, World } from '../../worlds/vm.ts';

const TEST_MILLISECONDS = 300_000;
const NAMESPACE = 'platform-default';

let folder: string;
let registry: TestRegistry;
let downloads: Downloads;
let world: World;
let entries: CacheEntries;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-image-cache-'));
  registry = await startRegistry({ directory: folder });
  downloads = await Downloads.serve(await guestFile('amd64'));
  world = await World.start({
    name: 'image-cache',
    architecture: 'amd64',
    hosts: { one: '127.0.0.1', two: '127.0.0.2' },
    images: { allowLoopbackHttp: true, registries: [{ host: registry.host, caFile: registry.caFile }] },
  });
  await makeSecret();
  entries = new CacheEntries(world.cluster);
}, SET_UP_MILLISECONDS);

afterAll(async () => {
  await world?.[Symbol.asyncDispose]();
  await downloads?.close();
  await registry?.close();
  if (folder !== undefined) {
    await rm(folder, { recursive: true, force: true });
  }
});

async function makeSecret(): Promise<void> {
  await world.cluster.client().create(SECRETS, {
    metadata: { name: 'pull', namespace: NAMESPACE },
    type: 'kubernetes.io/dockerconfigjson',
    stringData: { '.dockerconfigjson': registry.dockerConfigJson() },
  });
}

/** Creates an Image, which a Job fetches to one host. Resolves with the name of the other host. */
async function fetchedTo(name: string): Promise<string> {
  await createImage(world.cluster, name, { http: downloads.next() });
  const digest = await waitFor(
    `Image ${name} to be Ready`,
    async () => {
      const image = await world.cluster.client().get(IMAGES, { namespace: NAMESPACE, name });
      return image.status?.phase === 'Ready' && image.status.digest;
    },
    STEP,
  );
  const listing = await waitFor(`a host to list Image ${name}`, async () => {
    const hosts = await Promise.all(
      ['one', 'two'].map(async (host) => ((await lists(host, digest)) ? host : '')),
    );
    return hosts.find((host) => host !== '');
  });
  return listing === 'one' ? 'two' : 'one';
}

/** Returns whether the Node lists the content with this digest. */
async function lists(host: string, digest: string): Promise<boolean> {
  const { status } = await world.cluster.client().get(NODES, { name: host });
  return status?.images?.some(({ names }) => names?.includes(contentName(digest))) ?? false;
}

async function digestOf(name: string): Promise<string> {
  return (await entries.get(name)).status?.digest ?? '';
}

/** Waits until the agent removes the image and has not finished. */
async function untilRemoving(host: string): Promise<void> {
  await waitFor(
    `a removal on ${host} to be under way`,
    async () => {
      const { items } = await world.cluster.client().list(PODS, { namespace: NAMESPACE });
      return items.some(({ metadata, spec, status }) => {
        const isRemoval = metadata.annotations?.[TASK_ANNOTATION]?.includes('"uncache"') ?? false;
        return isRemoval && spec.nodeName === host && status?.phase === 'Running';
      });
    },
    STEP,
  );
}

test(
  'an image is put on every host; a VM there fetches nothing',
  async () => {
    const other = await fetchedTo('desktop');
    await entries.create('desktop', {
      imageRef: { namespace: NAMESPACE, name: 'desktop' },
      targets: { all: true },
    });
    await entries.waitUntilCached('desktop', 2, STEP);
    expect(await lists(other, await digestOf('desktop'))).toBe(true);
    const { stdout } = await world.cluster.kubectl(['get', 'ice', 'desktop', '-n', NAMESPACE]);
    expect(stdout).toMatch(/^desktop +berth\.dev\/platform-default\/desktop\S* .*2/m);
    // From now on the web server answers each request only by half.
    downloads.holdBack();
    const { length: asked } = downloads.starts;
    await world.makeVM('quick', { image: 'desktop', placement: { node: other } });
    await world.vms.waitForPhase('quick', 'Running', undefined, BOOT);
    expect(downloads.starts).toHaveLength(asked);
    downloads.release();
    await world.kubectl('delete', 'vm', 'quick');
  },
  TEST_MILLISECONDS,
);

test(
  'a removal while a VM is being deployed from the image waits, and both succeed',
  async () => {
    const reference = await pushContainerDisk(registry, 'team/guest:1', await guestFile('amd64'));
    const targets = { nodes: ['one'] };
    await entries.create('private', { reference, targets, pullSecretName: 'pull' });
    await entries.waitUntilCached('private', 1, STEP);
    const digest = await digestOf('private');
    // A new agent has not stored for whom the registry opens the image.
    const agent = world.host('one');
    await agent.stop();
    await agent.startAgain();
    await agent.ready();
    // The host asks the registry whether the VM may use the stored image, and gets no answer yet.
    registry.traffic.hold();
    const imagePullSecrets = [{ name: 'pull' }];
    await world.makeVM('patient', { image: reference, imagePullSecrets, placement: { node: 'one' } });
    await world.vms.waitForPhase('patient', 'Pulling', undefined, STEP);
    await waitFor('the host to ask', () => registry.traffic.hasHeld, STEP);
    await entries.delete('private');
    await untilRemoving('one');
    // The operator may hold the change of the status back for a moment.
    await entries.waitFor(
      'private',
      'its row to be Removing',
      (entry) => rowOf(entry, 'one')?.state === 'Removing',
      STEP,
    );
    expect(await lists('one', digest)).toBe(true);
    registry.traffic.release();
    await world.vms.waitForPhase('patient', 'Running', undefined, BOOT);
    await entries.waitUntilGone('private', STEP);
    await waitFor('the host not to list it any more', async () => !(await lists('one', digest)), STEP);
    expect((await world.vms.get('patient')).status?.phase).toBe('Running');
  },
  TEST_MILLISECONDS,
);
