/**
 * Emulators beside their VMs, as users have them: kubectl, the real client of ADB, and the VMs of a real cluster. The emulator's program
 * is the stand-in of test/standins/emulator, with the real adbd in its guest.
 */
import { randomBytes } from 'node:crypto';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { parseAllDocuments } from 'yaml';
import type { GuestArchitecture } from '../../../hack/guest.ts';
import { makeKey } from '../../../hack/login.ts';
import { waitFor } from '../../../hack/wait.ts';
import type { VM } from '../../../api/v1alpha1/vm.ts';
import { type Pod, PODS } from '../../../kube/core.ts';
import { Emulators } from '../../fixtures/emulatorobjects.ts';
import { isGone } from '../../fixtures/objects.ts';
import { conditionOf, VMs } from '../../fixtures/vms.ts';
import { GreatestCount } from '../../support/greatestcount.ts';
import { unless } from '../../support/unless.ts';
import { AdbClient } from '../../wires/adb.ts';
import { GuestTunnel } from '../../wires/guesttunnel.ts';
import { StartedProgram } from '../../wires/startedprogram.ts';
import {
  controlGroups,
  type EmulatorHost,
  EmulatorWorld,
  NAMESPACE,
  processesWith,
} from '../../worlds/emulators.ts';
import { HOST_ADDRESS, whyNotHere } from '../../worlds/nat.ts';

const EXAMPLE = join(import.meta.dirname, '..', '..', '..', 'examples', 'vm-with-emulator.yaml');
/** Emulated guests of two architectures on a busy machine. */
const BOOT = { deadlineMilliseconds: 180_000, intervalMilliseconds: 200 };
/** Eight guests at four slots: three boots after each other, with the end of a machine between them. */
const CROWD_BOOT = { deadlineMilliseconds: 540_000, intervalMilliseconds: 200 };
const STEP = { deadlineMilliseconds: 90_000, intervalMilliseconds: 100 };
/** Wait for a state that lasts less than a second. */
const CATCH = { deadlineMilliseconds: 60_000, intervalMilliseconds: 5 };
const SETUP_MILLISECONDS = 400_000;
const TEST_MILLISECONDS = 300_000;
const CROWD_MILLISECONDS = 900_000;
/** Time limit for a guest's answer about a connection. The guest itself gives up after two seconds. */
const CONNECT_MILLISECONDS = 60_000;
const OTHER_NAMESPACE = 'platform-other';
/** Ports of the host that lead to each VM's web server. The next port leads to its SSH server. */
const PORTS = {
  desk: 8080,
  neighbour: 8090,
  stranger: 8100,
  'app-tests': 8080,
  armneighbour: 8090,
  armstranger: 8100,
};
/** Slots of the host for eight machines: a VM with its emulators, and other VMs. */
const SLOTS = 4;
const HOME = 'home';
const CROWD_PORT = 8200;
const CROWD = {
  vms: ['crowd-a', 'crowd-b', 'crowd-c'],
  emulators: ['crowd-d', 'crowd-e', 'crowd-f', 'crowd-g'],
};
const CONSOLE_PORT = 5554;
const PUSHED_BYTES = 3_000_000;
const TUNNEL_PORT = 7001;
const FORWARDED_PORT = 7002;
/** Time limit for a connection that must fail. */
const NO_CONNECTION_MILLISECONDS = 1_000;

const missing = whyNotHere();

