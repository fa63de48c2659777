/**
 * Several windows of the console in one real Chromium, which opens six connections to one server for all of them. It runs on request
 * (`make real`), because it needs Debian's package chromium.
 */
import { type Browser, chromium, type Page } from 'playwright-core';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { NODES } from '../../../kube/core.ts';
import { bundleConsole } from '../../../hack/bundle.ts';
import { type Cluster, startCluster } from '../../../hack/cluster/index.ts';
import type { ServerProcess } from '../../../hack/cluster/program.ts';
import { VMs } from '../../fixtures/vms.ts';
import { accountToken } from '../../support/members.ts';

const CHROMIUM = '/usr/bin/chromium';
/** With a connection for each watch, two of these windows would already need eight. */
const WINDOWS = 4;

let cluster: Cluster;
let server: ServerProcess;
let browser: Browser;
let admin: string;
const faults: string[] = [];

beforeAll(async () => {
  await bundleConsole();
  cluster = await startCluster({ name: `console-windows-${process.pid}`, hosts: 2, operator: true });
  server = await cluster.startServer();
  const account = { namespace: 'platform-default', name: 'lead' };
  admin = await accountToken(cluster, account, { role: 'cluster-admin', in: 'cluster' });
  browser = await chromium.launch({ executablePath: CHROMIUM, chromiumSandbox: false });
});

afterAll(async () => {
  await browser?.close();
  await server?.process.stop();
  await cluster?.stop();
});

async function signIn(page: Page): Promise<void> {
  page.on('pageerror', (error) => faults.push(error.message));
  page.on('console', (message) => {
    if (message.type() === 'error') {
      faults.push(message.text());
    }
  });
  await page.goto(`${server.url}/console/`);
  await page.getByLabel('Token').fill(admin);
  await page.getByRole('button', { name: 'Sign in' }).click();
}

it('shows changes at once in several windows of all namespaces, each with one WebSocket', async () => {
  const context = await browser.newContext({ ignoreHTTPSErrors: true });
  const pages = await Promise.all(Array.from({ length: WINDOWS }, () => context.newPage()));
  const sockets = pages.map((page) => {
    const opened: string[] = [];
    page.on('websocket', (socket) => opened.push(new URL(socket.url()).pathname));
    return opened;
  });
  await Promise.all(pages.map(signIn));
  for (const page of pages) {
    await page.getByRole('article', { name: /host-0/ }).waitFor();
  }
  await new VMs(cluster).create('seen');
  for (const page of pages) {
    await page.getByRole('link', { name: /seen: Running/ }).waitFor();
  }
  await cluster.client().mergePatch(NODES, { name: 'host-0' }, { spec: { unschedulable: true } });
  for (const page of pages) {
    await page
      .getByRole('article', { name: /host-0/ })
      .getByText(/^(?:cordoned|draining)$/)
      .waitFor();
  }
  // All connections are free for other requests.
  await pages[0]?.getByRole('link', { name: 'Pools' }).click();
  await pages[0]?.getByText(/There are no .* yet/).waitFor();
  expect(sockets).toEqual(sockets.map(() => ['/console/watch']));
  expect(faults).toEqual([]);
  await context.close();
});
