/** The command `berth` as it is installed: one executable file without Node.js beside it, and an npm package. */
import { copyFileSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, utimesSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { tmpdir } from 'node:os';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type Executable, makeExecutable, makePackage } from '../../hack/cli/executable.ts';
import { ownPlatform } from '../../hack/cli/nodes.ts';
import { type Cluster, startCluster } from '../../hack/cluster/index.ts';
import { HOST_KEY, HOST_VALUE } from '../../api/v1alpha1/names.ts';
import { VM_CONFIGS } from '../../api/v1alpha1/resources.ts';
import { VERSION } from '../../api/v1alpha1/version.ts';
import { run } from '../../base/exec.ts';
import { EXIT, Interrupted } from '../../cli/errors.ts';
import { run as runBerth } from '../../cli/program.ts';
import { NODES } from '../../kube/core.ts';
import { waitFor } from '../../hack/wait.ts';
import { unless } from '../support/unless.ts';

const STEP_MILLISECONDS = 180_000;
const COMMAND = join(import.meta.dirname, '..', '..', 'cli', 'main.ts');

/** Fields that a Node must have with `nodeInfo`. */
const NO_NODE_INFO = Object.fromEntries(
  [
    'architecture',
    'bootID',
    'containerRuntimeVersion',
    'kernelVersion',
    'kubeProxyVersion',
    'machineID',
    'operatingSystem',
    'osImage',
    'systemUUID',
  ].map((field) => [field, '']),
);

const COMPONENT = { 'app.kubernetes.io/component': 'operator' };
/** The operator's Deployment with the labels of the chart. */
const OPERATOR = {
  apiVersion: 'apps/v1',
  kind: 'Deployment',
  metadata: {
    name: 'berth-operator',
    namespace: 'default',
    labels: { 'app.kubernetes.io/name': 'berth', 'app.kubernetes.io/version': VERSION },
  },
  spec: {
    replicas: 0,
    selector: { matchLabels: COMPONENT },
    template: {
      metadata: { labels: COMPONENT },
      spec: { containers: [{ name: 'operator', image: 'none' }] },
    },
  },
};

let folder: string;
let cluster: Cluster;

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'berth-installed-'));
  cluster = await startCluster({ name: `command-${process.pid}` });
});
afterAll(async () => {
  await cluster?.stop();
  rmSync(folder, { recursive: true, force: true });
});

async function output(program: string, ...parameters: string[]): Promise<string> {
  return await run(program, parameters, {
    timeoutMilliseconds: STEP_MILLISECONDS,
    environment: { PATH: process.env.PATH },
  });
}

describe('the executable', () => {
  let executable: Executable;
  beforeAll(async () => {
    executable = await makeExecutable(ownPlatform(), folder);
  });

  test('has the name under which it is called', async () => {
    for (const name of ['kubectl-berth', 'ci-vms']) {
      symlinkSync('berth', join(folder, name));
    }
    expect(await output(join(folder, 'berth'), '--help')).toMatch(/^Usage: berth /);
    expect(await output(join(folder, 'kubectl-berth'), '--help')).toMatch(/^Usage: kubectl berth /);
    expect(await output(join(folder, 'ci-vms'), '--help')).toMatch(/^Usage: ci-vms /);
  });

  test('takes its flags for itself, and no settings of Node.js', async () => {
    const settings = { PATH: process.env.PATH, NODE_OPTIONS: '--require=/nonexistent' };
    const text = await run(executable.path, ['--version'], {
      timeoutMilliseconds: STEP_MILLISECONDS,
      environment: settings,
    });
    expect(text).toMatch(/^\d+\.\d+\.\d+\n$/);
  });

  describe('in a root with nothing but its libraries', unless(whyNoChroot()), () => {
    test('works with a cluster', async () => {
      const root = join(folder, 'root');
      for (const file of [...(await librariesOf(executable.path)), executable.path]) {
        const path = file === executable.path ? join(root, 'berth') : join(root, file);
        mkdirSync(dirname(path), { recursive: true });
        copyFileSync(file, path);
      }
      copyFileSync(cluster.kubeconfig, join(root, 'config'));
      const began = performance.now();
      await output('chroot', root, '/berth', '--version');
      const milliseconds = performance.now() - began;
      console.log(
        `berth: ${(executable.bytes / 1e6).toFixed(1)} MB, ${milliseconds.toFixed(0)} ms in a bare root`,
      );
      const list = ['vm', 'list', '-o', 'json', '--kubeconfig', '/config'];
      expect(await output('chroot', root, '/berth', ...list)).toBe('[]\n');
    });
  });
});

