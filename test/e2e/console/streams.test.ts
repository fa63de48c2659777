/**
 * Screen, console and log of a VM in a real Chromium. The host is a real agent with a stand-in for its hypervisor: the screen is that of a
 * real QEMU, and the console is a real shell. It runs on request (`make real`), because it needs Debian's package chromium. The pictures are in
 * `dist/console-pictures/`.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { createServer } from 'node:http';
import { type AddressInfo, connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Duplex } from 'node:stream';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { VM_SNAPSHOTS, VMS } from '../../../api/v1alpha1/resources.ts';
import { ServerPages } from '../../../hack/browser.ts';
import { bundleConsole } from '../../../hack/bundle.ts';
import { type Cluster, startCluster } from '../../../hack/cluster/index.ts';
import type { ServerProcess } from '../../../hack/cluster/program.ts';
import { waitFor } from '../../../hack/wait.ts';
import { PODS } from '../../../kube/core.ts';
import { accountToken } from '../../support/members.ts';
import { picture, violations } from '../../support/pages.ts';
import { Viewer } from '../../wires/rfb.ts';
import { machineFor, operatorClient, podFor, TestHost } from '../../worlds/agenthost.ts';

const NAMESPACE = 'platform-default';
const VM = 'desk';
/** Share of the pixels that may differ between two looks at a screen whose cursor blinks. */
const BLINKING = 0.005;

/** Script for the page: the size and the pixels of what noVNC has drawn. */
const DRAWN = `(() => {
  const canvas = document.querySelector('.screen canvas');
  const { width: wide, height: high } = canvas;
  return { wide, high, data: [...canvas.getContext('2d').getImageData(0, 0, wide, high).data] };
})()`;

/** Lines of a guest that wants to control the page. */
const HOSTILE = [
  '<img src=x onerror="document.title=1">',
  '\u001b]0;stolen\u0007\u001b]8;;https://evil.example\u0007click\u001b]8;;\u0007',
  '\u001b[31mred\u001b[0m \u202egpj.exe',
];

let cluster: Cluster;
let server: ServerProcess;
let host: TestHost;
let pages: ServerPages;
let member: string;
let folder: string;
let machine: ChildProcess;
const shells: ChildProcess[] = [];

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-screens-'));
  await bundleConsole();
  machine = startMachine();
  cluster = await startCluster({ name: `screens-${process.pid}` });
  server = await cluster.startServer();
  const clientCAFile = join(cluster.directory, 'pki', 'ca.crt');
  host = await TestHost.make(cluster, { name: 'rack-1', kubelet: { port: 0, clientCAFile } });
  Object.assign(host.driver, { connectScreen, connectConsole: async () => connectShell() });
  await host.start();
  const operator = await operatorClient(cluster);
  await operator.create(PODS, podFor(host, machineFor(NAMESPACE, VM)));
  await cluster
    .client()
    .create(VMS, { metadata: { name: VM, namespace: NAMESPACE }, spec: { image: 'ubuntu' } });
  const status = { phase: 'Running', nodeName: 'rack-1' };
  await cluster
    .client()
    .mergePatch(VMS, { name: VM, namespace: NAMESPACE }, { status }, { subresource: 'status' });
  member = await accountToken(cluster, { namespace: NAMESPACE, name: 'ann' }, { role: 'berth-role-dev' });
  // Until the cluster has signed the agent's serving certificate, the API server does not connect to the agent.
  await waitFor('the API server to reach the agent', async () => {
    await cluster.kubectl(['logs', VM, '-n', NAMESPACE]);
    return true;
  });
  pages = await ServerPages.launch(server.url);
});

afterAll(async () => {
  await pages?.close();
  await server?.process.stop();
  await host?.remove();
  await cluster?.stop();
  for (const one of [machine, ...shells]) {
    one.kill('SIGKILL');
  }
  await rm(folder, { recursive: true, force: true });
});

/** Starts a QEMU without a disk. Its firmware writes on its screen that it finds none. */
function startMachine(): ChildProcess {
  return spawn(
    'qemu-system-x86_64',
    [
      '-machine',
      'pc,accel=tcg',
      '-m',
      '64',
      '-display',
      'none',
      '-nic',
      'none',
      '-vnc',
      'unix:vnc.sock,share=force-shared',
    ],
    { cwd: folder, stdio: 'ignore' },
  );
}

async function connectScreen(): Promise<Duplex> {
  const screen = connect(join(folder, 'vnc.sock'));
  screen.on('error', () => undefined);
  await once(screen, 'connect');
  return screen;
}

/** Returns a shell in a terminal, as a guest has it on its serial console. */
function connectShell(): Duplex {
  const shell = spawn(
    'script',
    ['--quiet', '--flush', '--command', 'bash --norc --noediting -i', '/dev/null'],
    {
      env: { PATH: process.env['PATH'], TERM: 'vt220', PS1: 'guest# ' },
      stdio: ['pipe', 'pipe', 'ignore'],
    },
  );
  shells.push(shell);
  const stream = Duplex.from({ readable: shell.stdout, writable: shell.stdin });
  stream.on('error', () => undefined);
  return stream;
}

