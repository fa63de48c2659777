/** Faults of images and registries, as VM, Image and ImageCacheEntry report them. */
import { mkdtemp, readdir, rm, stat, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { Registries } from '../../../agent/images/oci/repository.ts';
import { Keyring } from '../../../agent/images/oci/credentials.ts';
import { SECRETS } from '../../../kube/core.ts';
import { IMAGE_CACHE_ENTRIES, IMAGES } from '../../../api/v1alpha1/resources.ts';
import { freePort } from '../../../hack/cluster/ports.ts';
import { guestFile } from '../../fixtures/images.ts';
import { startRegistry, type TestRegistry } from '../../wires/registry.ts';
import { conditionOf } from '../../fixtures/vms.ts';
import {
  containerImage,
  type ImageToPush,
  pushContainerDisk,
  pushImage,
  tarOf,
} from '../../fixtures/vmimages.ts';
import { waitFor } from '../../../hack/wait.ts';
import { page } from '../../worlds/qemuguest.ts';
import { BOOT, SET_UP_MILLISECONDS, STEP, World } from '../../worlds/vm.ts';

const TEST_MILLISECONDS = 300_000;
const NAMESPACE = 'platform-default';
const MEBIBYTE = 1024 * 1024;

let folder: string;
let registry: TestRegistry;
let registries: Registries;
let world: World;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-image-faults-'));
  registry = await startRegistry({ directory: join(folder, 'registry') });
  const settings = { host: registry.host, caFile: registry.caFile };
  registries = new Registries({ registries: [settings], allowLoopbackHttp: true });
  world = await World.start({
    name: 'image-faults',
    architecture: 'amd64',
    hosts: { host: '127.0.0.1', small: '127.0.0.2' },
    images: (host) => ({ registries: [settings], ...(host === 'small' && { budget: '8Mi' }) }),
  });
  await makeSecret(NAMESPACE, 'right', registry.dockerConfigJson());
  await makeSecret(NAMESPACE, 'wrong', registry.dockerConfigJson('guessed'));
}, SET_UP_MILLISECONDS);

afterAll(async () => {
  await world?.[Symbol.asyncDispose]();
  await registries?.close();
  await registry?.close();
  if (folder !== undefined) {
    await rm(folder, { recursive: true, force: true });
  }
});

async function makeSecret(namespace: string, name: string, text: string): Promise<void> {
  await world.cluster.client().create(SECRETS, {
    metadata: { name, namespace },
    type: 'kubernetes.io/dockerconfigjson',
    stringData: { '.dockerconfigjson': text },
  });
}

async function push(name: string, image: ImageToPush): Promise<string> {
  const [credential] = Keyring.parse([registry.dockerConfigJson()]).candidates(registry.host, name);
  const repository = registries.repository({ registry: registry.host, repository: name }, credential);
  await pushImage(repository, 'v1', image);
  return `${registry.host}/${name}:v1`;
}

function disk(name: string): Buffer {
  return tarOf([{ name, content: Buffer.alloc(MEBIBYTE, 'disk') }]);
}

/** Returns the file in which the registry stores the one large blob of the newest repository. */
async function newestBlob(): Promise<string> {
  const root = join(registry.directory, 'data', 'docker', 'registry', 'v2', 'blobs', 'sha256');
  const files = await readdir(root, { recursive: true });
  const blobs = await Promise.all(
    files
      .filter((name) => name.endsWith('/data'))
      .map(async (name) => ({ path: join(root, name), about: await stat(join(root, name)) })),
  );
  const large = blobs.filter(({ about }) => about.size > 1000);
  return large.reduce((last, blob) => (blob.about.mtimeMs > last.about.mtimeMs ? blob : last)).path;
}

