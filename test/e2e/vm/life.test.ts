/** The whole life of one VM with a real guest, as its user sees and controls it with kubectl. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readFileSync, statSync } from 'node:fs';
import { connect } from 'node:net';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { WORKLOAD_LABEL, USER_DATA_SECRET_TYPE } from '../../../api/v1alpha1/names.ts';
import { freePort } from '../../../hack/cluster/ports.ts';
import { waitFor } from '../../../hack/wait.ts';
import { SECRETS } from '../../../kube/core.ts';
import { PUBLIC_KEYS } from '../../fixtures/guestdata.ts';
import { expectUntold } from '../../support/told.ts';
import { StartedProgram } from '../../wires/startedprogram.ts';
import { MetricsServer } from '../../worlds/metricsserver.ts';
import { logIn } from '../../support/vnc.ts';
import { page, powerOff, tell } from '../../worlds/qemuguest.ts';
import { BOOT, SET_UP_MILLISECONDS, STEP, World } from '../../worlds/vm.ts';
import { VM_SNAPSHOTS } from '../../../api/v1alpha1/resources.ts';

const TEST_MILLISECONDS = 600_000;
/** Time for one look at the output of a program that runs. */
const LOOK_MILLISECONDS = 1_000;
/** Time that docs/how-to/power.md promises for a deletion, with the start of kubectl. */
const PROMISED_DELETION_MILLISECONDS = 2_000;
const SECRET = 'first-boot';
const PASSWORD = 'planted-6f1c2b';
const USER_DATA = `#cloud-config\n{"password":"${PASSWORD}"}\n`;

let world: World;
let port: number;
/** Port of the host that the host chose for the web server of the guest. */
let chosen: number;

beforeAll(async () => {
  world = await World.start({ name: 'vm-life', architecture: 'amd64', hosts: { host: '127.0.0.1' } });
  port = await freePort();
}, SET_UP_MILLISECONDS);

afterAll(async () => {
  await world?.[Symbol.asyncDispose]();
});

async function stampOf(name: 'restartedAt' | 'revertedAt', value: string): Promise<void> {
  await world.vms.waitForVM(
    'x',
    `VM x to have ${name} ${value}`,
    ({ status }) => status?.[name] === value,
    BOOT,
  );
  await world.waitForCondition('Ready', 'x');
}

/** Waits until the page no longer answers. */
async function expectSilence(): Promise<void> {
  await expect(fetch(`http://127.0.0.1:${port}/`)).rejects.toThrow('fetch failed');
}

/** Runs `kubectl logs -f` from the first line of the machine, and keeps its output. */
class Follower {
  readonly process: ChildProcess;
  text = '';

  constructor() {
    const { kubectlPath, kubeconfig } = world.cluster;
    this.process = spawn(
      kubectlPath,
      ['--kubeconfig', kubeconfig, '-n', world.vms.namespace, 'logs', '-f', 'x'],
      {
        stdio: ['ignore', 'pipe', 'inherit'],
      },
    );
    this.process.stdout?.setEncoding('utf8').on('data', (text: string) => {
      this.text += text;
    });
  }

  async has(what: string, test: (text: string) => boolean): Promise<void> {
    await waitFor(`kubectl logs -f to have printed ${what}`, () => test(this.text), STEP);
  }
}

/** Returns the line of `kubectl top` about an object, once there is one. */
async function topRow(noun: 'pod' | 'node', name: string, ...flags: string[]): Promise<string> {
  const { stdout } = await world.cluster.kubectl([
    'top',
    noun,
    name,
    '--no-headers',
    ...(noun === 'pod' ? ['-n', world.vms.namespace] : []),
    ...flags,
  ]);
  return stdout.trimEnd();
}

/** Returns how often the guest was asked to end. A running guest agent is asked before the power button is pressed. */
function powerButtons(text: string): number {
  return text.split(/berth-guest: (?:power button|shutdown by the guest agent)/).length - 1;
}

/** Waits until the console shows one more request to the guest to end. */
async function expectPowerButton(act: () => Promise<unknown>): Promise<void> {
  const whole = await world.kubectl('logs', 'x');
  // A prompt has no end of line, and `kubectl logs -f` prints whole lines.
  const before = whole.slice(0, whole.lastIndexOf('\n') + 1);
  const follower = new Follower();
  try {
    await follower.has('what was there', (text) => text.length >= before.length);
    expect(powerButtons(follower.text)).toBe(powerButtons(before));
    await act();
    await follower.has('the power button', (text) => powerButtons(text) > powerButtons(before));
  } finally {
    follower.process.kill('SIGKILL');
  }
}

