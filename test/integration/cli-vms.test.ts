/** VMs by the command `berth`: the exact forms that integrations call, and each way in which a call can fail. */
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { IMAGES, VM_CONFIGS } from '../../api/v1alpha1/resources.ts';
import { type Cluster, type OperatorProcess, startCluster } from '../../hack/cluster/index.ts';
import { writeKubeconfig } from '../../hack/cluster/kubeconfig.ts';
import { waitFor } from '../../hack/wait.ts';
import { SECRETS } from '../../kube/core.ts';
import { GARM_PROVIDER } from '../fixtures/ciexamples.ts';
import { IMAGE, VMs } from '../fixtures/vms.ts';
import { accountToken, writeTokenKubeconfig } from '../support/members.ts';
import { BerthCommand, type CommandResult } from '../wires/berth.ts';
import { StartedProgram } from '../wires/startedprogram.ts';
import { ActingHost } from '../worlds/actinghost.ts';

const namespace = 'platform-default';
/** VM config whose VMs only the simulated host can run. */
const CONFIG = 'ci';

let cluster: Cluster;
let operator: OperatorProcess;
let vms: VMs;
/** Host whose agent is the test, so its VMs wait until the test lets them run. */
let bare: ActingHost;
let command: BerthCommand;
/** Kubeconfig with a token that nobody has. */
let stale: string;
/** Result of a deployment with the shortest time limit, which no host can place. */
let late: Promise<CommandResult>;

beforeAll(async () => {
  cluster = await startCluster({ name: `cli-vms-${process.pid}`, hosts: 1 });
  operator = await cluster.startOperator();
  vms = new VMs(cluster);
  bare = await ActingHost.join(cluster.client(), 'bare', { slots: 16, architecture: 'amd64' });
  await bare.placeable();
  await cluster.client().create(VM_CONFIGS, {
    metadata: { name: CONFIG, namespace },
    spec: { image: IMAGE, architecture: 'arm64' },
  });
  const token = await accountToken(cluster, { namespace, name: 'dev' }, { role: 'berth-role-dev' });
  command = await BerthCommand.make(await writeTokenKubeconfig(cluster, token, 'dev'));
  stale = await writeTokenKubeconfig(cluster, 'eyJhbGciOiJub25lIn0.e30.', 'stale');
  await waitFor('the rights', async () => (await berth('vm', 'list')).code === 0);
  late = berth(
    'vm',
    'deploy',
    'late',
    '--image',
    IMAGE,
    '--tag',
    'nowhere',
    '--tag-required',
    '--timeout',
    '1',
  );
  late.catch(() => undefined);
});

afterAll(async () => {
  await command?.[Symbol.asyncDispose]();
  await bare?.silence();
  await operator?.stop();
  await cluster?.stop();
});

async function berth(...args: string[]): Promise<CommandResult> {
  return await command.run(args);
}