it('draws the screen of the guest, pixel by pixel', async () => {
  const page = await pages.openConsole(member, `#/vms/${NAMESPACE}/${VM}/screen`);
  await page.getByText('Connected.').waitFor();
  const viewer = await Viewer.open(await connectScreen());
  await waitFor('the page to show what another viewer sees', async () => {
    const { width, height, pixels } = await viewer.frame();
    const drawn = await page.evaluate<{ wide: number; high: number; data: number[] }>(DRAWN);
    expect([drawn.wide, drawn.high]).toEqual([width, height]);
    let different = 0;
    let lit = 0;
    for (let at = 0; at < pixels.length; at += 4) {
      // A viewer gets blue, green and red, a canvas has red, green and blue.
      const [blue = 0, green = 0, red = 0] = pixels.subarray(at, at + 3);
      lit += red + green + blue > 0 ? 1 : 0;
      const isEqual = red === drawn.data[at] && green === drawn.data[at + 1] && blue === drawn.data[at + 2];
      different += isEqual ? 0 : 1;
    }
    expect(lit).toBeGreaterThan(1_000);
    expect(different / (width * height)).toBeLessThan(BLINKING);
    return true;
  });
  viewer.close();
  await picture(page, 'screen');
  expect(await violations(page)).toEqual([]);
  expect(pages.faults).toEqual([]);
  await page.context().close();
});

it('types into the console, and shows its output in place and colour', async () => {
  const page = await pages.openConsole(member, `#/vms/${NAMESPACE}/${VM}/console`);
  await page.getByText('Connected.').waitFor();
  const console = page.getByRole('textbox', { name: `Console of ${VM}` });
  await console.click();
  await page.keyboard.type(`printf '\\033[32mgreen\\033[0m'; echo $((6 * 7))\n`);
  await page.getByText('42', { exact: false }).waitFor();
  await page.locator('.terminal .text-2', { hasText: 'green' }).waitFor();
  await picture(page, 'console');
  expect(await violations(page)).toEqual([]);
  await page.keyboard.press('Control+]');
  expect(await page.locator('button:focus').textContent()).toBe('Connect again');
  expect(pages.faults).toEqual([]);
  await page.context().close();
});

it('shows the log as plain text, whatever the guest writes', async () => {
  host.driver.console = () => ({
    read: async function* () {
      yield* HOSTILE.map((text, index) => `2026-11-22T10:00:0${index}.000000001Z ${text}\n`);
    },
  });
  const page = await pages.openConsole(member, `#/vms/${NAMESPACE}/${VM}/log`);
  await page.getByText('<img src=x onerror="document.title=1">').waitFor();
  await page.locator('.log-line', { hasText: /^10:00:01 click$/ }).waitFor();
  expect(await page.locator('.log a').count()).toBe(0);
  expect(await page.title()).toBe('Berth');
  await picture(page, 'log');
  expect(await violations(page)).toEqual([]);
  expect(pages.faults).toEqual([]);
  await page.context().close();
});

it('resets a VM to a snapshot after a question', async () => {
  const client = cluster.client();
  const snapshot = { namespace: NAMESPACE, name: 'before' };
  await client.create(VM_SNAPSHOTS, { metadata: snapshot, spec: { vmName: VM } });
  await client.mergePatch(VM_SNAPSHOTS, snapshot, { status: { phase: 'Ready' } }, { subresource: 'status' });
  const page = await pages.openConsole(member, `#/vms/${NAMESPACE}/${VM}`);
  await page.getByRole('button', { name: `Revert VM ${VM} to before` }).click();
  await page.getByText('All that the VM has written since then is lost').waitFor();
  await picture(page, 'revert');
  await page.getByRole('button', { name: 'Revert', exact: true }).click();
  await page.getByText(`The revert of VM ${VM} to before was requested`).waitFor();
  const { spec } = await client.get(VMS, { namespace: NAMESPACE, name: VM });
  expect(spec).toMatchObject({ revertTo: 'before', revertRequestedAt: expect.any(String) });
  expect(await violations(page)).toEqual([]);
  expect(pages.faults).toEqual([]);
  await page.context().close();
});

it('gives nothing to a page of another site, which frames it and connects to it', async () => {
  const evil = createServer((_, response) => {
    response.setHeader('content-type', 'text/html');
    response.end(`<!doctype html><title>evil</title><iframe src="${server.url}/console/"></iframe>`);
  });
  evil.listen(0, '127.0.0.1');
  await once(evil, 'listening');
  const page = await pages.visit('/console/');
  await page.goto(`http://127.0.0.1:${(evil.address() as AddressInfo).port}/`);
  const frame = page.frames().find((one) => one !== page.mainFrame());
  expect(await frame?.locator('#page').count()).toBe(0);
  const secret = `base64url.bearer.authorization.k8s.io.${Buffer.from(member).toString('base64url')}`;
  const results = await page.evaluate<string[]>(`(async () => {
    const read = (options) => fetch('${server.url}/console/session', options).then(() => 'read', () => 'refused');
    const connect = new Promise((resolve) => {
      const path = '/console/streams/namespaces/${NAMESPACE}/vms/${VM}/vnc';
      const socket = new WebSocket('${server.url.replace('https', 'wss')}' + path, ['v4.channel.k8s.io', '${secret}']);
      socket.onopen = () => resolve('open');
      socket.onerror = () => resolve('refused');
    });
    return await Promise.all([read({}), read({ headers: { authorization: 'Bearer ${member}' } }), connect]);
  })()`);
  expect(results).toEqual(['refused', 'refused', 'refused']);
  await page.context().close();
  evil.close();
});