test(
  'waits for the Secret with its user data, and says so',
  async () => {
    await world.makeVM('x', {
      ports: [`${port}:80`, ':80'],
      readiness: { type: 'Port', port: 80 },
      userDataSecretRef: { name: SECRET, key: 'user-data' },
      guestMetadata: { team: 'blue' },
      sshAuthorizedKeys: [PUBLIC_KEYS[0]],
      vnc: { hostPort: true },
    });
    const missing = { status: 'False', reason: 'SecretNotFound' } as const;
    const { message } = await world.vms.waitForCondition('x', 'UserDataReady', missing, BOOT);
    expect(message).toContain(`the Secret ${SECRET} in ${world.vms.namespace}`);
    expect(await world.kubectl('get', 'vm', 'x')).toMatch(/^x +Starting +False +SecretNotFound /m);
    const metadata = { name: SECRET, namespace: world.vms.namespace };
    const secret = { metadata, stringData: { 'user-data': USER_DATA } };
    await world.cluster.client().create(SECRETS, secret);
    const refused = { status: 'False', reason: 'UserDataSecretRefused' } as const;
    await world.vms.waitForCondition('x', 'UserDataReady', refused, BOOT);
    await world.cluster.client().delete(SECRETS, metadata);
    await world.cluster.client().create(SECRETS, { ...secret, type: USER_DATA_SECRET_TYPE });
  },
  TEST_MILLISECONDS,
);

test(
  'becomes Ready, answers through its reserved port, and tells its story and its console',
  async () => {
    await world.waitForCondition('Ready', 'x');
    expect(await page(port)).toMatchObject({ boots: '1', architecture: 'x86_64', cpus: '1' });
    // The web server of the guest answers before the guest prints its last line.
    await waitFor('the console to tell', async () =>
      (await world.kubectl('logs', 'x')).includes('berth-guest: ready'),
    );
    expect(await world.kubectl('logs', 'x', '--tail=1', '--timestamps')).toMatch(/^\d{4}-\d\d-\d\dT\S+Z /);
    const table = await world.kubectl('get', 'vm', 'x', '-o', 'wide');
    expect(table).toMatch(/^x +Running +True +Running +host +127\.0\.0\.1 /m);
    await world.expectStory('x', /Normal +Scheduled .*placed on host host \(attempt 1\)/);
    await world.expectStory('x', /Normal +Running .*The machine runs/);
    await world.expectStory('x', /Normal +Pulled .*The image is on the host as sha256:/);
    await world.expectStory('x', /Normal +Started .*The machine runs with (KVM|TCG)/);
    await world.expectStory('x', /Normal +Ready .*Port 80 of the guest answers/);
    const endpoint = { name: `${port}-tcp`, protocol: 'TCP', hostPort: port, guestPort: 80 };
    const { endpoints = [] } = (await world.vms.get('x')).status ?? {};
    const [, ssh, web] = endpoints;
    const anyPort = { hostPort: expect.any(Number) as number };
    expect(endpoints).toEqual([
      endpoint,
      { name: 'ssh', purpose: 'ssh', protocol: 'TCP', ...anyPort, guestPort: 22 },
      { name: `${web?.hostPort}-tcp`, protocol: 'TCP', ...anyPort, guestPort: 80 },
      { name: 'vnc', purpose: 'vnc', protocol: 'TCP', ...anyPort },
    ]);
    expect(table).toMatch(new RegExp(` ${ssh?.hostPort} `));
    chosen = web?.hostPort ?? 0;
    expect(await page(chosen)).toMatchObject({ boots: '1' });
  },
  TEST_MILLISECONDS,
);

test(
  'gives its guest user data, metadata, SSH keys and host name, and tells nobody the user data',
  async () => {
    await world.vms.waitForCondition('x', 'UserDataReady', { status: 'True', reason: 'Delivered' }, STEP);
    expect(await tell(port, 'seed=user-data')).toBe(USER_DATA);
    const { status } = await world.vms.get('x');
    expect(JSON.parse(await tell(port, 'seed=meta-data'))).toMatchObject({
      'instance-id': status?.hardwareUUID,
      'local-hostname': 'x',
      'public-keys': [PUBLIC_KEYS[0]],
      berth: {
        team: 'blue',
        name: 'x',
        host: 'host',
        image: 'berth.dev/platform-default/guest',
        cpu: '1',
        memory: '256Mi',
      },
    });
    expect(await tell(port, 'seed=vendor-data')).toContain('"disable_root":false');
    const { folder } = await world.machine('x');
    for (const name of ['seed.json', 'seed.iso']) {
      expect(readFileSync(join(folder, name), 'utf8')).toContain(PASSWORD);
      expect((statSync(join(folder, name)).mode & 0o777).toString(8)).toBe('600');
    }
    await expectUntold(world.cluster, PASSWORD);
  },
  TEST_MILLISECONDS,
);

