/** The agent's bundle on a stand-in for macOS with the stand-in for `tart`, against a real API server: nothing of Linux alone is used. */
import { randomBytes } from 'node:crypto';
import { mkdtempSync, rmSync, truncateSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { NamedFinding } from '../../agent/doctor/doctor.ts';
import { NAT_READY_CONDITION, SLOT_RESOURCE } from '../../api/v1alpha1/names.ts';
import type { KubeClient } from '../../kube/client.ts';
import { NODES, type Pod, PODS } from '../../kube/core.ts';
import type { Cluster } from '../../hack/cluster/index.ts';
import { waitFor } from '../../hack/wait.ts';
import { isGone } from '../fixtures/objects.ts';
import { pushTart } from '../fixtures/tart.ts';
import { sharedCluster } from '../support/cluster.ts';
import { startRegistry, type TestRegistry } from '../wires/registry.ts';
import { machineFor, operatorClient, podFor } from '../worlds/agenthost.ts';
import { MAC, MacHost } from '../worlds/machost.ts';
import { tartOf } from '../worlds/tarthost.ts';

const suffix = randomBytes(4).toString('hex');
const NAMESPACE = `platform-mac-${suffix}`;
const DISK_BYTES = 1024 * 1024;
const SLOTS = { [SLOT_RESOURCE]: '4' };

const stack = new AsyncDisposableStack();
let cluster: Cluster;
let operator: KubeClient;
let registry: TestRegistry;
let host: MacHost;

beforeAll(async () => {
  cluster = await sharedCluster();
  await cluster.createNamespace(NAMESPACE);
  operator = await operatorClient(cluster);
  const folder = mkdtempSync(join(tmpdir(), 'berth-mac-images-'));
  stack.defer(() => rmSync(folder, { recursive: true, force: true }));
  registry = await startRegistry({ directory: join(folder, 'registry'), password: false });
  stack.defer(async () => await registry.close());
  const disk = join(folder, 'disk.raw');
  writeFileSync(disk, '');
  truncateSync(disk, DISK_BYTES);
  const machine = {
    os: 'darwin',
    ecid: 'ZWNpZA==',
    hardwareModel: 'bW9kZWw=',
    cpuCountMin: 1,
    memorySizeMin: 1,
  };
  await pushTart(registry, 'team/macos:1', disk, { architecture: 'arm64', machine });
  host = await MacHost.make(cluster, `mac-${suffix}`, {
    images: { registries: [{ host: registry.host, caFile: registry.caFile }] },
    network: { driver: 'softnet' },
  });
  stack.use(host);
  // The stand-in for softnet filters nothing, and ends with its standard input.
  host.replaceProgram('softnet', '[ "$1" = --help ] && echo @host || exec cat >/dev/null');
  host.replaceProgram('sudo', 'shift; exec "$@"');
  await host.start();
  const status = { capacity: SLOTS, allocatable: SLOTS };
  await cluster.client().mergePatch(NODES, { name: host.name }, { status }, { subresource: 'status' });
});

afterAll(async () => {
  await stack.disposeAsync();
  await cluster.client().delete(NODES, { name: host.name });
});

async function waitForPod(what: string, test: (pod: Pod) => boolean): Promise<Pod> {
  return await waitFor(what, async () => {
    const pod = await operator.get(PODS, { namespace: NAMESPACE, name: 'desk' });
    if (!test(pod)) {
      throw new Error(JSON.stringify(pod.status));
    }
    return pod;
  });
}

test('the Node tells which Mac it is', async () => {
  const { status } = await operator.get(NODES, { name: host.name });
  expect(status?.nodeInfo).toMatchObject({
    operatingSystem: 'darwin',
    architecture: 'arm64',
    osImage: `macOS ${MAC.version}`,
    kernelVersion: '25.1.0',
    machineID: MAC.hardware,
    systemUUID: MAC.hardware,
    bootID: MAC.boot,
  });
});

async function networkOfNode(): Promise<object> {
  const { status } = await operator.get(NODES, { name: host.name });
  return status?.conditions?.find(({ type }) => type === NAT_READY_CONDITION) ?? {};
}

test('a guest with macOS runs, outlives its agent and ends with its Pod', async () => {
  const image = { type: 'registry', reference: `${registry.host}/team/macos:1` } as const;
  const machine = machineFor(NAMESPACE, 'desk', { image, os: 'MacOS', architecture: 'arm64' });
  const { metadata } = await operator.create(PODS, podFor(host, machine));
  const isRunning = (pod: Pod): boolean => pod.status?.phase === 'Running';
  await waitForPod('the machine to run', isRunning);
  const processes = await host.processes();
  expect([...processes.keys()]).toEqual([metadata.uid]);
  expect(tartOf(host.dataDirectory).calls.find(([command]) => command === 'run')).toContain('--net-softnet');
  expect(await networkOfNode()).toMatchObject({ status: 'True' });
  await host.kill();
  await host.start();
  await waitFor('the resources of the machine', async () => (await host.resources()).includes('pod="desk"'));
  await waitForPod('the machine to run on', isRunning);
  expect(await host.processes()).toEqual(processes);
  tartOf(host.dataDirectory).give('macos-shuts-down');
  await operator.delete(PODS, { namespace: NAMESPACE, name: 'desk' });
  await waitFor('the Pod to be gone', () =>
    isGone(() => operator.get(PODS, { namespace: NAMESPACE, name: 'desk' })),
  );
  expect(await host.processes()).toEqual(new Map());
});

test('without the program that filters packets, the Node says that the host takes no VMs, and a check of the host says how to mend it', async () => {
  host.removeProgram('softnet');
  await host.kill();
  await host.start();
  await waitFor('the Node to say so', async () => JSON.stringify(await networkOfNode()).includes('False'));
  expect(await networkOfNode()).toMatchObject({
    status: 'False',
    message: expect.stringContaining('takes no further machine: There is no program') as string,
  });
  const { stdout } = await host.run(['doctor', '--config', host.configFile]);
  expect(stdout).toMatch(/^fix +softnet +There is no program .*softnet\n +Install it with/m);
  host.replaceProgram('softnet', '[ "$1" = --help ] && echo @host || exec cat >/dev/null');
});

test('a check of the host finds what is to be done, and changes nothing', async () => {
  host.replaceProgram('pmset', 'echo " sleep 10 (sleep prevented by powerd)"; echo " autorestart 1"');
  host.replaceProgram('fdesetup', 'echo FileVault is Off.');
  host.replaceProgram('xattr', 'echo "xattr: $3: No such xattr: $2" >&2; exit 1');
  host.replaceProgram('launchctl', 'printf "gui/501/dev.berth.agent = {\\n\\tstate = running\\n}\\n"');
  const absent = `echo "The domain/default pair of ($2, $3) does not exist" >&2; exit 1`;
  host.replaceProgram('defaults', `[ $3 = autoLoginUser ] && echo agent || { ${absent}; }`);
  const before = await operator.get(NODES, { name: host.name });
  const { stdout, code } = await host.run(['doctor', '--config', host.configFile, '--output', 'json']);
  const findings = JSON.parse(stdout) as NamedFinding[];
  const checks = (wanted: string) =>
    findings.filter(({ result }) => result === wanted).map(({ check }) => check);
  expect(checks('fix')).toEqual(['sleep', 'leases']);
  expect(checks('unknown')).toEqual(['local-network']);
  expect(checks('ok')).toEqual([
    'platform',
    'configuration',
    'user',
    'log-writer',
    'disk',
    'tart',
    'softnet',
    'data-directory',
    'power-failure',
    'file-vault',
    'automatic-login',
    'quarantine',
    'launchd',
    'certificate',
    'cluster',
    'clock',
  ]);
  expect(code).toBe(1);
  const after = await operator.get(NODES, { name: host.name });
  expect(after.metadata.uid).toBe(before.metadata.uid);
  const text = await host.run(['doctor', '--config', host.configFile]);
  expect(text.stdout).toMatch(/^fix +sleep +The computer sleeps after 10 minutes\n +Run: sudo pmset/m);
  expect(text.stdout).toMatch(/\n16 ok, 2 to fix, 1 unknown\n$/);
});

/** prom-client tries to read the limit of open files there on every system, and goes on without it. */
const TRIED_BY_LIBRARY = '/proc/self/limits';

test('all this has touched no file that only Linux has, and has started only programs of macOS', () => {
  const { files, programs } = host.notes();
  expect(files.filter((file) => file !== TRIED_BY_LIBRARY)).toEqual([]);
  const names = new Set(programs.map((program) => basename(program)));
  const ofAgent = ['ioreg', 'mkfifo', 'perl', 'ps', 'softnet', 'sudo', 'sw_vers', 'sysctl', 'tart'];
  const ofCheck = ['defaults', 'fdesetup', 'launchctl', 'pmset', 'xattr'];
  expect(names).toEqual(new Set([...ofAgent, ...ofCheck]));
});
