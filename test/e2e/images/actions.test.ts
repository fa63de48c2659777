/** Disks of VMs that are saved, committed and pushed while the guest writes, and then deployed elsewhere. */
import { execFile } from 'node:child_process';
import { copyFile, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { Image, ImageSpec } from '../../../api/v1alpha1/image.ts';
import { STORAGE_SECRET, SYSTEM_NAMESPACE, USER_DATA_SECRET_TYPE } from '../../../api/v1alpha1/names.ts';
import { SECRETS } from '../../../kube/core.ts';
import { IMAGES, VM_SNAPSHOTS } from '../../../api/v1alpha1/resources.ts';
import { freePort } from '../../../hack/cluster/ports.ts';
import { Downloads } from '../../wires/downloads.ts';
import { startRegistry, type TestRegistry } from '../../wires/registry.ts';
import { waitFor } from '../../../hack/wait.ts';
import { makeCopyDisk } from '../../fixtures/copydisk.ts';
import { expectUntold } from '../../support/told.ts';
import { page, tell } from '../../worlds/qemuguest.ts';
import { BOOT, SET_UP_MILLISECONDS, STEP, World } from '../../worlds/vm.ts';

const TEST_MILLISECONDS = 600_000;
const OTHER_ADDRESS = '127.0.0.2';
const NAMESPACE = 'platform-default';
const PASSWORD = 'planted-9e0d4a';
/**
 * Program that a guest runs at the end of its renewal. It notes the last number that the writer has in the memory, and all numbers on the disk,
 * which it reads without the cache. The writer waits meanwhile.
 */
const MOMENT_HOOK = `cat >/etc/berth/renew.d/moment <<'END'
#!/bin/sh
writer=$(pidof write-on)
kill -STOP $writer
until [ "$(cat /data/number-* | wc -l)" = 20 ]; do usleep 10000; done
echo 3 >/proc/sys/vm/drop_caches
cat /var/run/number /data/number-* >/var/run/moment
kill -CONT $writer
END
chmod 755 /etc/berth/renew.d/moment`;

let directory: string;
let registry: TestRegistry;
let world: World;
let port: number;
/** Size of the VM from the packed file. */
let packedPort: number;

beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'berth-image-actions-'));
  registry = await startRegistry({ directory: join(directory, 'registry') });
  const credentialsFile = join(directory, 'storage.json');
  await writeFile(credentialsFile, registry.dockerConfigJson(), { mode: 0o600 });
  world = await World.start({
    name: 'image-actions',
    architecture: 'amd64',
    hosts: { one: '127.0.0.1', two: OTHER_ADDRESS },
    images: {
      allowLoopbackHttp: true,
      registries: [{ host: registry.host, caFile: registry.caFile, credentialsFile }],
    },
    operatorConfig: { imageStorage: { registry: { prefix: `${registry.host}/storage` }, keepSeconds: 5 } },
  });
  // Hosts can read it only during a task that writes to the image storage.
  await world.cluster.client().create(SECRETS, {
    metadata: { name: STORAGE_SECRET, namespace: SYSTEM_NAMESPACE },
    type: 'kubernetes.io/dockerconfigjson',
    stringData: { '.dockerconfigjson': registry.dockerConfigJson() },
  });
  await world.cluster.client().create(SECRETS, {
    metadata: { name: 'regcred', namespace: NAMESPACE },
    type: 'kubernetes.io/dockerconfigjson',
    stringData: { '.dockerconfigjson': registry.dockerConfigJson() },
  });
  // The disk has a file system behind the guest image, to which the guest writes without a pause. No test depends on the time of a copy.
  await makeCopyDisk(join(world.shared, 'guest.qcow2'), join(world.shared, 'writer.raw'), 1);
  await world.makeImage('writer', 'writer.raw');
  await world.cluster.client().create(SECRETS, {
    metadata: { name: 'first-boot', namespace: NAMESPACE },
    type: USER_DATA_SECRET_TYPE,
    stringData: { 'user-data': `#cloud-config\n{"password":"${PASSWORD}"}\n` },
  });
  port = await freePort();
  const placement = { node: 'one' };
  await world.makeVM('source', {
    image: 'writer',
    ports: [`${port}:80`],
    readiness: { type: 'Port', port: 80 },
    userDataSecretRef: { name: 'first-boot', key: 'user-data' },
    placement,
  });
  await world.waitForCondition('Ready', 'source');
  expect(await tell(port, 'write')).toBe('writing\n');
}, SET_UP_MILLISECONDS);

