/**
 * The console in a real Chromium, on a fleet of simulated hosts. It runs on request (`make real`), because it needs Debian's package chromium.
 * The pictures are in `dist/console-pictures/`.
 */
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { AxeBuilder } from '@axe-core/playwright';
import { type Browser, chromium, type Page } from 'playwright-core';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { VM_POOLS } from '../../../api/v1alpha1/resources.ts';
import { EVENTS, NODES } from '../../../kube/core.ts';
import { bundleConsole } from '../../../hack/bundle.ts';
import { type Cluster, startCluster } from '../../../hack/cluster/index.ts';
import type { ServerProcess } from '../../../hack/cluster/program.ts';
import { waitFor } from '../../../hack/wait.ts';
import { IMAGE, numbered, VMs } from '../../fixtures/vms.ts';
import { accountToken } from '../../support/members.ts';

const PICTURES = join(import.meta.dirname, '..', '..', '..', 'dist', 'console-pictures');
const CHROMIUM = '/usr/bin/chromium';
const HOSTS = 12;
const SHOP = 'platform-shop';
const HOSTILE = '<img src=x onerror="document.title=\'stolen\'">';
const FLEET = { deadlineMilliseconds: 120_000 };

let cluster: Cluster;
let server: ServerProcess;
let browser: Browser;
let admin: string;
let member: string;
/** Errors and reports of the pages, for example about the content security policy. */
const faults: string[] = [];

beforeAll(async () => {
  await mkdir(PICTURES, { recursive: true });
  await bundleConsole();
  cluster = await startCluster({ name: `console-${process.pid}`, hosts: HOSTS, operator: true });
  await cluster.addHosts(2, { prefix: 'rack', architecture: 'amd64', slots: 16 });
  await cluster.createNamespace(SHOP);
  server = await cluster.startServer();
  const account = { namespace: 'platform-default', name: 'lead' };
  admin = await accountToken(cluster, account, { role: 'cluster-admin', in: 'cluster' });
  member = await accountToken(cluster, { namespace: SHOP, name: 'ann' }, { role: 'berth-role-dev' });
  await fill();
  browser = await chromium.launch({ executablePath: CHROMIUM, chromiumSandbox: false });
});

afterAll(async () => {
  await browser?.close();
  await server?.process.stop();
  await cluster?.stop();
});

/** Makes VMs of two teams, of which some cannot run, and a host that takes no VMs. */
async function fill(): Promise<void> {
  const vms = new VMs(cluster);
  const shop = new VMs(cluster, SHOP);
  await vms.createMany(numbered('build', 30));
  await shop.createMany(numbered('e2e', 14), { image: 'registry.example/macos/sonoma:14.6' });
  await waitFor('the VMs to run', async () => (await vms.names('Running')).length >= 30, FLEET);
  await vms.createMany(numbered('queue', 6), { cpu: 64 });
  await cluster.client().create(VM_POOLS, {
    metadata: { name: 'fresh', namespace: vms.namespace },
    spec: { replicas: 2, template: { spec: { image: IMAGE } } },
  });
  await cluster.client().mergePatch(NODES, { name: 'host-1' }, { spec: { unschedulable: true } });
  const { metadata } = await vms.get('build-0');
  await cluster.client().create(EVENTS, {
    metadata: { name: 'hostile', namespace: 'platform-default' },
    eventTime: new Date().toISOString().replace('Z', '000Z'),
    reportingController: 'test',
    reportingInstance: 'test',
    action: 'Attack',
    reason: 'Attack',
    regarding: { apiVersion: 'berth.dev/v1alpha1', kind: 'VM', ...metadata },
    note: HOSTILE,
    type: 'Warning',
  } as never);
}

/** Opens the page and signs in. `address` is the part after `#`. */
async function open(token: string, address = '', options: object = {}): Promise<Page> {
  const context = await browser.newContext({
    ignoreHTTPSErrors: true,
    viewport: { width: 1440, height: 900 },
    ...options,
  });
  const page = await context.newPage();
  page.on('pageerror', (error) => faults.push(error.message));
  page.on('console', (message) => {
    if (message.type() === 'error') {
      faults.push(message.text());
    }
  });
  await page.goto(`${server.url}/console/${address}`);
  await page.getByLabel('Token').fill(token);
  await page.getByRole('button', { name: 'Sign in' }).click();
  return page;
}

async function violations(page: Page): Promise<string[]> {
  const { violations: found } = await new AxeBuilder({ page }).analyze();
  return found.map(
    ({ id, nodes }) =>
      `${id}: ${nodes
        .map(({ html }) => html)
        .slice(0, 3)
        .join(' ')}`,
  );
}

