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
/** Time limit of waits in the page for the fleet. */
const FLEET_WAIT = { timeout: 120_000 };

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

it('lists other objects with the columns that tell their state', async () => {
  const page = await open(admin, '#/objects/vmpools');
  await page.getByRole('cell', { name: 'fresh platform-default' }).waitFor();
  await page.getByRole('columnheader', { name: 'Roll-out' }).waitFor();
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

it('deploys a VM by a form with the bounds of the server, which shows each mistake at its field', async () => {
  const page = await open(admin, '#/vms?namespace=platform-default');
  await page.getByRole('link', { name: 'Deploy a VM' }).click();
  await page.getByLabel('Name', { exact: true }).fill('Formed');
  await page.getByLabel('CPU').fill('257');
  await page.getByRole('button', { name: 'Deploy' }).click();
  await page.getByText('must be from 1 to 256', { exact: true }).waitFor();
  await page.getByLabel('CPU').fill('2');
  await page.getByRole('button', { name: 'Deploy' }).click();
  await page.getByText('at least one of image, iso and vmConfig must be given').waitFor();
  await page.getByLabel('Image', { exact: true }).fill(IMAGE);
  await page.getByRole('button', { name: 'Deploy' }).click();
  const name = page.getByLabel('Name', { exact: true });
  await page.locator('[aria-invalid="true"]').waitFor();
  expect(await name.getAttribute('aria-invalid')).toBe('true');
  await page.getByText('Host', { exact: true }).click();
  await page.screenshot({ path: join(PICTURES, 'deploy.png') });
  expect(await violations(page)).toEqual([]);
  expect(faults.splice(0).every((fault) => fault.includes('422'))).toBe(true);
  await name.fill('formed');
  await page.getByRole('button', { name: 'Deploy' }).click();
  await page.getByRole('heading', { name: /formed/ }).waitFor();
  await page.getByText('Running', { exact: true }).first().waitFor();
  expect(faults).toEqual([]);
});

it('changes what can be changed of a VM, and shows the object as YAML', async () => {
  const page = await open(admin, '#/vms/platform-default/build-1');
  await page.getByRole('button', { name: 'Change…' }).click();
  await page.getByLabel('CPU').fill('0');
  await page.getByRole('button', { name: 'Change', exact: true }).click();
  await page.getByText('must be from 1 to 256', { exact: true }).waitFor();
  await page.screenshot({ path: join(PICTURES, 'change.png') });
  expect(await violations(page)).toEqual([]);
  await page.getByLabel('CPU').fill('7');
  await page.getByRole('button', { name: 'Change', exact: true }).click();
  await page.getByRole('dialog').waitFor({ state: 'detached' });
  await page.getByText('YAML').click();
  await page.getByText('cpu: 7').waitFor();
  expect(await violations(page)).toEqual([]);
  expect(faults).toEqual([]);
});

it('claims a VM of a pool, and scales the pool', async () => {
  const page = await open(admin, '#/objects/vmpools?namespace=platform-default');
  await page.getByText('2 of 2').waitFor(FLEET_WAIT);
  await page.getByRole('button', { name: 'Scale pool fresh' }).click();
  await page.getByLabel('Replicas').fill('3');
  await page.getByRole('button', { name: 'Scale', exact: true }).click();
  await page.getByText('Pool fresh keeps 3 VMs').waitFor();
  await page.getByText('3 of 3').waitFor(FLEET_WAIT);
  await page.getByRole('button', { name: 'Claim a VM of pool fresh' }).click();
  await page.getByLabel('When empty').waitFor();
  await page.screenshot({ path: join(PICTURES, 'claim.png') });
  expect(await violations(page)).toEqual([]);
  await page.getByRole('button', { name: 'Claim', exact: true }).click();
  await page.getByRole('heading', { name: /^fresh-.* Running/ }).waitFor(FLEET_WAIT);
  expect(faults).toEqual([]);
});

it('shows members and service accounts to those who manage a namespace, and a new token once', async () => {
  const page = await open(admin, `#/access?namespace=${SHOP}`);
  await page.getByRole('button', { name: 'New service account…' }).click();
  await page.getByLabel('Name (required)').fill('ci');
  await page.getByRole('button', { name: 'Create' }).click();
  await page.getByRole('button', { name: 'New token of ci' }).click();
  await page.getByLabel('Duration').fill('1 hour');
  await page.getByRole('button', { name: 'Create' }).click();
  await page.getByText('must be hours, minutes and seconds').waitFor();
  await page.getByLabel('Duration').fill('1h');
  await page.getByRole('button', { name: 'Create' }).click();
  const token = await page.getByRole('textbox', { name: 'Token' }).inputValue();
  expect(token.split('.')).toHaveLength(3);
  await page.screenshot({ path: join(PICTURES, 'token.png') });
  expect(await violations(page)).toEqual([]);
  await page.getByRole('button', { name: 'Done' }).click();
  expect(await page.content()).not.toContain(token);
  await page.getByRole('button', { name: 'Add a member…' }).click();
  await page.getByLabel('Name (required)').fill(HOSTILE);
  await page.getByRole('button', { name: 'Add', exact: true }).click();
  await page.getByRole('rowheader', { name: HOSTILE }).waitFor();
  await page.screenshot({ path: join(PICTURES, 'access.png') });
  expect(await violations(page)).toEqual([]);
  expect(await page.title()).toBe('Berth');
  expect(faults.splice(0).filter((fault) => !fault.includes('422'))).toEqual([]);
  await page.context().close();
  const other = await open(member, `#/access?namespace=${SHOP}`);
  await other.getByText(`You do not manage namespace ${SHOP}`).waitFor();
  expect(await violations(other)).toEqual([]);
  faults.length = 0;
});

it('draws how long jobs waited and ran', async () => {
  const page = await open(admin, '#/times');
  await page
    .getByRole('img', { name: /jobs in 24 hours/ })
    .first()
    .waitFor(FLEET_WAIT);
  await page.screenshot({ path: join(PICTURES, 'times.png') });
  expect(await violations(page)).toEqual([]);
  expect(faults).toEqual([]);
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
