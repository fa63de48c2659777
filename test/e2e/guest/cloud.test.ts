/** A cloud image with the real cloud-init and guest agent, from examples/fedora-containerdisk.yaml, as their user reaches them. */
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { parseDocument } from 'yaml';
import { type Guest, logIn, makeKey } from '../../../hack/login.ts';
import { waitFor } from '../../../hack/wait.ts';
import { cloudFile } from '../../fixtures/images.ts';
import { pushContainerDisk } from '../../fixtures/vmimages.ts';
import { unless } from '../../support/unless.ts';
import { startRegistry, type TestRegistry } from '../../wires/registry.ts';
import { SET_UP_MILLISECONDS, World } from '../../worlds/vm.ts';

const EXAMPLE = join(import.meta.dirname, '..', '..', '..', 'examples', 'fedora-containerdisk.yaml');
const NAME = 'fedora';
const ARCHITECTURE = 'amd64';
/** Time limit for an emulated boot with cloud-init. On an idle machine it takes a minute, and beside three other files several times that. */
const BOOT_MILLISECONDS = 400_000;
const BOOT = { deadlineMilliseconds: BOOT_MILLISECONDS, intervalMilliseconds: 1_000 };
const TEST_MILLISECONDS = 500_000;
const why = process.getuid?.() === 0 ? undefined : 'only root can make the cloud image';

let folder: string;
let registry: TestRegistry;
let world: World;
let guest: Guest;

/** Runs a command in the guest by its guest agent. */
async function inGuest(...command: string[]): Promise<string> {
  return await world.kubectl('exec', NAME, '--', ...command);
}

describe('a published cloud image', unless(why), () => {
  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), 'berth-cloud-'));
    registry = await startRegistry({ directory: join(folder, 'registry'), password: false });
    const { host, caFile } = registry;
    world = await World.start({
      name: 'cloud',
      architecture: ARCHITECTURE,
      hosts: { host: '127.0.0.1' },
      images: { allowLoopbackHttp: true, registries: [{ host, caFile }] },
    });
    const { kubectlPath, kubeconfig } = world.cluster;
    const key = join(folder, 'key');
    // Debian's cloud-init gives keys to the user debian, and Fedora's to the user fedora.
    guest = { kubectlPath, kubeconfig, namespace: world.vms.namespace, vm: NAME, user: 'debian', key };
    await applyExample(await makeKey(key));
  }, SET_UP_MILLISECONDS);

  afterAll(async () => {
    await world?.[Symbol.asyncDispose]();
    await registry?.close();
    await rm(folder, { recursive: true, force: true });
  });

  /** Applies the example with the test's own key, and with an image of the same name and format in the test's own registry. */
  async function applyExample(publicKey: string): Promise<void> {
    const document = parseDocument(await readFile(EXAMPLE, 'utf8'));
    const published = String(document.getIn(['spec', 'image']));
    const name = published.slice(published.indexOf('/') + 1);
    const disk = await cloudFile();
    document.setIn(
      ['spec', 'image'],
      await pushContainerDisk(registry, name, disk, { architecture: ARCHITECTURE }),
    );
    document.setIn(['spec', 'architecture'], ARCHITECTURE);
    document.setIn(['spec', 'sshAuthorizedKeys'], [publicKey]);
    document.setIn(['spec', 'guestMetadata'], { team: 'compilers' });
    await world.cluster.kubectl(['apply', '-f', '-'], { input: String(document) });
  }

  test(
    'is Ready when its guest agent answers, and kubectl exec runs commands with their exit code',
    async () => {
      await world.vms.waitForCondition(NAME, 'Ready', { status: 'True' }, BOOT);
      await world.vms.waitForCondition(NAME, 'GuestAgentConnected', { status: 'True' });
      // While cloud-init runs, an emulated guest may answer after the time limit of the host's agent.
      const named = await waitFor('an answer', async () => await inGuest('uname', '-m'), BOOT);
      expect(named).toBe('x86_64\n');
      const failing = ['-n', world.vms.namespace, 'exec', NAME, '--', 'sh', '-c', 'echo no >&2; exit 7'];
      const failed = await waitFor(
        'the exit code of the command',
        async () => {
          const { code, stderr } = await world.cluster.kubectl(failing, { allowFailure: true });
          return code === 7 && { stderr };
        },
        BOOT,
      );
      expect(failed.stderr).toContain('no\n');
    },
    TEST_MILLISECONDS,
  );

  test(
    'has its host name and its metadata, and cloud-init has applied its user data without an error',
    async () => {
      const result = await waitFor(
        'cloud-init to end',
        async () => await inGuest('cat', '/run/cloud-init/result.json'),
        BOOT,
      );
      expect(JSON.parse(result)).toMatchObject({
        v1: { datasource: expect.stringContaining('DataSourceNoCloud') as string, errors: [] },
      });
      expect(await inGuest('hostname')).toBe(`${NAME}\n`);
      expect(await inGuest('cat', '/etc/motd')).toBe('This VM is made by Berth.\n');
      const instance = JSON.parse(await inGuest('cat', '/run/cloud-init/instance-data.json')) as {
        ds: { meta_data: { berth: Record<string, string> } };
      };
      const { metadata } = await world.vms.pod(NAME);
      expect(instance.ds.meta_data.berth).toMatchObject({
        id: expect.stringMatching(/^[0-9a-f-]{36}$/) as string,
        name: NAME,
        namespace: metadata.namespace,
        host: 'host',
        cpu: '2',
        memory: '2Gi',
        team: 'compilers',
      });
    },
    TEST_MILLISECONDS,
  );

  test(
    'lets the owner of a key log in by SSH through kubectl port-forward, as its own user and as root',
    async () => {
      expect(await logIn(guest, 'hostname; cat /etc/motd')).toBe(`${NAME}\nThis VM is made by Berth.\n`);
      expect(await logIn({ ...guest, user: 'root' }, 'id -u')).toBe('0\n');
    },
    TEST_MILLISECONDS,
  );
});