/** Runs the command as an integration does: both streams are one, and all of it must be JSON. */
async function json(...args: string[]) {
  const { code, out } = await command.run(args, { together: true });
  expect([code, out]).toEqual([0, expect.stringMatching(/^\[/)]);
  // oxlint-disable-next-line typescript/no-explicit-any -- Each test reads other fields of it.
  return JSON.parse(out) as any[];
}

describe('the forms that integrations call', () => {
  it('list nothing as an empty list, and as a sentence for people', async () => {
    const args = ['vm', 'list', '--namespace', 'platform-elsewhere'];
    const asAdmin = { kubeconfig: cluster.kubeconfig };
    const { code, out } = await command.run([...args, '-o', 'json'], { ...asAdmin, together: true });
    expect([code, out]).toEqual([0, '[]\n']);
    const err = 'There are no VMs in namespace platform-elsewhere\n';
    expect(await command.run(args, asAdmin)).toEqual({ code: 0, out: '', err });
  });

  it('deploy with a generated name, before or after the flag, and with a name', async () => {
    const flags = ['--namespace', namespace, '--metadata', 'job=1,key=a=b,c', '--labels', 'job=1'];
    const UNTIL = '2100-01-01T00:00:00Z';
    const limits = [
      '--active-deadline-seconds',
      '3600',
      '--ttl-seconds-after-finished',
      '0',
      '--alive-until',
      UNTIL,
    ];
    const [[first], [second], [third]] = await Promise.all([
      json('vm', 'deploy', 'runner', '--config', CONFIG, '--generate-name', '-o', 'json', ...flags),
      json('vm', 'deploy', '--config', CONFIG, '--generate-name', 'node', '-o', 'json', ...limits),
      json('vm', 'deploy', 'named', '--config', CONFIG, '--reserve-port', '8822:22', '-o', 'json'),
    ]);
    expect([first.name, second.name, third.name]).toEqual([
      expect.stringMatching(/^runner-[a-z0-9]{5}$/),
      expect.stringMatching(/^node-[a-z0-9]{5}$/),
      'named',
    ]);
    expect(third).toMatchObject({
      status: 'Running',
      ip: expect.stringMatching(/^\d+\.\d+\.\d+\.\d+$/),
      ssh: 8822,
    });
    expect(first.owner).toBe(`system:serviceaccount:${namespace}:dev`);
    const { metadata, spec } = await vms.get(first.name);
    expect(spec.guestMetadata).toEqual({ job: '1', key: 'a=b,c' });
    expect(metadata.labels).toMatchObject({ job: '1' });
    expect((await vms.get(second.name)).spec).toMatchObject({
      activeDeadlineSeconds: 3_600,
      ttlSecondsAfterFinished: 0,
      aliveUntil: UNTIL,
    });
    const wrong = await berth('vm', 'create', 'wrong', '--config', CONFIG, '--active-deadline-seconds', '0');
    expect([wrong.code, wrong.err]).toEqual([1, expect.stringContaining('--active-deadline-seconds: ')]);
    const never = await berth('vm', 'create', 'wrong', '--config', CONFIG, '--alive-until', 'soon');
    expect([never.code, never.err]).toEqual([1, expect.stringContaining('--alive-until: ')]);
    expect(spec.aliveUntil).toBeUndefined();
  });

  it('list VMs in each format', async () => {
    const items = await json('vm', 'list', '-o', 'json');
    expect(items.find(({ name }) => name === 'named')).toMatchObject({ ip: expect.any(String), ssh: 8822 });
    const [table, wide, names] = await Promise.all(
      ['table', 'wide', 'name'].map(async (format) => (await berth('vm', 'list', '-o', format)).out),
    );
    expect(table).toMatch(/^NAME +STATUS +READY +REASON +NODE +IP +SSH +VNC +IMAGE +AGE\n/);
    expect(table).toMatch(/^named +Running +True +\S+ +\S+ +8822 /m);
    expect(wide).toMatch(/ PHASE +PROGRESS +CPU +MEMORY +PORTS +OWNER +MESSAGE\n/);
    expect(new Set(names?.trim().split('\n'))).toEqual(new Set(items.map(({ name }) => name)));
    expect((await berth('vm', 'get', 'named', '-o', 'yaml')).out).toContain('- name: named\n');
    const page = (await berth('vm', 'get', 'named')).out;
    expect(page).toMatch(/^Name: +named\n/);
    expect(page).toMatch(/^Ready: +True/m);
    expect(page).toMatch(/^Login: +berth vm ssh named, or ssh -p 8822 USER@\S+$/m);
  });

  it('list VM configs and images, also those of the default namespace', async () => {
    const expected = [{ name: CONFIG, namespace, image: IMAGE, architecture: 'arm64', type: 'arm64' }];
    expect(await json('vm-config', 'list', '-o', 'json')).toEqual(expected);
    expect(await json('image', 'list', '-o', 'json')).toEqual([]);
    const source = { registry: { reference: IMAGE } };
    await cluster.client().create(IMAGES, { metadata: { name: 'base', namespace }, spec: { source } });
    const images = [expect.objectContaining({ name: 'base', namespace })];
    expect(await json('image', 'list', '-o', 'json')).toEqual(images);
    for (const [noun, items] of [
      ['vmconfig', expected],
      ['image', images],
    ] as const) {
      const elsewhere = [noun, 'list', '-n', 'platform-elsewhere', '-o', 'json'];
      const { out } = await command.run(elsewhere, { kubeconfig: cluster.kubeconfig });
      expect(JSON.parse(out)).toEqual(items);
    }
  });

  it('delete VMs, and name one that is missing', async () => {
    const [first] = (await vms.list()).filter(({ metadata }) => metadata.name.startsWith('runner-'));
    const name = first?.metadata.name ?? '';
    const { code, out, err } = await berth('vm', 'delete', name, 'absent', 'named', '--namespace', namespace);
    expect([code, out]).toEqual([4, `Successfully deleted vm ${name}\nSuccessfully deleted vm named\n`]);
    expect(err).toBe(`error: vm "absent" not found in namespace ${namespace}\n`);
    const left = (await vms.list()).map(({ metadata }) => metadata.name);
    expect(left.filter((one) => one === name || one === 'named')).toEqual([]);
  });

  it('list and delete the VMs with labels, and list those of all namespaces', async () => {
    const labels = ['--labels', 'team=blue'];
    await Promise.all(
      ['blue-1', 'blue-2'].map((name) => berth('vm', 'create', name, '--config', CONFIG, ...labels)),
    );
    await berth('vm', 'create', 'red', '--config', CONFIG);
    expect((await berth('vm', 'list', '-l', 'team=blue', '-o', 'name')).out).toBe('blue-1\nblue-2\n');
    const asAdmin = { kubeconfig: cluster.kubeconfig };
    const args = ['vm', 'list', '-A', '-n', 'platform-elsewhere'];
    const everywhere = await command.run(args, asAdmin);
    expect(everywhere.out).toMatch(/^NAMESPACE +NAME /);
    expect(everywhere.out).toMatch(/^platform-default +red /m);
    const items = JSON.parse((await command.run([...args, '-o', 'json'], asAdmin)).out) as object[];
    expect(items).toContainEqual(expect.objectContaining({ name: 'red', namespace }));
    const { code, out } = await berth('vm', 'delete', '-l', 'team=blue');
    expect([code, out]).toEqual([0, 'Successfully deleted vm blue-1\nSuccessfully deleted vm blue-2\n']);
    const none = await berth('vm', 'delete', '-l', 'team=blue');
    expect([none.code, none.err]).toEqual([
      0,
      `There are no VMs with the labels team=blue in namespace ${namespace}\n`,
    ]);
    const elsewhere = await command.run(['vm', 'delete', '--all', '-n', 'platform-elsewhere'], asAdmin);
    expect([elsewhere.code, elsewhere.err]).toEqual([
      0,
      'There are no VMs in namespace platform-elsewhere\n',
    ]);
    expect((await berth('vm', 'delete', 'red')).code).toBe(0);
  });

  it('say Unauthorized to a token that nobody has', async () => {
    const { code, out } = await command.run(['vm', 'list'], { kubeconfig: stale, together: true });
    expect([code, out]).toEqual([3, expect.stringContaining('Unauthorized')]);
  });
});

describe('the namespace', () => {
  it('comes from the flag, BERTH_NAMESPACE, the variable of the settings, or is the default', async () => {
    command.configure('aliases: {namespaceVariable: OTHER_NAMESPACE}\n');
    const environment = { BERTH_NAMESPACE: 'platform-own', OTHER_NAMESPACE: 'platform-other' };
    const { BERTH_NAMESPACE: _own, ...other } = environment;
    const calls = [
      command.run(['vm', 'list', '-n', 'platform-flag'], { environment }),
      command.run(['vm', 'list'], { environment }),
      command.run(['vm', 'list'], { environment: other }),
    ];
    const refusals = (await Promise.all(calls)).map(({ code, err }) => [
      code,
      /platform-\w+/.exec(err.split('namespace')[1] ?? '')?.[0],
    ]);
    expect(refusals).toEqual([
      [3, 'platform-flag'],
      [3, 'platform-own'],
      [3, 'platform-other'],
    ]);
    expect(await berth('vm', 'get', 'absent')).toEqual({
      code: 4,
      out: '',
      err: `error: vm "absent" not found in namespace ${namespace}\n`,
    });
  });
});

describe('a deployment', () => {
  it('that fails deletes the VM and has the words of the hypervisor', async () => {
    const result = berth('vm', 'deploy', 'failing', '--image', IMAGE, '--node', 'bare');
    await bare.waitForPod({ namespace, name: 'failing' });
    expect((await vms.get('failing')).spec.aliveUntil).toBeDefined();
    await bare.fail({ namespace, name: 'failing' }, 'StartFailed', 'qemu: no such \u001b[2Jaccelerator');
    const { code, out, err } = await result;
    expect([code, out]).toEqual([1, '']);
    expect(err).toContain('qemu: no such  [2Jaccelerator. VM failing was deleted\n');
    await vms.waitUntilGone('failing');
  });

  it('that the user interrupts deletes the VM', async () => {
    const args = ['vm', 'deploy', 'stopped', '--image', IMAGE, '--node', 'bare'];
    const interrupt = bare.waitForPod({ namespace, name: 'stopped' });
    expect(await command.run(args, { interrupt })).toEqual({
      code: 130,
      out: '',
      err: 'error: Interrupted. VM stopped was deleted\n',
    });
    await bare.end({ namespace, name: 'stopped' });
    await vms.waitUntilGone('stopped');
  });

  it('of a config that does not exist ends at once', async () => {
    const { code, err } = await berth('vm', 'deploy', 'misspelt', '--config', 'absent');
    expect([code, err]).toEqual([4, expect.stringMatching(/absent.* not found/)]);
    await vms.waitUntilGone('misspelt');
  });

  it('with a value that is not allowed names the flag', async () => {
    const args = ['--image', IMAGE, '--display-width', '99999', '--memory', '1Mi'];
    const { code, err } = await berth('vm', 'deploy', 'bad', ...args);
    expect(code).toBe(1);
    expect(err).toMatch(/--display-width: .*99999.*3840/);
    expect(err).toMatch(/--memory: .*memory 1Mi is not allowed: it must be a quantity from 64Mi/);
  });

  it('that is out of time deletes the VM and says what it waited for', async () => {
    const { code, err } = await late;
    expect([code, err]).toEqual([
      5,
      expect.stringMatching(
        /^VM late waits: .*host.*\nerror: VM late did not run within 1 minute\. VM late was deleted\. The VM waited for: .*host/,
      ),
    ]);
    await vms.waitUntilGone('late');
  });
});

/** Files of a runner that GARM gives, by their paths. */
const RUNNER_FILES: Readonly<Record<string, string>> = {
  '/credentials/runner': '{"agentName":"garm-Ab1"}',
  '/credentials/credentials': '{"scheme":"OAuth"}',
  '/credentials/credentials_rsaparams': '{"d":"c2VjcmV0"}',
};

it('an example of a provider makes VMs for GARM with the configuration of their runners, and deletes them', async () => {
  const metadata = createServer(({ url = '', headers }, response) => {
    const isAllowed = headers.authorization === 'Bearer of-the-instance';
    response.writeHead(isAllowed ? 200 : 401).end(isAllowed ? RUNNER_FILES[url] : '');
  });
  await once(metadata.listen(0, '127.0.0.1'), 'listening');
  const { port } = metadata.address() as AddressInfo;
  const garm = async (GARM_COMMAND: string, id = '', input = '') => {
    const environment = {
      ...command.installed(),
      // Members with the role dev may not make Secrets.
      KUBECONFIG: cluster.kubeconfig,
      GARM_COMMAND,
      GARM_CONTROLLER_ID: 'c-1',
      GARM_POOL_ID: 'p-1',
      GARM_INSTANCE_ID: id,
    };
    const program = new StartedProgram(GARM_PROVIDER, [], environment);
    program.type(input);
    return await program.result();
  };
  const bootstrap = {
    name: 'garm-Ab1',
    flavor: CONFIG,
    image: IMAGE,
    arch: 'arm64',
    'metadata-url': `http://127.0.0.1:${port}`,
    'instance-token': 'of-the-instance',
  };
  const create = async (change = {}) =>
    await garm('CreateInstance', '', JSON.stringify({ ...bootstrap, ...change }));
  const instance = {
    provider_id: 'garm-ab1',
    name: 'garm-Ab1',
    pool_id: 'p-1',
    os_type: 'linux',
    // GARM takes running, error, stopped and unknown alone.
    status: 'running',
    provider_fault: '',
  };
  const created = await create();
  expect([created.code, JSON.parse(created.stdout)]).toEqual([0, expect.objectContaining(instance)]);
  const { spec } = await vms.get('garm-ab1');
  expect(spec).toMatchObject({ ttlSecondsAfterFinished: 0, activeDeadlineSeconds: 21_600, image: IMAGE });
  const { data = {} } = await cluster.client().get(SECRETS, { namespace, name: 'garm-ab1' });
  const decode = (text = '') => Buffer.from(text, 'base64').toString();
  const files = JSON.parse(decode(decode(data['user-data']))) as Record<string, string>;
  expect(Object.entries(files).map(([name, text]) => [name, decode(text)])).toEqual([
    ['.runner', RUNNER_FILES['/credentials/runner']],
    ['.credentials', RUNNER_FILES['/credentials/credentials']],
    ['.credentials_rsaparams', RUNNER_FILES['/credentials/credentials_rsaparams']],
  ]);
  await vms.waitForPhase('garm-ab1', 'Running');
  const running = { ...instance, status: 'running', os_arch: 'arm64' };
  expect(JSON.parse((await garm('GetInstance', 'garm-ab1')).stdout)).toEqual(running);
  expect(JSON.parse((await garm('ListInstances')).stdout)).toEqual([running]);
  expect((await garm('StopInstance', 'garm-ab1')).code).toBe(0);
  expect((await vms.get('garm-ab1')).spec.powerState).toBe('Stopped');
  expect((await garm('StartInstance', 'garm-ab1')).code).toBe(0);
  // A creation that fails leaves nothing, and GARM then deletes by its own name.
  expect(await create({ name: 'garm-Ab2', 'instance-token': 'other' })).toMatchObject({
    code: 22,
    stdout: '',
  });
  expect((await create({ name: 'garm-Ab2', image: 'No image' })).code).toBe(1);
  for (const id of ['garm-ab1', 'garm-Ab1', 'garm-Ab2']) {
    expect((await garm('DeleteInstance', id)).code).toBe(0);
  }
  expect((await garm('GetInstance', 'garm-ab1')).code).not.toBe(0);
  const left = await Promise.all(
    ['garm-ab1', 'garm-ab2'].map((name) =>
      cluster
        .client()
        .get(SECRETS, { namespace, name })
        .catch(() => 'none'),
    ),
  );
  expect(left).toEqual(['none', 'none']);
  await vms.waitUntilGone('garm-ab1');
  expect(JSON.parse((await garm('ListInstances')).stdout)).toEqual([]);
  expect((await garm('RemoveAllInstances')).code).toBe(0);
  metadata.close();
});

it('prolong moves the end of the lives of VMs later, and names a VM without an end', async () => {
  const onBare = ['--image', IMAGE, '--node', 'bare'];
  const soon = new Date(Date.now() + 3_600_000).toISOString();
  await berth('vm', 'create', 'held', ...onBare, '--alive-until', soon);
  await berth('vm', 'create', 'free', ...onBare);
  const before = Date.now();
  const { code, out, err } = await berth('vm', 'prolong', 'held', 'free', '--life', '2h');
  expect([code, out, err]).toEqual([
    1,
    expect.stringMatching(/^vm held lives until \S+Z\n$/),
    expect.stringContaining('aliveUntil can be set only when the VM is created'),
  ]);
  const until = Date.parse((await vms.get('held')).spec.aliveUntil ?? '');
  expect(until).toBeGreaterThanOrEqual(before + 7_200_000);
  expect(until).toBeLessThanOrEqual(Date.now() + 7_200_000);
  const earlier = await berth('vm', 'prolong', 'held');
  expect([earlier.code, earlier.err]).toEqual([1, expect.stringContaining('can only be moved later')]);
});

it('start, stop and restart change the VM, and refuse what makes no sense', async () => {
  await berth('vm', 'create', 'power', '--image', IMAGE, '--node', 'bare');
  const pending = await berth('vm', 'suspend', 'power');
  expect([pending.code, pending.err]).toEqual([
    1,
    expect.stringMatching(/VM power is \w+, so the command suspend is refused/),
  ]);
  await bare.waitForPod({ namespace, name: 'power' });
  await bare.run({ namespace, name: 'power' });
  await vms.waitForVM('power', 'to run', ({ status }) => status?.phase === 'Running');
  expect(await berth('vm', 'stop', 'power')).toEqual({
    code: 0,
    out: 'Requested stop of vm power\n',
    err: '',
  });
  expect((await vms.get('power')).spec.powerState).toBe('Stopped');
  expect(await berth('vm', 'start', 'power')).toEqual({
    code: 0,
    out: 'Requested start of vm power\n',
    err: '',
  });
  expect((await vms.get('power')).spec.powerState).toBe('Running');
  expect((await json('vm', 'restart', 'power', '-o', 'json'))[0]).toMatchObject({
    name: 'power',
    powerState: 'Running',
  });
  expect((await vms.get('power')).spec.restartRequestedAt).toEqual(expect.any(String));
});

it('a server that is away is named', async () => {
  const path = join(cluster.directory, 'cli-away.kubeconfig');
  writeKubeconfig(path, {
    server: 'https://127.0.0.1:1',
    authority: '',
    user: { kind: 'token', token: 'a' },
  });
  const { code, err } = await command.run(['vm', 'list'], { kubeconfig: path });
  expect([code, err]).toEqual([5, expect.stringContaining('https://127.0.0.1:1 does not answer')]);
});