afterAll(async () => {
  await world?.[Symbol.asyncDispose]();
  await registry?.close();
  if (directory !== undefined) {
    await rm(directory, { recursive: true, force: true });
  }
});

async function create(name: string, spec: ImageSpec): Promise<void> {
  await world.cluster.client().create(IMAGES, { metadata: { name, namespace: NAMESPACE }, spec });
}

async function untilImage(name: string, matches: (image: Image) => boolean): Promise<Image> {
  let last: Image | undefined;
  const look = async (): Promise<Image | false> => {
    last = await world.cluster.client().get(IMAGES, { namespace: NAMESPACE, name });
    return matches(last) && last;
  };
  try {
    return await waitFor(`Image ${name}`, look, BOOT);
  } catch (error) {
    throw new Error(`${String(error)}: ${JSON.stringify(last?.status)}`, { cause: error });
  }
}

function untilReady(name: string): Promise<Image> {
  return untilImage(name, ({ status }) => status?.phase === 'Ready');
}

/**
 * Deploys a VM of the image on the other host. Returns its page, and checks that its disk shows one moment of the guest that wrote to it.
 */
async function deploy(name: string, image: string): Promise<Record<string, string>> {
  const own = await freePort();
  const readiness = { type: 'Port' as const, port: 80 };
  await world.makeVM(name, { image, ports: [`${own}:80`], readiness, placement: { node: 'two' } });
  await world.waitForCondition('Ready', name);
  const text = await tell(own, 'numbers', OTHER_ADDRESS);
  const numbers = (text.match(/^\d+$/gm) ?? []).map(Number).toSorted((a, b) => a - b);
  const last = numbers.at(-1) ?? 0;
  // A guest on a busy machine may have written fewer numbers by then.
  const length = Math.min(19, last);
  expect(length).toBeGreaterThan(0);
  expect(numbers.slice(-length)).toEqual(Array.from({ length }, (_, index) => last - length + 1 + index));
  return { ...(await page(own, OTHER_ADDRESS)), mounted: text };
}

test(
  'a running VM is saved as a new Image while it writes; a VM of it on another host has the earlier content',
  async () => {
    expect(await tell(port, 'marker=before')).toBe('saved\n');
    await create('saved', { source: { fromVM: { name: 'source' } } });
    const { status } = await untilReady('saved');
    expect(status).toMatchObject({ consistency: 'Crash', size: '1Gi' });
    expect(status?.content?.reference).toMatch(/\/storage\/platform-default\/saved@sha256:/);
    expect(await tell(port, 'marker=after')).toBe('saved\n');
    expect(await page(port)).toMatchObject({ boots: '1', marker: 'after' });
    const copy = await deploy('copy', 'saved');
    expect(copy).toMatchObject({ boots: '2', marker: 'before' });
    expect(copy['mounted']).toContain('recovery complete');
    const jobs = await world.kubectl('get', 'jobs', '-o', 'name');
    const job = jobs.split('\n').find((name) => name.includes('image-save')) ?? '';
    expect(await world.kubectl('logs', job)).toMatch(
      /Copying the disk of VM platform-default\/source[^]*Stored sha256:/,
    );
    await world.kubectl('delete', 'vm', 'copy');
  },
  TEST_MILLISECONDS,
);