/** Uses the reference in a VM, an Image and an ImageCacheEntry. Returns their messages. */
async function tell(name: string, reference: string, secret = 'right'): Promise<Record<string, string>> {
  const client = world.cluster.client();
  const imagePullSecrets = [{ name: secret }];
  await world.makeVM(name, { image: reference, imagePullSecrets, placement: { node: 'host' } });
  const source = { registry: { reference } };
  await client.create(IMAGES, {
    metadata: { name, namespace: NAMESPACE },
    spec: { source, imagePullSecrets },
  });
  const targets = { all: true };
  await client.create(IMAGE_CACHE_ENTRIES, {
    metadata: { name, namespace: NAMESPACE },
    spec: { reference, targets, pullSecretName: secret },
  });
  const vm = await world.vms.waitForVM(
    name,
    `VM ${name} to say what is wrong`,
    (seen) => seen.status?.failure !== undefined || conditionOf(seen, 'ImageReady')?.status === 'False',
    STEP,
  );
  const image = await waitFor(
    `Image ${name} to be Failed`,
    async () => {
      const { status } = await client.get(IMAGES, { namespace: NAMESPACE, name });
      return status?.phase === 'Failed' && status.conditions?.find(({ type }) => type === 'Ready');
    },
    STEP,
  );
  const row = await waitFor(
    `ImageCacheEntry ${name} to have a failed host`,
    async () => {
      const { status } = await client.get(IMAGE_CACHE_ENTRIES, { name, namespace: NAMESPACE });
      return status?.nodes?.find(({ state }) => state === 'Failed');
    },
    STEP,
  );
  const { reason, message } = vm.status?.failure ?? conditionOf(vm, 'ImageReady') ?? {};
  await world.kubectl('delete', '--wait=false', 'vm', name);
  await client.delete(IMAGE_CACHE_ENTRIES, { name, namespace: NAMESPACE });
  return {
    vm: `${reason}: ${message}`,
    image: `${image.reason}: ${image.message}`,
    entry: row.message ?? '',
  };
}

/** Checks that all three messages have the same reason and the known details. */
function expectAll(reported: Record<string, string>, ...patterns: RegExp[]): void {
  for (const text of Object.values(reported)) {
    for (const pattern of patterns) {
      expect(text).toMatch(pattern);
    }
  }
}

test(
  'a wrong password: ImageAccessDenied in VM, Image and cache entry',
  async () => {
    const reference = await push('team/locked', containerImage([disk('disk/disk.img')]));
    expectAll(await tell('locked', reference, 'wrong'), /ImageAccessDenied/, /team\/locked/);
  },
  TEST_MILLISECONDS,
);

test(
  'a tag that does not exist: ImageNotFound in all three',
  async () => {
    expectAll(await tell('missing', `${registry.host}/team/locked:none`), /ImageNotFound/, /team\/locked/);
  },
  TEST_MILLISECONDS,
);

test(
  'content with another digest: DigestMismatch in all three',
  async () => {
    const reference = await push('team/mismatch', containerImage([disk('disk/mismatch.img')]));
    const blob = await newestBlob();
    await writeFile(blob, Buffer.alloc((await stat(blob)).size, 'x'));
    expectAll(await tell('mismatch', reference), /DigestMismatch/, /sha256:/);
  },
  TEST_MILLISECONDS,
);

test(
  'a blob that ends too soon: all three have a reason with the digest or the bytes',
  async () => {
    const reference = await push('team/truncated', containerImage([disk('disk/truncated.img')]));
    await truncate(await newestBlob(), 4_096);
    expectAll(
      await tell('truncated', reference),
      /ImageFetchFailed|DigestMismatch|ImageInvalid/,
      /sha256:|bytes/,
    );
  },
  TEST_MILLISECONDS,
);

test(
  'a path that leads out of the image: ImageInvalid in all three',
  async () => {
    const item = { name: 'disk/../../outside', content: Buffer.alloc(MEBIBYTE) };
    const reference = await push('team/outside', containerImage([tarOf([item])]));
    expectAll(await tell('outside', reference), /ImageInvalid/, /outside/);
  },
  TEST_MILLISECONDS,
);

