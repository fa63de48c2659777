/**
 * A Debian cloud image with the driver for the generation ID: saved with its memory, pushed to a registry, pulled by a second host and started
 * there. The emulated guest boots for minutes, so the test runs only on request. It prints what it measured.
 */
import { copyFile, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Image } from '../../../api/v1alpha1/image.ts';
import { STORAGE_SECRET, SYSTEM_NAMESPACE } from '../../../api/v1alpha1/names.ts';
import { IMAGES } from '../../../api/v1alpha1/resources.ts';
import type { VMSpec } from '../../../api/v1alpha1/vm.ts';
import { logIn, makeKey } from '../../../hack/login.ts';
import { waitFor } from '../../../hack/wait.ts';
import { SECRETS } from '../../../kube/core.ts';
import { cloudFile, createImage } from '../../fixtures/images.ts';
import { unless } from '../../support/unless.ts';
import { startRegistry, type TestRegistry } from '../../wires/registry.ts';
import {
  expectDifferent,
  expectEqual,
  expectRightClock,
  type Identity,
  IDENTITY_SCRIPT,
  OWN_PARTS,
  readIdentity,
  SHARED_PARTS,
} from '../../worlds/guestidentity.ts';
import { SET_UP_MILLISECONDS, World } from '../../worlds/vm.ts';

const NAMESPACE = 'platform-default';
/** Time limit for a boot of the emulated guest with cloud-init. On an idle machine it takes a minute. */
const BOOT = { deadlineMilliseconds: 600_000, intervalMilliseconds: 500 };
/** Interval at which a start is measured. */
const START = { deadlineMilliseconds: 120_000, intervalMilliseconds: 20 };
const TEST_MILLISECONDS = 1_200_000;
const why = process.getuid?.() === 0 ? undefined : 'only root can make the cloud image';

let folder: string;
let registry: TestRegistry;
let world: World;
let common: Partial<VMSpec>;
/** Identity of the saved guest. */
let saved: Identity;

async function inGuest(name: string, script: string): Promise<string> {
  return await world.kubectl('exec', name, '--', 'sh', '-c', script);
}

async function untilImage(name: string, matches: (image: Image) => boolean): Promise<Image> {
  const look = async (): Promise<Image | false> => {
    const image = await world.cluster.client().get(IMAGES, { namespace: NAMESPACE, name });
    return matches(image) && image;
  };
  return await waitFor(`Image ${name}`, look, BOOT);
}

async function warmStartOf(name: string): Promise<{ status?: string; reason?: string; message?: string }> {
  const { status } = await world.vms.get(name);
  const { type: _, ...condition } = status?.conditions?.find(({ type }) => type === 'WarmStart') ?? {};
  return condition;
}

/** Makes a VM, and returns the seconds until it is Ready. */
async function start(name: string, spec: Partial<VMSpec>): Promise<number> {
  const begun = performance.now();
  await world.makeVM(name, { ...common, ...spec });
  await world.vms.waitForCondition(name, 'Ready', { status: 'True' }, START);
  return (performance.now() - begun) / 1000;
}