test(
  'an Image gets the disk of a snapshot, not the present one of the VM',
  async () => {
    expect(await tell(port, 'marker=kept')).toBe('saved\n');
    await world.cluster.client().create(VM_SNAPSHOTS, {
      metadata: { name: 'kept', namespace: NAMESPACE },
      spec: { vmName: 'source' },
    });
    await world.kubectl('wait', '--for=condition=Ready', 'vmsnapshot/kept', '--timeout=60s');
    expect(await tell(port, 'marker=after')).toBe('saved\n');
    await create('of-snapshot', { source: { fromVM: { name: 'source', snapshot: 'kept' } } });
    expect((await untilReady('of-snapshot')).status).toMatchObject({ consistency: 'Crash', size: '1Gi' });
    expect(await page(port)).toMatchObject({ boots: '1', marker: 'after' });
    expect(await deploy('of-kept', 'of-snapshot')).toMatchObject({ boots: '2', marker: 'kept' });
    await world.kubectl('delete', 'vm', 'of-kept');
  },
  TEST_MILLISECONDS,
);

/** Names of the files on a host that have the user data of the VM `source`. Compressed files are not searched. */
async function filesWithPassword(host: string): Promise<string[]> {
  const search = async (): Promise<string> => {
    const found = promisify(execFile)('grep', ['-rlF', PASSWORD, world.host(host).dataDirectory]);
    const { stdout } = await found.catch((error: { code: number; stdout: string }) => {
      expect(error.code, 'grep found nothing').toBe(1);
      return error;
    });
    return stdout;
  };
  // A search fails if the agent replaces a file meanwhile.
  const paths = await waitFor(`a search of host ${host}`, search);
  return paths.split('\n').flatMap((path) => (path === '' ? [] : [basename(path)]));
}

test(
  'the user data of a VM is in no Image that is saved from it, and is not shown to anybody',
  async () => {
    await untilReady('saved');
    expect((await filesWithPassword('one')).toSorted()).toEqual(['seed.iso', 'seed.json']);
    // The other host still has the disk of the VM that ran from the Image.
    expect(await filesWithPassword('two')).toEqual([]);
    await expectUntold(world.cluster, PASSWORD);
  },
  TEST_MILLISECONDS,
);

test(
  'a commit writes the disk over an Image, and later VMs get the new content',
  async () => {
    const { digest: before } = (await untilReady('saved')).status ?? {};
    expect(await tell(port, 'marker=committed')).toBe('saved\n');
    expect(await tell(port, 'agent=0')).toBe('listening\n');
    const requestedAt = new Date().toISOString();
    const commit = { vmName: 'source', requestedAt };
    await world.kubectl(
      'patch',
      'image',
      'saved',
      '--type=merge',
      '-p',
      JSON.stringify({ spec: { commit } }),
    );
    const { status } = await untilImage(
      'saved',
      (image) => image.status?.lastCommit?.requestedAt === requestedAt,
    );
    expect(status).toMatchObject({ phase: 'Ready', lastCommit: { result: 'Succeeded' } });
    expect(status?.consistency).toBe('FileSystem');
    expect(status?.digest).not.toBe(before);
    const later = await deploy('later', 'saved');
    expect(later).toMatchObject({ marker: 'committed' });
    expect(later['mounted']).not.toContain('recovery complete');
    await world.kubectl('delete', 'vm', 'later');
  },
  TEST_MILLISECONDS,
);