describe('emulators beside their VMs, with the stand-in for the emulator', unless(missing), () => {
  let world: EmulatorWorld;
  let vms: VMs;
  let emulators: Emulators;
  let strangers: VMs;
  let folder: string;
  let key: string;
  let publicKey: string;
  /** Client of ADB outside the amd64 host. */
  let adb: AdbClient;
  let before: Record<string, string[]>;

  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), 'berth-emulators-'));
    key = join(folder, 'key');
    publicKey = await makeKey(key);
    world = await EmulatorWorld.start();
    await world.cluster.createNamespace(OTHER_NAMESPACE);
    vms = new VMs(world.cluster, NAMESPACE);
    emulators = new Emulators(world.cluster, NAMESPACE);
    strangers = new VMs(world.cluster, OTHER_NAMESPACE);
    adb = await clientOutside(world.hosts.amd64);
    before = await world.hosts.amd64.traces();
  }, SETUP_MILLISECONDS);

  afterAll(async () => {
    await adb?.[Symbol.asyncDispose]();
    await world?.[Symbol.asyncDispose]();
    await rm(folder, { recursive: true, force: true });
  });

  function vmSpec(name: keyof typeof PORTS, architecture: GuestArchitecture) {
    const port = PORTS[name];
    return {
      image: `guest-${architecture}`,
      architecture,
      cpu: 1,
      memory: '256Mi',
      ports: [`${port}:80`, `${port + 1}:22`],
      readiness: { type: 'Port' as const, port: 80 },
      sshAuthorizedKeys: [publicKey],
    };
  }

  /** Applies a VM and its emulators as one file. */
  async function apply(
    vm: keyof typeof PORTS,
    architecture: GuestArchitecture,
    emulators: Record<string, 'PairedVM' | 'Host'>,
  ): Promise<void> {
    const items = [
      ...Object.entries(emulators).map(([name, exposure]) => ({
        kind: 'Emulator',
        metadata: { name },
        spec: { vmName: vm, exposure, cpu: 1, memory: '2560Mi' },
      })),
      { kind: 'VM', metadata: { name: vm }, spec: vmSpec(vm, architecture) },
    ];
    const list = {
      apiVersion: 'v1',
      kind: 'List',
      items: items.map((item) => ({ apiVersion: 'berth.dev/v1alpha1', ...item })),
    };
    await world.cluster.kubectl(['-n', NAMESPACE, 'apply', '-f', '-'], { input: JSON.stringify(list) });
  }

  /** Applies the example, whose VM gets the image, the size and the key of this test. */
  async function applyExample(): Promise<void> {
    const [vm, emulator] = parseAllDocuments(await readFile(EXAMPLE, 'utf8'));
    for (const [field, value] of Object.entries(vmSpec('app-tests', 'arm64'))) {
      vm?.setIn(['spec', field], value);
    }
    await world.cluster.kubectl(['apply', '-f', '-'], { input: `${String(vm)}---\n${String(emulator)}` });
  }

  /** Returns where ADB of an emulator answers. */
  async function adbOf(name: string): Promise<string> {
    const { status } = await world.emulator(name);
    return `${status?.adb?.address}:${status?.adb?.port}`;
  }

  async function podUid(name: string): Promise<string> {
    const ref = { namespace: NAMESPACE, name: `${name}.emulator` };
    return (await world.cluster.client().get(PODS, ref)).metadata.uid ?? '';
  }

  async function clientOutside(host: EmulatorHost): Promise<AdbClient> {
    return await AdbClient.open(['nsenter', `--net=/run/netns/${host.net.world}`]);
  }

  /** Opens a port outside the host, whose connections begin in the VM's guest. */
  async function tunnel(host: EmulatorHost, vm: keyof typeof PORTS, target: string): Promise<GuestTunnel> {
    const server = { address: HOST_ADDRESS, port: PORTS[vm] + 1 };
    return await GuestTunnel.open({ namespace: host.net.world, server, key, port: TUNNEL_PORT, target });
  }

  /** Returns whether a guest can connect to an address and port: open or closed. */
  async function asks(host: EmulatorHost, vm: keyof typeof PORTS, target: string): Promise<string> {
    return (await host.page(PORTS[vm], `/cgi-bin/do?connect=${target}`, CONNECT_MILLISECONDS)).trim();
  }

  /** Waits until a guest can connect. A busy guest may give up before it is connected. */
  async function untilOpen(host: EmulatorHost, vm: keyof typeof PORTS, target: string): Promise<void> {
    await waitFor(`VM ${vm} to reach ${target}`, async () => (await asks(host, vm, target)) === 'open', STEP);
  }

  /** Returns the spec of the VM with this number among those that come and go. */
  function crowdSpec(index: number) {
    const port = CROWD_PORT + 10 * index;
    return { ...vmSpec('desk', 'amd64'), ports: [`${port}:80`] };
  }

  /** Returns the names of those VMs and emulators whose guests are up. */
  async function up(): Promise<string[]> {
    const isUp = (vm: VM): boolean => conditionOf(vm, 'Ready')?.status === 'True';
    const ready = (await vms.list()).filter(isUp).map(({ metadata }) => metadata.name);
    const running = (await emulators.list()).filter(({ status }) => status?.phase === 'Running');
    return [...ready, ...running.map(({ metadata }) => metadata.name)];
  }

  /** Returns the Pods of machines, and of tasks, which have succeeded. */
  async function pods(): Promise<Pod[]> {
    return (await world.cluster.client().list(PODS, { namespace: NAMESPACE })).items;
  }

  /** Returns the phase and the reason of the condition Ready of each VM and emulator. */
  async function states(): Promise<string[]> {
    const members = [...(await vms.list()), ...(await emulators.list())];
    return members.map(({ metadata: { name, deletionTimestamp }, status }) => {
      const ready = status?.conditions?.find(({ type }) => type === 'Ready');
      return [name, deletionTimestamp, status?.phase, ready?.reason, ready?.message].join(' ');
    });
  }

  async function remove(name: string): Promise<void> {
    await (CROWD.emulators.includes(name) ? emulators : vms).delete(name);
  }

  /**
   * Waits until the guest of each VM and emulator was up. The first ones are deleted to leave their slots, so that the last ones run then.
   * Returns the names of the last ones, and the uids of all Pods.
   */
  async function untilAllWereUp(): Promise<{ last: string[]; uids: Set<string> }> {
    const all = [HOME, ...CROWD.vms, ...CROWD.emulators];
    const [seen, left, uids] = [new Set<string>(), new Set<string>(), new Set<string>()];
    await waitFor(
      'each of them to have been up',
      async () => {
        (await pods()).forEach(({ metadata }) => uids.add(metadata.uid ?? ''));
        for (const name of await up()) {
          seen.add(name);
          // A request that failed is sent again in the next round, because the machine is still up then.
          if (name !== HOME && (left.has(name) || left.size < all.length - SLOTS)) {
            left.add(name);
            await remove(name);
          }
        }
        const rest = all.filter((name) => !seen.has(name));
        if (rest.length > 0) {
          throw new Error(`${rest.join(', ')} never were: ${(await states()).join('; ')}`);
        }
        return true;
      },
      CROWD_BOOT,
    );
    return { last: all.filter((name) => !left.has(name)), uids };
  }

  async function story(name: string, reasons: readonly string[]): Promise<void> {
    await waitFor(`the Events of Emulator ${name}`, async () => {
      const fields = `--field-selector=involvedObject.kind=Emulator,involvedObject.name=${name}`;
      const reported = await world.kubectl('get', 'events', fields, '-o', 'jsonpath={.items[*].reason}');
      return reasons.every((reason) => reported.split(' ').includes(reason));
    });
  }

  test(
    'one kubectl apply has a VM and its emulators run side by side, and tells where ADB answers',
    async () => {
      await apply('desk', 'amd64', { phone: 'PairedVM', tablet: 'Host' });
      await vms.create('neighbour', vmSpec('neighbour', 'amd64'));
      await strangers.create('stranger', vmSpec('stranger', 'amd64'));
      const [phone, tablet] = await Promise.all(
        ['phone', 'tablet'].map(async (name) => await world.waitForPhase(name, 'Running', BOOT)),
      );
      await vms.waitForCondition('desk', 'Ready', { status: 'True' }, BOOT);
      const { podIP } = (await vms.pod('desk')).status ?? {};
      expect(phone?.status).toMatchObject({ nodeName: 'host-amd64', adb: { port: 5555 } });
      expect(phone?.status?.adb?.address).not.toBe(podIP);
      expect(tablet?.status?.adb?.address).toBe(HOST_ADDRESS);
      expect(await world.kubectl('get', 'emulator', 'phone')).toMatch(
        /^phone +desk +Running +True +host-amd64 /m,
      );
      await story('phone', ['VMNotRunning', 'Scheduled', 'Running']);
    },
    TEST_MILLISECONDS,
  );

  test(
    'inside the VM, a client of ADB runs commands with their exit code, copies files unchanged and forwards ports',
    async () => {
      const target = await adbOf('phone');
      await using _ = await tunnel(world.hosts.amd64, 'desk', target);
      const device = await adb.connect(`127.0.0.1:${TUNNEL_PORT}`);
      expect(await device.property('sys.boot_completed')).toBe('1');
      expect(await device.shell('exit 7')).toMatchObject({ code: 7 });
      const [sent, received] = [join(folder, 'sent'), join(folder, 'received')];
      await writeFile(sent, randomBytes(PUSHED_BYTES));
      expect(await device.run('push', sent, '/data/local/tmp/file')).toMatchObject({ code: 0 });
      expect(await device.run('pull', '/data/local/tmp/file', received)).toMatchObject({ code: 0 });
      expect((await readFile(received)).equals(await readFile(sent))).toBe(true);
      expect(await device.run('forward', `tcp:${FORWARDED_PORT}`, 'tcp:5555')).toMatchObject({ code: 0 });
      const again = await adb.connect(`127.0.0.1:${FORWARDED_PORT}`);
      expect(await again.shell('exit 7')).toMatchObject({ code: 7 });
    },
    TEST_MILLISECONDS,
  );

  test(
    'ADB refuses other VMs of the same and of another namespace, and the console refuses the VM too',
    async () => {
      const { amd64 } = world.hosts;
      await vms.waitForCondition('neighbour', 'Ready', { status: 'True' }, BOOT);
      await strangers.waitForCondition('stranger', 'Ready', { status: 'True' }, BOOT);
      const target = await adbOf('phone');
      const [address] = target.split(':');
      await untilOpen(amd64, 'desk', target);
      expect(await asks(amd64, 'desk', `${address}:${CONSOLE_PORT}`)).toBe('closed');
      for (const vm of ['neighbour', 'stranger'] as const) {
        expect(await asks(amd64, vm, target)).toBe('closed');
      }
      expect(await amd64.outside.do('tcpOpen', HOST_ADDRESS, 5555)).toBe(false);
    },
    TEST_MILLISECONDS,
  );

  test('exposure Host leads to ADB from outside', async () => {
    const target = await adbOf('tablet');
    const device = await adb.connect(target);
    expect(await device.property('sys.boot_completed')).toBe('1');
    expect(await device.shell('exit 7')).toMatchObject({ code: 7 });
  });

  test('kubectl logs and port-forward reach the emulator; attach and exec say that it has neither', async () => {
    expect(await world.kubectl('logs', 'phone.emulator')).toContain('INFO');
    const { kubectlPath, kubeconfig } = world.cluster;
    const pod = ['--kubeconfig', kubeconfig, '-n', NAMESPACE, 'port-forward', 'pod/phone.emulator', ':5555'];
    const forward = new StartedProgram(kubectlPath, pod);
    try {
      const [, port] = await forward.prints(/127\.0\.0\.1:(\d+) -> 5555/);
      await using here = await AdbClient.open();
      const device = await here.connect(`127.0.0.1:${port}`);
      expect(await device.property('sys.boot_completed')).toBe('1');
    } finally {
      forward.kill();
    }
    for (const [expected, reported] of [
      [['attach', 'phone.emulator'], 'An emulator has no console'],
      [['exec', 'phone.emulator', '--', 'true'], 'An emulator has no guest agent'],
    ] as const) {
      const args = ['-n', NAMESPACE, ...expected];
      const { code, stderr } = await world.cluster.kubectl(args, { allowFailure: true });
      expect([code, stderr]).toEqual([1, expect.stringContaining(reported)]);
    }
  });

  test(
    'an agent that was killed finds the emulators again, and connections go on',
    async () => {
      const { agent } = world.hosts.amd64;
      const device = await adb.connect(await adbOf('tablet'));
      const uid = await podUid('tablet');
      const running = await world.hosts.amd64.processes();
      expect(running.length).toBeGreaterThan(0);
      await agent.kill();
      expect(await device.shell('exit 3')).toMatchObject({ code: 3 });
      await agent.startAgain();
      await agent.ready();
      const logs = async (): Promise<boolean> =>
        (await world.kubectl('logs', 'tablet.emulator')).includes('INFO');
      await waitFor('the next agent to know the emulator', logs, STEP);
      expect((await world.emulator('tablet')).status?.phase).toBe('Running');
      expect(await podUid('tablet')).toBe(uid);
      expect(await world.hosts.amd64.processes()).toEqual(running);
      expect(await device.shell('exit 3')).toMatchObject({ code: 3 });
    },
    TEST_MILLISECONDS,
  );

  test(
    'an agent that is killed while an emulator ends, is created or starts leaves nothing over and doubles nothing',
    async () => {
      const { amd64 } = world.hosts;
      const { agent } = amd64;
      const key = `${NAMESPACE}/tablet.emulator`;
      const gone = await podUid('tablet');
      const killWhen = async (what: string, test: () => Promise<boolean>): Promise<void> => {
        await waitFor(what, test, CATCH);
        await agent.kill();
        await agent.startAgain();
      };
      await world.kubectl('delete', 'emulator', 'tablet', '--wait=false');
      await killWhen('its end to begin', async () => (await amd64.record(key))?.running !== true);
      await waitFor('tablet to be gone', () => isGone(() => world.emulator('tablet')), STEP);
      await waitFor('its record to be gone', async () => (await amd64.record(key)) === undefined, STEP);
      expect(await processesWith(gone)).toEqual([]);
      await apply('desk', 'amd64', { tablet: 'Host' });
      await killWhen('the agent to know it', async () => (await amd64.record(key)) !== undefined);
      const uid = await podUid('tablet');
      await killWhen('its process', async () => (await processesWith(`-id\0${uid}\0`)).length > 0);
      await world.waitForPhase('tablet', 'Running', BOOT);
      expect([await podUid('tablet'), (await amd64.record(key))?.restarts]).toEqual([uid, 0]);
      expect(await processesWith(`-id\0${uid}\0`)).toHaveLength(1);
      const device = await adb.connect(await adbOf('tablet'));
      expect(await device.property('sys.boot_completed')).toBe('1');
    },
    TEST_MILLISECONDS,
  );

  test(
    'the emulator stops with its VM and loses its data, and is made again when the VM runs again',
    async () => {
      const target = await adbOf('tablet');
      const device = await adb.connect(target);
      expect(await device.shell('touch /data/local/tmp/mark')).toMatchObject({ code: 0 });
      const uid = await podUid('tablet');
      await vms.patch('desk', { powerState: 'Stopped' });
      await Promise.all(
        ['phone', 'tablet'].map(async (name) => {
          await world.waitForPhase(name, 'Stopped', BOOT);
          const ref = { namespace: NAMESPACE, name: `${name}.emulator` };
          await waitFor(
            `Pod of ${name} to be gone`,
            () => isGone(() => world.cluster.client().get(PODS, ref)),
            STEP,
          );
        }),
      );
      await expect(adb.connect(target, NO_CONNECTION_MILLISECONDS)).rejects.toThrow(target);
      await vms.patch('desk', { powerState: 'Running' });
      await world.waitForPhase('tablet', 'Running', BOOT);
      expect(await podUid('tablet')).not.toBe(uid);
      const made = await adb.connect(await adbOf('tablet'));
      expect(await made.shell('test -e /data/local/tmp/mark')).toMatchObject({ code: 1 });
    },
    TEST_MILLISECONDS,
  );

  test(
    'deleting the VM removes its emulators with all that the host had for them',
    async () => {
      await world.kubectl('delete', 'vm', 'desk', 'neighbour');
      await world.cluster.kubectl(['-n', OTHER_NAMESPACE, 'delete', 'vm', 'stranger']);
      for (const name of ['phone', 'tablet']) {
        await waitFor(`${name} to be gone`, () => isGone(() => world.emulator(name)), STEP);
      }
      await waitFor(
        'the host to have nothing left',
        async () => {
          expect(await world.hosts.amd64.traces()).toEqual(before);
          return true;
        },
        STEP,
      );
    },
    TEST_MILLISECONDS,
  );

  test(
    'never more than four at work while eight real guests come and go, and nothing is left of those deleted at once',
    async () => {
      const { amd64 } = world.hosts;
      await world.setSlots(SLOTS);
      await vms.create(HOME, crowdSpec(0));
      await vms.waitForPhase(HOME, 'Running', undefined, BOOT);
      const counter = new GreatestCount(() => amd64.machines());
      await Promise.all([
        ...CROWD.vms.map(async (name, index) => await vms.create(name, crowdSpec(index + 1))),
        ...CROWD.emulators.map(
          async (name) => await emulators.create(name, { vmName: HOME, cpu: 1, memory: '2560Mi' }),
        ),
      ]);
      const { last, uids } = await untilAllWereUp();
      expect(await controlGroups(uids)).not.toEqual([]);
      expect([last.length, await amd64.machines()]).toEqual([SLOTS, SLOTS]);
      await Promise.all(last.map(remove));
      await waitFor(
        'nothing to be left',
        async () => {
          expect(await emulators.list()).toEqual([]);
          expect((await pods()).filter(({ status }) => status?.phase !== 'Succeeded')).toEqual([]);
          expect(await amd64.traces()).toEqual(before);
          return true;
        },
        STEP,
      );
      expect(await controlGroups(uids)).toEqual([]);
      expect(await counter.greatest()).toBe(SLOTS);
      await counter.stop();
    },
    CROWD_MILLISECONDS,
  );

  test(
    'the example runs on an arm64 host: its VM reaches ADB, and VMs of the same and of another namespace do not',
    async () => {
      const { arm64 } = world.hosts;
      await applyExample();
      await vms.create('armneighbour', vmSpec('armneighbour', 'arm64'));
      await strangers.create('armstranger', vmSpec('armstranger', 'arm64'));
      await world.waitForPhase('phone', 'Running', BOOT);
      const target = await adbOf('phone');
      await vms.waitForCondition('app-tests', 'Ready', { status: 'True' }, BOOT);
      await using client = await clientOutside(arm64);
      await using _ = await tunnel(arm64, 'app-tests', target);
      const device = await client.connect(`127.0.0.1:${TUNNEL_PORT}`);
      expect(await device.property('sys.boot_completed')).toBe('1');
      expect(await device.property('ro.product.cpu.abi')).toBe('arm64-v8a');
      await vms.waitForCondition('armneighbour', 'Ready', { status: 'True' }, BOOT);
      await strangers.waitForCondition('armstranger', 'Ready', { status: 'True' }, BOOT);
      await untilOpen(arm64, 'app-tests', target);
      for (const vm of ['armneighbour', 'armstranger'] as const) {
        expect(await asks(arm64, vm, target)).toBe('closed');
      }
    },
    TEST_MILLISECONDS,
  );
});