it('shows the fleet, and has no fault that axe finds', async () => {
  for (const colorScheme of ['light', 'dark'] as const) {
    const page = await open(admin, '', { colorScheme });
    await page.getByRole('link', { name: /build-0: Running/ }).waitFor();
    await page.getByRole('article', { name: /host-1:/ }).waitFor();
    await page.screenshot({ path: join(PICTURES, `fleet-${colorScheme}.png`) });
    expect(await violations(page)).toEqual([]);
    await page.context().close();
  }
  expect(faults).toEqual([]);
});

it('lists and filters VMs, and shows one', async () => {
  const page = await open(admin, '#/vms');
  await page.getByRole('link', { name: 'build-0', exact: true }).waitFor();
  await page.screenshot({ path: join(PICTURES, 'vms.png') });
  expect(await violations(page)).toEqual([]);
  await page.keyboard.press('/');
  await page.keyboard.type('phase:pending');
  await page.getByRole('link', { name: 'queue-0' }).waitFor();
  expect(await page.getByRole('link', { name: 'build-0', exact: true }).count()).toBe(0);
  await page.getByRole('link', { name: 'queue-0' }).click();
  await page.getByRole('heading', { name: 'Conditions' }).waitFor();
  await page.screenshot({ path: join(PICTURES, 'vm-waiting.png') });
  expect(await violations(page)).toEqual([]);
  await page.goto(`${server.url}/console/#/vms/platform-default/build-0`);
  await page.getByText(HOSTILE).waitFor();
  await page.screenshot({ path: join(PICTURES, 'vm.png') });
  expect(await page.title()).toBe('Berth');
  expect(faults).toEqual([]);
});

it('lists other objects with the columns of kubectl', async () => {
  const page = await open(admin, '#/objects/vmpools');
  await page.getByRole('cell', { name: 'fresh platform-default' }).waitFor();
  await page.getByRole('columnheader', { name: 'Wanted' }).waitFor();
  await page.screenshot({ path: join(PICTURES, 'pools.png') });
  expect(await violations(page)).toEqual([]);
  await page.getByRole('searchbox').fill('nothing');
  await page.getByText('Nothing fits the filter').waitFor();
  await page.getByRole('link', { name: 'Images' }).click();
  await page.getByText('There are no Images yet').waitFor();
  expect(await violations(page)).toEqual([]);
  await page.getByRole('link', { name: 'Fleet' }).click();
  await page.getByRole('article', { name: /host-1:/ }).waitFor();
  expect(faults).toEqual([]);
});

it('a member sees only their namespace, and is told why others are not shown', async () => {
  const page = await open(member);
  await page.getByRole('link', { name: /e2e-0: Running/ }).waitFor();
  await page.getByRole('article').first().waitFor();
  await page.screenshot({ path: join(PICTURES, 'fleet-member.png') });
  await page.goto(`${server.url}/console/#/vms?namespace=platform-default`);
  await page.getByText('You may not list VMs in namespace platform-default').waitFor();
  await page.screenshot({ path: join(PICTURES, 'forbidden.png') });
  expect(await violations(page)).toEqual([]);
  faults.length = 0;
});

it('is usable on a narrow screen', async () => {
  const page = await open(admin, '', { viewport: { width: 420, height: 860 } });
  await page.getByRole('article').first().waitFor();
  await page.screenshot({ path: join(PICTURES, 'fleet-narrow.png') });
  await page.goto(`${server.url}/console/#/vms`);
  await page.getByRole('link', { name: 'build-0', exact: true }).waitFor();
  await page.screenshot({ path: join(PICTURES, 'vms-narrow.png') });
  expect(await violations(page)).toEqual([]);
});

it('refuses a wrong token in plain words', async () => {
  const page = await open('invented');
  await page.getByRole('alert').waitFor();
  await page.screenshot({ path: join(PICTURES, 'sign-in.png') });
  expect(await page.getByRole('alert').textContent()).toMatch(/does not accept this token/);
  expect(await violations(page)).toEqual([]);
  faults.length = 0;
});

it('stops, starts and deletes a VM after a question', async () => {
  const page = await open(member, `#/vms/${SHOP}/e2e-0`);
  await page.getByRole('button', { name: 'Stop' }).click();
  await page.getByText('Stop was requested').waitFor();
  await page.getByRole('button', { name: 'Delete…' }).click();
  await page.screenshot({ path: join(PICTURES, 'delete.png') });
  await page.getByRole('button', { name: 'Delete', exact: true }).click();
  await page.getByText('VM e2e-0 does not exist').waitFor();
  expect(faults).toEqual([]);
});