test(
  'an Image with memory: a VM of it on another host goes on where the guest was saved, with a name of its own',
  async () => {
    expect(await tell(port, 'marker=warm')).toBe('saved\n');
    expect(await tell(port, 'agent=0')).toBe('listening\n');
    await world.kubectl('exec', 'source', '--', 'sh', '-c', MOMENT_HOOK);
    await create('warm', { source: { fromVM: { name: 'source', memory: true } } });
    const { status } = await untilReady('warm');
    expect(status).toMatchObject({ consistency: 'FileSystem', memory: { cpu: 1 } });
    expect(await page(port)).toMatchObject({ boots: '1', marker: 'warm' });
    const [own, other] = [await freePort(), await freePort()];
    const common = {
      image: 'warm',
      readiness: { type: 'Port' as const, port: 80 },
      placement: { node: 'two' },
    };
    await world.makeVM('warm', { ...common, ports: [`${own}:80`] });
    await world.waitForCondition('Ready', 'warm');
    await expectCondition('warm', { status: 'True', reason: 'Renewed' });
    // The guest has its address a moment before it writes its page anew.
    const hasName = async () => (await page(own, OTHER_ADDRESS))['hostname'] === 'warm';
    await waitFor('the page with the name of the VM', hasName, STEP);
    expect(await page(own, OTHER_ADDRESS)).toMatchObject({ boots: '1', marker: 'warm' });
    expectOneMoment(await world.kubectl('exec', 'warm', '--', 'cat', '/var/run/moment'));
    // The guest wrote to its disk when it was saved, and goes on with that.
    const saved = Number(await tell(own, 'number', OTHER_ADDRESS));
    const goesOn = async () => Number(await tell(own, 'number', OTHER_ADDRESS)) > saved;
    await waitFor('the guest to write', goesOn, STEP);
    await world.makeVM('cold', { ...common, start: 'Cold', ports: [`${other}:80`] });
    await world.waitForCondition('Ready', 'cold');
    await expectCondition('cold', { status: 'False', reason: 'ColdWanted' });
    expect(await page(other, OTHER_ADDRESS)).toMatchObject({ boots: '2', marker: 'warm' });
    await world.kubectl('delete', 'vm', 'warm', 'cold');
    await world.kubectl('delete', 'image', 'warm');
  },
  TEST_MILLISECONDS,
);

/**
 * Checks what {@link MOMENT_HOOK} has noted. A disk that is older than the memory would lack the last of the numbers, and a newer one would
 * have more. The writer notes a number in the memory after it is on the disk.
 */
function expectOneMoment(noted: string): void {
  const [inMemory = 0, ...onDisk] = (noted.match(/^\d+$/gm) ?? []).map(Number);
  const numbers = onDisk.toSorted((a, b) => a - b);
  const last = numbers.at(-1) ?? 0;
  expect(numbers).toEqual(Array.from({ length: 20 }, (_, index) => last - 19 + index));
  expect([inMemory, inMemory + 1]).toContain(last);
}

async function expectCondition(name: string, expected: { status: string; reason: string }): Promise<void> {
  const path = 'jsonpath={.status.conditions[?(@.type=="WarmStart")]}';
  expect(JSON.parse(await world.kubectl('get', 'vm', name, '-o', path))).toMatchObject(expected);
}

test(
  'a push publishes under a full reference; skopeo sees it, and a VM runs from it on another host',
  async () => {
    const requestedAt = new Date().toISOString();
    const reference = `${registry.host}/published/desktop:v1`;
    const push = { reference, secretName: 'regcred', requestedAt };
    await world.kubectl('patch', 'image', 'saved', '--type=merge', '-p', JSON.stringify({ spec: { push } }));
    const { status } = await untilImage(
      'saved',
      (image) => image.status?.lastPush?.requestedAt === requestedAt,
    );
    const [, digest = ''] = status?.lastPush?.reference?.split('@') ?? [];
    expect(status?.lastPush).toMatchObject({
      result: 'Succeeded',
      reference: `${registry.host}/published/desktop@${digest}`,
    });
    const raw = await registry.skopeo('inspect', '--raw', `docker://${reference}`);
    expect(JSON.parse(raw)).toMatchObject({ artifactType: 'application/vnd.berth.disk.v1' });
    expect(await registry.skopeo('inspect', '--format', '{{.Digest}}', `docker://${reference}`)).toBe(
      `${digest}\n`,
    );
    await create('published', {
      source: { registry: { reference } },
      imagePullSecrets: [{ name: 'regcred' }],
    });
    expect(await deploy('pulled', 'published')).toMatchObject({ marker: 'committed' });
  },
  TEST_MILLISECONDS,
);

