/**
 * Several windows of the console in one real Chromium, which opens six connections to one server for all of them. It runs on request
 * (`make real`), because it needs Debian's package chromium.
 */
import type { Page } from 'playwright-core';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { NODES } from '../../../kube/core.ts';
import { ServerPages, signIn } from '../../../hack/browser.ts';
import { bundleConsole } from '../../../hack/bundle.ts';
import { type Cluster, startCluster } from '../../../hack/cluster/index.ts';
import type { ServerProcess } from '../../../hack/cluster/program.ts';
import { VMs } from '../../fixtures/vms.ts';
import { accountToken } from '../../support/members.ts';

/** With a connection for each watch, two of these windows would already need eight. */
const WINDOWS = 4;

let cluster: Cluster;
let server: ServerProcess;
let pages: ServerPages;
let admin: string;

beforeAll(async () => {
  await bundleConsole();
  cluster = await startCluster({ name: `console-windows-${process.pid}`, hosts: 2, operator: true });
  server = await cluster.startServer();
  const account = { namespace: 'platform-default', name: 'lead' };
  admin = await accountToken(cluster, account, { role: 'cluster-admin', in: 'cluster' });
  pages = await ServerPages.launch(server.url);
});

afterAll(async () => {
  await pages?.close();
  await server?.process.stop();
  await cluster?.stop();
});

it('shows changes in several windows of all namespaces, each with one WebSocket', async () => {
  const first = await pages.visit('/console/');
  const windows: Page[] = [first];
  const sockets: string[] = [];
  const open = async (page: Page) => {
    page.on('websocket', (socket) => sockets.push(new URL(socket.url()).pathname));
    await signIn(page, admin);
  };
  await open(first);
  while (windows.length < WINDOWS) {
    // Windows of one profile share their connections.
    const page = await first.context().newPage();
    await page.goto(first.url());
    await open(page);
    windows.push(page);
  }
  for (const page of windows) {
    await page.getByRole('article', { name: /host-0/ }).waitFor();
  }
  await new VMs(cluster).create('seen');
  for (const page of windows) {
    await page.getByRole('link', { name: /seen: Running/ }).waitFor();
  }
  await cluster.client().mergePatch(NODES, { name: 'host-0' }, { spec: { unschedulable: true } });
  for (const page of windows) {
    const host = page.getByRole('article', { name: /host-0/ });
    await host.getByText(/^(?:cordoned|draining)$/).waitFor();
  }
  // All connections are free for other requests.
  await first.getByRole('link', { name: 'Pools' }).click();
  await first.getByText(/There are no .* yet/).waitFor();
  expect(sockets).toEqual(Array.from({ length: WINDOWS }, () => '/console/watch'));
  expect(pages.faults).toEqual([]);
});