test(
  'is reached through the API server: ports, screen, console and commands',
  async () => {
    const { kubectlPath, kubeconfig } = world.cluster;
    const started: StartedProgram[] = [];
    const kubectl = (...args: string[]): StartedProgram => {
      const one = new StartedProgram(kubectlPath, [
        '--kubeconfig',
        kubeconfig,
        '-n',
        world.vms.namespace,
        ...args,
      ]);
      started.push(one);
      return one;
    };
    try {
      const forward = kubectl('port-forward', 'pod/x', ':80', ':vnc');
      const [, web] = await forward.prints(/127\.0\.0\.1:(\d+) -> 80/);
      const [, vnc] = await forward.prints(/127\.0\.0\.1:(\d+) -> 5999/);
      expect(await page(Number(web))).toMatchObject({ boots: '1' });
      const screen = connect({ port: Number(vnc), host: '127.0.0.1' });
      expect(String(await once(screen, 'data'))).toMatch(/^RFB 003\.008\n/);
      screen.destroy();

      // The terminal on the guest's console shows typed characters.
      const console = kubectl('attach', '-i', 'x');
      await waitFor('the guest to show what is typed', async () => {
        console.type('typed by a user\n');
        return (await console.prints(/typed by a user/, LOOK_MILLISECONDS)) !== undefined;
      });

      expect(await tell(port, 'agent=0')).toContain('listening');
      expect(await kubectl('exec', 'x', '--', 'cat', '/etc/os-release').result()).toMatchObject({
        stdout: 'PRETTY_NAME="Berth guest"\n',
        code: 0,
      });
      const failed = await kubectl('exec', '-i', 'x', '--', 'sh', '-c', 'cat >&2; exit 7').result();
      expect(failed).toMatchObject({ code: 7 });
    } finally {
      for (const one of started) {
        one.kill();
      }
    }
  },
  TEST_MILLISECONDS,
);

test(
  'shows its processor time and memory, and those of its host, in kubectl top',
  async () => {
    await using _ = await MetricsServer.start(world.cluster);
    // Usage is in thousandths of a processor and in mebibytes. Metrics-server computes it from two measurements.
    const pod = await waitFor('kubectl top pod to show the VM', () => topRow('pod', 'x'), STEP);
    const [, cpu, memory] = /^x +(\d+)m +(\d+)Mi *$/.exec(pod)?.map(Number) ?? [];
    expect(cpu).toBeGreaterThan(0);
    expect(cpu).toBeLessThanOrEqual(1000);
    // The guest has 256 MiB, and touches a part of them.
    expect(memory).toBeGreaterThan(32);
    expect(memory).toBeLessThan(512);
    const containers = await topRow('pod', 'x', '--containers');
    expect(containers).toMatch(/^x +machine +\d+m +\d+Mi *$/);
    const node = await topRow('node', 'host');
    const [, hostCpu = 0, hostMemory = 0] =
      /^host +(\d+)m +\d+% +(\d+)Mi +\d+% *$/.exec(node)?.map(Number) ?? [];
    expect(hostCpu).toBeGreaterThan(0);
    expect(hostMemory).toBeGreaterThan(memory ?? 0);
  },
  TEST_MILLISECONDS,
);

test(
  'serves its screen on a port of the host, with the password of its Secret',
  async () => {
    const secret = await world.kubectl('get', 'secret', 'x-vnc', '-o', 'jsonpath={.data.password}');
    const password = Buffer.from(secret, 'base64').toString();
    const { endpoints = [] } = (await world.vms.get('x')).status ?? {};
    const screen = endpoints.find(({ name }) => name === 'vnc')?.hostPort ?? 0;
    expect(await logIn('127.0.0.1', screen, password)).toBe(true);
    expect(await logIn('127.0.0.1', screen, password.toLowerCase().split('').toReversed().join(''))).toBe(
      false,
    );
    const { process } = await world.machine('x');
    expect(readFileSync(`/proc/${process.pid}/cmdline`, 'utf8')).not.toContain(password);
    await expectUntold(world.cluster, password);
  },
  TEST_MILLISECONDS,
);

test(
  'is suspended and goes on where it was',
  async () => {
    const before = await page(port);
    await world.patch('x', { powerState: 'Suspended' });
    await world.vms.waitForPhase('x', 'Suspended', undefined, STEP);
    await expectSilence();
    await world.patch('x', { powerState: 'Running' });
    await world.waitForCondition('Ready', 'x');
    expect(await page(port)).toMatchObject({ boot_id: before['boot_id'], boots: '1' });
  },
  TEST_MILLISECONDS,
);