test(
  'a layer that unpacks to 10 TiB: refused in all three, with the bytes',
  async () => {
    const tar = tarOf([{ name: 'disk/disk.img', size: 10 * 1024 ** 4 }]).subarray(0, 512);
    const bytes = gzipSync(Buffer.concat([tar, Buffer.alloc(64 * MEBIBYTE)]));
    const reference = await push('team/bomb', containerImage([bytes], 'gzip'));
    expectAll(await tell('bomb', reference), /ImageInvalid|DiskFull/, /bytes/);
  },
  TEST_MILLISECONDS,
);

test(
  'a layer of 1 MB that claims 20 GB: all three have a reason',
  async () => {
    const image = containerImage([disk('disk/claim.img')]);
    const layers = image.layers.map((layer) => ({ ...layer, describedAs: { size: 20 * 1024 ** 3 } }));
    const reference = await push('team/claim', { ...image, layers });
    expectAll(await tell('claim', reference), /ImageFetchFailed|ImageInvalid|DiskFull/, /bytes|team\/claim/);
  },
  TEST_MILLISECONDS,
);

test(
  'a host without room for the image: DiskFull in VM and cache entry, with the bytes that it needs',
  async () => {
    const reference = await pushContainerDisk(registry, 'team/large:1', await guestFile('amd64'));
    const imagePullSecrets = [{ name: 'right' }];
    await world.makeVM('large', { image: reference, imagePullSecrets, placement: { node: 'small' } });
    const client = world.cluster.client();
    const spec = { reference, targets: { nodes: ['small'] }, pullSecretName: 'right' };
    await client.create(IMAGE_CACHE_ENTRIES, { metadata: { name: 'large', namespace: NAMESPACE }, spec });
    const full = { status: 'False', reason: 'DiskFull' } as const;
    const { message } = await world.vms.waitForCondition('large', 'ImageReady', full, STEP);
    expect(message).toMatch(/needs \d+ bytes, and this host has too little disk space for it/);
    const row = await waitFor('the entry to say so', async () => {
      const { status } = await client.get(IMAGE_CACHE_ENTRIES, { name: 'large', namespace: NAMESPACE });
      return status?.nodes?.find(
        ({ node, message: reported }) => node === 'small' && reported?.includes('DiskFull'),
      );
    });
    expect(row.message).toMatch(/needs \d+ bytes, and this host has too little disk space for it/);
    await client.delete(IMAGE_CACHE_ENTRIES, { name: 'large', namespace: NAMESPACE });
    await world.kubectl('delete', '--wait=false', 'vm', 'large');
  },
  TEST_MILLISECONDS,
);

test(
  'after all these faults, the host has no image that could be used',
  async () => {
    const { dataDirectory } = world.host('host');
    expect(await readdir(join(dataDirectory, 'images', 'sha256'))).toEqual([]);
  },
  TEST_MILLISECONDS,
);

test(
  // What is fetched again then, and what not, is counted in test/images/store-cuts.test.ts.
  'a registry that goes away half-way, and an agent killed meanwhile: told, tried again, and the VM runs',
  async () => {
    const reference = await pushContainerDisk(registry, 'team/guest:1', await guestFile('amd64'));
    const { size } = await stat(await newestBlob());
    registry.traffic.breakAfter(Math.floor(size / 2));
    const port = await freePort();
    const imagePullSecrets = [{ name: 'right' }];
    const placement = { node: 'host' };
    await world.makeVM('patient', { image: reference, imagePullSecrets, ports: [`${port}:80`], placement });
    await waitFor('the connection to be cut', () => registry.traffic.hasBroken, STEP);
    await registry.stop();
    const agent = world.host('host');
    await agent.kill();
    await agent.startAgain();
    await agent.ready();
    await world.vms.waitForVM(
      'patient',
      'VM patient to say that its registry is away',
      (seen) => conditionOf(seen, 'ImageReady')?.reason === 'ImageFetchFailed',
      STEP,
    );
    await registry.restart();
    await world.vms.waitForPhase('patient', 'Running', undefined, BOOT);
    expect(await page(port)).toMatchObject({ boots: '1' });
  },
  TEST_MILLISECONDS,
);