test(
  'a refused push is reported in a condition, and the Image stays unchanged',
  async () => {
    const { digest, content, size } = (await untilReady('saved')).status ?? {};
    await world.cluster.client().create(SECRETS, {
      metadata: { name: 'wrong', namespace: NAMESPACE },
      type: 'kubernetes.io/dockerconfigjson',
      stringData: { '.dockerconfigjson': registry.dockerConfigJson('guessed') },
    });
    const requestedAt = new Date().toISOString();
    const push = { reference: `${registry.host}/published/other:v1`, secretName: 'wrong', requestedAt };
    await world.kubectl('patch', 'image', 'saved', '--type=merge', '-p', JSON.stringify({ spec: { push } }));
    const { status } = await untilImage(
      'saved',
      (image) => image.status?.lastPush?.requestedAt === requestedAt,
    );
    const condition = status?.conditions?.find(({ type }) => type === 'Pushed');
    expect(condition).toMatchObject({ status: 'False', reason: 'ImageAccessDenied' });
    expect(condition?.message).toContain(registry.host);
    expect(status).toMatchObject({ phase: 'Ready', digest, content, size });
  },
  TEST_MILLISECONDS,
);

test(
  'a packed file of a web server is kept in the storage: VMs are made of it when the server is gone',
  async () => {
    const file = join(directory, 'guest.qcow2');
    await copyFile(join(world.shared, 'guest.qcow2'), file);
    // The best compression takes ten times as long.
    await promisify(execFile)('xz', ['-0', file]);
    const downloads = await Downloads.serve(`${file}.xz`);
    await create('packed', { source: { http: downloads.next() } });
    const { status } = await untilReady('packed');
    await downloads.close();
    expect(status?.content).toMatchObject({ type: 'storedArtifact' });
    packedPort = await freePort();
    const ports = [`${packedPort}:80`];
    await world.makeVM('unpacked', { image: 'packed', ports, placement: { node: 'two' } });
    await world.vms.waitForPhase('unpacked', 'Running', undefined, BOOT);
    expect(await page(packedPort, OTHER_ADDRESS)).toMatchObject({ boots: '1' });
  },
  TEST_MILLISECONDS,
);

test('kubectl shows the history of an Image', async () => {
  const table = await world.kubectl('get', 'images', '-o', 'wide');
  expect(table).toMatch(/^saved +Ready +1Gi /m);
  await waitFor(
    'events of Image saved',
    async () => {
      const story = await world.kubectl('describe', 'image', 'saved');
      return ['CommitSucceeded', 'PushSucceeded', 'PushFailed'].every((reason) => story.includes(reason));
    },
    STEP,
  );
});

test(
  'a host removes the stored content of a deleted Image; the VM made from it starts again without it',
  async () => {
    const { status } = await untilReady('packed');
    const reference = `docker://${status?.content?.reference}`;
    expect(await registry.skopeo('inspect', '--raw', reference)).toContain('vnd.berth.disk');
    await world.kubectl('delete', 'image', 'packed');
    const isRemoved = async (): Promise<boolean> => {
      try {
        await registry.skopeo('inspect', '--raw', reference);
        return false;
      } catch (error) {
        return String(error).includes('manifest unknown');
      }
    };
    await waitFor('the content to be gone', isRemoved, STEP);
    await world.patch('unpacked', { restartRequestedAt: new Date().toISOString() });
    await waitFor(
      'the VM to have started again',
      async () => (await page(packedPort, OTHER_ADDRESS))['boots'] === '2',
      BOOT,
    );
    // The content that the commit replaced still waits for the end of its time.
    const begun = 'jsonpath={.items[?(@.spec.suspend==false)].metadata.name}';
    const jobs = ['get', 'jobs', '-n', 'berth-system', '-l', 'berth.dev/operation=remove', '-o', begun];
    await waitFor('its Job to be gone', async () => (await world.kubectl(...jobs)) === '', STEP);
  },
  TEST_MILLISECONDS,
);