test(
  'is stopped by its power button, which its console shows as it happens, and boots again from its disk',
  async () => {
    const before = await page(port);
    expect(await tell(port, 'marker=kept')).toBe('saved\n');
    await expectPowerButton(() => world.patch('x', { powerState: 'Stopped' }));
    await world.vms.waitForPhase('x', 'Stopped', undefined, STEP);
    await world.vms.waitForCondition('x', 'Ready', { status: 'True', reason: 'Stopped' });
    await expectSilence();
    await world.patch('x', { powerState: 'Running' });
    await world.waitForCondition('Ready', 'x');
    const after = await page(port);
    expect(after).toMatchObject({ boots: '2', marker: 'kept' });
    expect(await page(chosen)).toEqual(after);
    expect(after['boot_id']).not.toBe(before['boot_id']);
  },
  TEST_MILLISECONDS,
);

test(
  'is restarted once for each time that is asked for, and has another size from then on',
  async () => {
    const restartRequestedAt = '2026-01-01T00:00:00Z';
    await world.patch('x', { cpu: 2 });
    await world.vms.waitForCondition('x', 'RestartRequired', { reason: 'ResourcesChanged' }, STEP);
    const promised = { allocatedResources: { cpu: '2' }, resources: { requests: { cpu: '1' } } };
    await waitFor('the host to promise it', async () => {
      const { status } = await world.vms.pod('x');
      expect(status?.containerStatuses?.[0]).toMatchObject(promised);
      return true;
    });
    await world.patch('x', { restartRequestedAt });
    await stampOf('restartedAt', restartRequestedAt);
    const after = await page(port);
    expect(after).toMatchObject({ boots: '3', marker: 'kept', cpus: '2' });
    // The operator gets the same time with another change of the VM. Another operator sees it too.
    await world.operator.stop();
    world.operator = await world.cluster.startOperator();
    await world.patch('x', { restartRequestedAt, ttlSecondsAfterFinished: 3600 });
    const { metadata } = await world.vms.get('x');
    await world.vms.waitForVM(
      'x',
      'the change to be observed',
      ({ status }) => status?.observedGeneration === metadata.generation,
      STEP,
    );
    expect(await page(port)).toEqual(after);
  },
  TEST_MILLISECONDS,
);

test(
  'runs on while its agent is killed, and the next one goes on with the same process',
  async () => {
    const [before, { process: hypervisor }] = [await page(port), await world.machine('x')];
    const agent = world.host('host');
    await agent.kill();
    await agent.startAgain();
    await agent.ready();
    await world.waitForCondition('Ready', 'x');
    expect((await world.machine('x')).process).toEqual(hypervisor);
    expect(await page(port)).toEqual(before);
  },
  TEST_MILLISECONDS,
);

test(
  'boots again from its own disk when the host has lost its power and is back',
  async () => {
    const agent = world.host('host');
    // The host has kept the user data, so the start does not need the Secret.
    await world.kubectl('delete', 'secret', SECRET);
    await agent.powerOff();
    await agent.startAgain();
    await waitFor('the next boot', async () => (await page(port))['boots'] === '4', BOOT);
    await world.waitForCondition('Ready', 'x');
    expect(await page(port)).toMatchObject({ marker: 'kept' });
    expect(await tell(port, 'seed=user-data')).toBe(USER_DATA);
  },
  TEST_MILLISECONDS,
);

test(
  'is Stopped, and says that its guest did it, when that powers off; reverted, it runs from the disk that it was made with',
  async () => {
    await powerOff(port);
    try {
      await world.vms.waitForPhase('x', 'Stopped', undefined, STEP);
    } catch (error) {
      const said = await world.kubectl('logs', 'x', '--tail=30');
      throw new Error(`the guest did not power off; its console ends with:\n${said}`, { cause: error });
    }
    await world.vms.waitForCondition('x', 'Ready', { status: 'False', reason: 'GuestShutdown' });
    const revertRequestedAt = '2026-01-02T00:00:00Z';
    await world.patch('x', { revertRequestedAt });
    await stampOf('revertedAt', revertRequestedAt);
    expect(await page(port)).toMatchObject({ boots: '1', marker: '' });
  },
  TEST_MILLISECONDS,
);