describe('a cloud image with memory', unless(why), () => {
  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), 'berth-warm-cloud-'));
    registry = await startRegistry({ directory: join(folder, 'registry') });
    const credentialsFile = join(folder, 'storage.json');
    await writeFile(credentialsFile, registry.dockerConfigJson(), { mode: 0o600 });
    const { host, caFile } = registry;
    world = await World.start({
      name: 'warm-cloud',
      architecture: 'amd64',
      hosts: { one: '127.0.0.1', two: '127.0.0.2' },
      images: { allowLoopbackHttp: true, registries: [{ host, caFile, credentialsFile }] },
      operatorConfig: { imageStorage: { registry: { prefix: `${host}/storage` }, keepSeconds: 5 } },
    });
    for (const [namespace, name] of [
      [SYSTEM_NAMESPACE, STORAGE_SECRET],
      [NAMESPACE, 'regcred'],
    ] as const) {
      await world.cluster.client().create(SECRETS, {
        metadata: { name, namespace },
        type: 'kubernetes.io/dockerconfigjson',
        stringData: { '.dockerconfigjson': registry.dockerConfigJson() },
      });
    }
    await copyFile(await cloudFile(), join(world.shared, 'cloud.qcow2'));
    await world.makeImage('cloud', 'cloud.qcow2');
    const sshAuthorizedKeys = [await makeKey(join(folder, 'key'))];
    common = { memory: '1Gi', readiness: { type: 'GuestAgent' }, sshAuthorizedKeys };
  }, SET_UP_MILLISECONDS);

  afterAll(async () => {
    await world?.[Symbol.asyncDispose]();
    await registry?.close();
    await rm(folder, { recursive: true, force: true });
  });

  test(
    'is saved while its VM goes on, and is pushed to the registry',
    async () => {
      const begun = performance.now();
      await world.makeVM('builder', { ...common, image: 'cloud', placement: { node: 'one' } });
      await world.vms.waitForCondition('builder', 'Ready', { status: 'True' }, BOOT);
      const readySeconds = (performance.now() - begun) / 1000;
      const result = async () => await inGuest('builder', 'cat /run/cloud-init/result.json');
      expect(await waitFor('cloud-init to end', result, BOOT)).toContain('"errors": []');
      const bootSeconds = (performance.now() - begun) / 1000;
      expect(await inGuest('builder', 'echo there >/run/built; ls /sys/bus/*/drivers/vmgenid')).toContain(
        'QEMUVGID',
      );
      saved = readIdentity(await inGuest('builder', IDENTITY_SCRIPT));
      const saving = performance.now();
      await createImage(world.cluster, 'warm', { fromVM: { name: 'builder', memory: true } });
      const { status } = await untilImage('warm', (image) => image.status?.phase === 'Ready');
      expect(status).toMatchObject({ consistency: 'FileSystem', memory: { cpu: 1, size: '1Gi' } });
      const reference = status?.content?.reference ?? '';
      const manifest = await registry.skopeo('inspect', '--raw', `docker://${reference}`);
      const { layers } = JSON.parse(manifest) as { layers: { size: number }[] };
      const megabytes = layers.reduce((sum, { size }) => sum + size, 0) / 1e6;
      expect((await inGuest('builder', 'cat /proc/sys/kernel/random/boot_id')).trim()).toBe(saved.bootId);
      console.log(
        [
          `builder: guest agent after ${readySeconds.toFixed(1)} s, cloud-init done after ${bootSeconds.toFixed(1)} s`,
          `saved and pushed in ${((performance.now() - saving) / 1000).toFixed(1)} s: ${layers.length} layers, ${megabytes.toFixed(0)} MB, ${reference}`,
          `machine-id ${saved.machineId}`,
        ].join('\n'),
      );
    },
    TEST_MILLISECONDS,
  );

  test(
    'starts two VMs on a host that pulls it, and each is a computer of its own',
    async () => {
      const spec = { image: 'warm', placement: { node: 'two' } };
      const pullSeconds = await start('puller', spec);
      const names = ['first', 'second'];
      const seconds = await Promise.all(names.map(async (name) => await start(name, spec)));
      const guests: Identity[] = [];
      for (const [index, name] of names.entries()) {
        const condition = await warmStartOf(name);
        expect(condition).toMatchObject({ status: 'True', reason: 'Renewed' });
        const { kubectlPath, kubeconfig } = world.cluster;
        const key = join(folder, 'key');
        const login = { kubectlPath, kubeconfig, namespace: NAMESPACE, vm: name, user: 'debian', key };
        const loggedIn = await logIn(login, 'hostname; cat /etc/machine-id');
        // The guest has its address by now.
        const guest = readIdentity(await inGuest(name, IDENTITY_SCRIPT));
        expect(loggedIn).toBe(`${name}\n${guest.machineId}\n`);
        guests.push(guest);
        expect(await inGuest(name, 'cat /run/built; dmesg')).toMatch(
          /^there\n[^]*crng reseeded due to virtual machine fork/,
        );
        expect(await inGuest(name, 'systemctl --failed --no-legend')).toBe('');
        await expectRightClock(async (script) => await inGuest(name, script));
        const { reason, message } = condition;
        console.log(
          `${name}: Ready after ${seconds[index]?.toFixed(1)} s, ${reason}: ${message}, machine-id ${guest.machineId}`,
        );
      }
      console.log(`puller, which waited for the pull: Ready after ${pullSeconds.toFixed(1)} s`);
      expectDifferent([saved, ...guests], OWN_PARTS);
      expectEqual([saved, ...guests], [...SHARED_PARTS, 'mac', 'address']);
    },
    TEST_MILLISECONDS,
  );

  test(
    'boots a VM whose image is the same content under a name of its own, because its memory is not trusted',
    async () => {
      const requestedAt = new Date().toISOString();
      const reference = `${registry.host}/published/warm:v1`;
      const push = { reference, secretName: 'regcred', requestedAt };
      await world.kubectl('patch', 'image', 'warm', '--type=merge', '-p', JSON.stringify({ spec: { push } }));
      const { status } = await untilImage(
        'warm',
        (image) => image.status?.lastPush?.requestedAt === requestedAt,
      );
      expect(status?.lastPush).toMatchObject({ result: 'Succeeded' });
      const config = await registry.skopeo('inspect', '--config', '--raw', `docker://${reference}`);
      expect(config).toContain('dev.berth.memory');
      await world.makeVM('foreign', {
        ...common,
        image: reference,
        imagePullSecrets: [{ name: 'regcred' }],
        placement: { node: 'two' },
      });
      const condition = await waitFor(
        'the condition of VM foreign',
        async () => {
          const found = await warmStartOf('foreign');
          return found.status === 'False' && found;
        },
        BOOT,
      );
      expect(condition).toMatchObject({ reason: 'MemoryNotTrusted' });
      console.log(`foreign: ${condition.reason}: ${condition.message}`);
    },
    TEST_MILLISECONDS,
  );
});