test('the versions of the cluster are shown, and a person reads once a day that they differ', async () => {
  const object = { metadata: { name: 'host', labels: { [HOST_KEY]: HOST_VALUE } } };
  await cluster.client().create(NODES, object);
  const status = { nodeInfo: { ...NO_NODE_INFO, kubeletVersion: 'v1.36.3-berth.0.9.1' } };
  await cluster.client().mergePatch(NODES, { name: 'host' }, { status }, { subresource: 'status' });
  await cluster.kubectl(['create', '-f', '-'], { input: JSON.stringify(OPERATOR) });
  const berth = async (args: readonly string[], isForPeople: boolean) => {
    let all = '';
    const add = (text: string) => void (all += text);
    const environment = { XDG_CACHE_HOME: join(folder, 'cache'), KUBECONFIG: cluster.kubeconfig };
    const { signal } = new AbortController();
    await runBerth(args, { name: 'berth', environment, out: add, err: add, isForPeople, signal });
    return all;
  };
  expect(JSON.parse(await berth(['version', '-o', 'json'], false))).toEqual([
    { name: 'berth', version: VERSION },
    { name: 'operator', version: VERSION },
    { name: 'agent', version: '0.9.1', hosts: 1 },
  ]);
  const list = ['vm', 'list', '-o', 'name'];
  expect(await berth(list, false)).toBe('');
  expect(await berth(list, true)).toMatch(/^warning: .* agent has 0\.9\./);
  expect(await berth(list, true)).toBe('');
  const yesterday = Date.now() / 1000 - 86_460;
  utimesSync(join(folder, 'cache', 'berth', 'versions-compared'), yesterday, yesterday);
  expect(await berth(list, true)).toMatch(/^warning: .* agent has 0\.9\./);
});

test('fields are explained by the cluster', async () => {
  const berth = async (...args: string[]) =>
    await output(process.execPath, COMMAND, ...args, '--kubeconfig', cluster.kubeconfig);
  const explained = await berth('explain', 'vm.spec');
  expect(explained).toMatch(/^vm\.spec <Object>\n/);
  expect(explained).toMatch(/\n {2}powerState <Running\|\S+>\n {4}\S/);
  const fields = JSON.parse(await berth('explain', 'imagecacheentries', '-o', 'json')) as { name: string }[];
  expect(fields.map(({ name }) => name)).toContain('spec');
  await expect(berth('explain', 'vm.spec.disk')).rejects.toThrow(
    /vm\.spec has no field "disk"\. Its fields are .*image/,
  );
  await expect(berth('explain', 'vmm')).rejects.toThrow(/no kind "vmm"\. The kinds are .*vm/);
});

test('a list with --watch shows each change until the user ends it', async () => {
  const interrupt = new AbortController();
  let out = '';
  const ended = runBerth(['vmconfig', 'list', '--watch'], {
    name: 'berth',
    environment: { KUBECONFIG: cluster.kubeconfig },
    out: (text) => void (out += text),
    err: (text) => void (out += text),
    isForPeople: false,
    signal: interrupt.signal,
  });
  const shows = async (expected: RegExp) =>
    await waitFor(`the list to show ${expected}`, () => expected.test(out));
  await shows(/^There are no VM configs/);
  const metadata = { name: 'watched', namespace: 'platform-default' };
  await cluster.client().create(VM_CONFIGS, { metadata, spec: { image: 'a', cpu: 2 } });
  await shows(/\nNAME .*\nwatched +a +2\n$/);
  await cluster.client().mergePatch(VM_CONFIGS, metadata, { spec: { cpu: 3 } });
  await shows(/\nwatched +a +2\nwatched +a +3\n$/);
  interrupt.abort(new Interrupted());
  expect(await ended).toBe(EXIT.interrupted);
});

test('the npm package has the command, also for kubectl, and the licences', async () => {
  const archive = await makePackage(folder);
  await output('npm', 'install', '--silent', '--global', '--prefix', join(folder, 'npm'), archive);
  const bin = join(folder, 'npm', 'bin');
  expect(await output(join(bin, 'berth'), '--help')).toMatch(/^Usage: berth /);
  expect(await output(join(bin, 'kubectl-berth'), 'vm', '--help')).toMatch(/^Usage: kubectl berth vm /);
  expect(await output('tar', '-xzOf', archive, 'package/LICENSES.txt')).toMatch(/^commander .*\(MIT\)$/m);
});

/** Returns the paths of the libraries that the program loads. */
async function librariesOf(program: string): Promise<string[]> {
  return [...(await output('ldd', program)).matchAll(/(?:^\s*|=> )(\/\S+) \(/gm)].map(
    ([, path = '']) => path,
  );
}

function whyNoChroot(): string | undefined {
  return process.getuid?.() === 0 ? undefined : 'only root can change the root of a program';
}