test(
  'has a snapshot of its running disk, is reverted to it and to nothing else, and the snapshot goes with it',
  async () => {
    expect(await tell(port, 'marker=before')).toBe('saved\n');
    await makeSnapshot('before');
    const { status } = await world.cluster.client().get(VM_SNAPSHOTS, {
      namespace: world.vms.namespace,
      name: 'before',
    });
    // The guest agent of this guest does not run.
    expect(status).toMatchObject({ phase: 'Ready', consistency: 'Crash' });
    expect(await tell(port, 'marker=after')).toBe('saved\n');
    await world.patch('x', { revertRequestedAt: '2026-01-03T00:00:00Z', revertTo: 'nothere' });
    await world.vms.waitForCondition('x', 'Ready', { status: 'False', reason: 'SnapshotNotFound' });
    expect(await page(port)).toMatchObject({ boots: '1', marker: 'after' });
    const revertRequestedAt = '2026-01-04T00:00:00Z';
    await world.patch('x', { revertRequestedAt, revertTo: 'before' });
    await stampOf('revertedAt', revertRequestedAt);
    expect(await page(port)).toMatchObject({ boots: '2', marker: 'before' });
    await world.kubectl('delete', 'vmsnapshot', 'before');
    await makeSnapshot('last');
  },
  TEST_MILLISECONDS,
);

/** Makes a snapshot of VM x, and waits until it is Ready. */
async function makeSnapshot(name: string): Promise<void> {
  const { apiVersion, kind } = VM_SNAPSHOTS;
  const namespace = world.vms.namespace;
  const snapshot = { apiVersion, kind, metadata: { name, namespace }, spec: { vmName: 'x' } };
  await world.cluster.client().create(VM_SNAPSHOTS, snapshot);
  await world.kubectl('wait', '--for=condition=Ready', `vmsnapshot/${name}`, '--timeout=60s');
}

test(
  'is deleted: its guest ends in order, and of process, disk, port and Pod nothing is left when kubectl returns',
  async () => {
    const machine = await world.machine('x');
    // The boots are the first one, after the stop, the restart, the power cut, and the two reverts.
    expect((await world.vms.pod('x')).status?.containerStatuses?.[0]?.restartCount).toBe(5);
    await world.patch('x', { terminationGracePeriodSeconds: 60 });
    await expectPowerButton(() => world.kubectl('delete', 'vm', 'x'));
    await machine.expectGone();
    await expectSilence();
    // Another Pod is that of the Job that found the image.
    const others = `${WORKLOAD_LABEL}!=image`;
    expect(await world.kubectl('get', 'pods,vms', '-l', others, '-o', 'name')).toBe('');
    // The garbage collector of Kubernetes deletes what a VM owned.
    await world.kubectl('wait', '--for=delete', 'vmsnapshot', '--all', '--timeout=60s');
  },
  TEST_MILLISECONDS,
);

test(
  'with SSH keys is Ready when its SSH server answers; it is Failed when its hypervisor is killed, keeps its disk until it is deleted, and says how it ended',
  async () => {
    // No port of the host leads to the SSH server of this guest.
    await world.makeVM('y', { sshAuthorizedKeys: [PUBLIC_KEYS[0]], network: { automaticPorts: false } });
    await world.vms.waitForPhase('y', 'Running', undefined, BOOT);
    await world.vms.waitForCondition('y', 'Ready', { status: 'False', reason: 'NotReady' });
    const { message } = await world.vms.waitForCondition('y', 'Ready', { status: 'True' }, BOOT);
    expect(message).toBe('The SSH server of the guest answers');
    const machine = await world.machine('y');
    process.kill(machine.process.pid, 'SIGKILL');
    const { status } = await world.vms.waitForPhase('y', 'Failed', undefined, STEP);
    expect(status?.failure?.message).toContain('SIGKILL');
    await world.expectStory('y', /Warning .*SIGKILL/);
    expect(existsSync(join(machine.folder, 'disk.qcow2'))).toBe(true);
    await world.kubectl('delete', 'vm', 'y');
    // Nothing waits for the disk of an ended machine. Its Pod is removed at once, and the host learns of that.
    await machine.waitUntilGone();
  },
  TEST_MILLISECONDS,
);

test(
  'is gone in less than two seconds when it is deleted and its guest does not react',
  async () => {
    await world.makeVM('z');
    await world.vms.waitForPhase('z', 'Running', undefined, BOOT);
    const machine = await world.machine('z');
    // The firmware of a machine that has just started answers no power button.
    const begin = performance.now();
    await world.kubectl('delete', 'vm', 'z');
    expect(performance.now() - begin).toBeLessThan(PROMISED_DELETION_MILLISECONDS);
    await machine.expectGone();
  },
  TEST_MILLISECONDS,
);
