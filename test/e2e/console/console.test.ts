/**
 * The console in a real Chromium, on a fleet of simulated hosts. It runs on request (`make real`), because it needs Debian's package chromium.
 * The pictures are in `dist/console-pictures/`.
 */
import type { Page } from 'playwright-core';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { VM_POOLS } from '../../../api/v1alpha1/resources.ts';
import { EVENTS, NODES } from '../../../kube/core.ts';
import { ServerPages, signIn } from '../../../hack/browser.ts';
import { bundleConsole } from '../../../hack/bundle.ts';
import { type Cluster, startCluster } from '../../../hack/cluster/index.ts';
import type { ServerProcess } from '../../../hack/cluster/program.ts';
import { waitFor } from '../../../hack/wait.ts';
import { IMAGE, numbered, VMs } from '../../fixtures/vms.ts';
import { accountToken } from '../../support/members.ts';
import { picture, violations } from '../../support/pages.ts';
import { PoweredHosts } from '../../worlds/poweredhosts.ts';

const HOSTS = 12;
const SHOP = 'platform-shop';
const HOSTILE = '<img src=x onerror="document.title=\'stolen\'">';
const FLEET = { deadlineMilliseconds: 120_000 };
/** Time limit of waits in the page for the fleet. */
const FLEET_WAIT = { timeout: 120_000 };

let cluster: Cluster;
let server: ServerProcess;
let pages: ServerPages;
let admin: string;
let member: string;

beforeAll(async () => {
  await bundleConsole();
  cluster = await startCluster({ name: `console-${process.pid}`, hosts: HOSTS, operator: true });
  await cluster.addHosts(2, { prefix: 'rack', architecture: 'amd64', slots: 16 });
  await cluster.createNamespace(SHOP);
  server = await cluster.startServer();
  const account = { namespace: 'platform-default', name: 'lead' };
  admin = await accountToken(cluster, account, { role: 'cluster-admin', in: 'cluster' });
  member = await accountToken(cluster, { namespace: SHOP, name: 'ann' }, { role: 'berth-role-dev' });
  await fill();
  pages = await ServerPages.launch(server.url);
});

afterAll(async () => {
  await pages?.close();
  await server?.process.stop();
  await cluster?.stop();
});

/** Takes the faults since the last call, and returns those that are no refusals with this status. */
function faultsBeside(status: number): string[] {
  return pages.faults.splice(0).filter((fault) => !fault.includes(`status of ${status}`));
}

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

it('shows the fleet, and has no fault that axe finds', async () => {
  for (const colorScheme of ['light', 'dark'] as const) {
    const page = await pages.openConsole(admin, '', { colorScheme });
    await page.getByRole('link', { name: /build-0: Running/ }).waitFor();
    await page.getByRole('article', { name: /host-1:/ }).waitFor();
    await picture(page, `fleet-${colorScheme}`);
    expect(await violations(page)).toEqual([]);
    await page.context().close();
  }
  expect(pages.faults).toEqual([]);
});

it('lists and filters VMs, and shows one', async () => {
  const page = await pages.openConsole(admin, '#/vms');
  await page.getByRole('link', { name: 'build-0', exact: true }).waitFor();
  await picture(page, 'vms');
  expect(await violations(page)).toEqual([]);
  await page.keyboard.press('/');
  await page.keyboard.type('phase:pending');
  await page.getByRole('link', { name: 'queue-0' }).waitFor();
  expect(await page.getByRole('link', { name: 'build-0', exact: true }).count()).toBe(0);
  await page.getByRole('link', { name: 'queue-0' }).click();
  await page.getByRole('heading', { name: 'Conditions' }).waitFor();
  await picture(page, 'vm-waiting');
  expect(await violations(page)).toEqual([]);
  await page.goto(`${server.url}/console/#/vms/platform-default/build-0`);
  await page.getByText(HOSTILE).waitFor();
  await picture(page, 'vm');
  expect(await page.title()).toBe('Berth');
  expect(pages.faults).toEqual([]);
});

it('lists other objects with the columns that tell their state', async () => {
  const page = await pages.openConsole(admin, '#/objects/vmpools');
  await page.getByRole('cell', { name: 'fresh platform-default' }).waitFor();
  await page.getByRole('columnheader', { name: 'Roll-out' }).waitFor();
  await picture(page, 'pools');
  expect(await violations(page)).toEqual([]);
  await page.getByRole('searchbox').fill('nothing');
  await page.getByText('Nothing fits the filter').waitFor();
  await page.getByRole('link', { name: 'Images' }).click();
  await page.getByText('There are no Images yet').waitFor();
  expect(await violations(page)).toEqual([]);
  await page.getByRole('link', { name: 'Fleet' }).click();
  await page.getByRole('article', { name: /host-1:/ }).waitFor();
  expect(pages.faults).toEqual([]);
});

it('a member sees only their namespace, and is told why others are not shown', async () => {
  const page = await pages.openConsole(member);
  await page.getByRole('link', { name: /e2e-0: Running/ }).waitFor();
  await page.getByRole('article').first().waitFor();
  await picture(page, 'fleet-member');
  await page.goto(`${server.url}/console/#/vms?namespace=platform-default`);
  await page.getByText('You may not list VMs in namespace platform-default').waitFor();
  await picture(page, 'forbidden');
  expect(await violations(page)).toEqual([]);
  await page.goto(`${server.url}/console/#/vms/platform-default/build-0`);
  await page.getByText('You may not list VMs in namespace platform-default').waitFor();
  await page.goto(`${server.url}/console/#/vms`);
  await page.getByRole('link', { name: 'e2e-0', exact: true }).waitFor();
  expect(await page.getByRole('link', { name: /^(build|queue|fresh)-/ }).count()).toBe(0);
  expect(await page.getByRole('option').allTextContents()).toEqual([SHOP]);
  expect(faultsBeside(403)).toEqual([]);
});

it('asks for the token again after a reload, and comes back to the same place', async () => {
  const page = await pages.openConsole(member, `#/vms/${SHOP}/e2e-1`);
  const heading = page.getByRole('heading', { name: /^e2e-1 Running/ });
  await heading.waitFor();
  await page.reload();
  await page.getByLabel('Token').waitFor();
  expect(await heading.count()).toBe(0);
  await signIn(page, member);
  await heading.waitFor();
  expect(page.url()).toBe(`${server.url}/console/#/vms/${SHOP}/e2e-1`);
  expect(pages.faults).toEqual([]);
});

it('deploys a VM by a form with the bounds of the server, which shows each mistake at its field', async () => {
  const page = await pages.openConsole(admin, '#/vms?namespace=platform-default');
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
  await picture(page, 'deploy');
  expect(await violations(page)).toEqual([]);
  expect(faultsBeside(422)).toEqual([]);
  await name.fill('formed');
  await page.getByRole('button', { name: 'Deploy' }).click();
  await page.getByRole('heading', { name: /formed/ }).waitFor();
  await page.getByText('Running', { exact: true }).first().waitFor();
  expect(pages.faults).toEqual([]);
});

it('changes what can be changed of a VM, and shows the object as YAML', async () => {
  const page = await pages.openConsole(admin, '#/vms/platform-default/build-1');
  await page.getByRole('button', { name: 'Change…' }).click();
  await page.getByLabel('CPU').fill('0');
  await page.getByRole('button', { name: 'Change', exact: true }).click();
  await page.getByText('must be from 1 to 256', { exact: true }).waitFor();
  await picture(page, 'change');
  expect(await violations(page)).toEqual([]);
  await page.getByLabel('CPU').fill('7');
  await page.getByRole('button', { name: 'Change', exact: true }).click();
  await page.getByRole('dialog').waitFor({ state: 'detached' });
  await page.getByText('YAML').click();
  await page.getByText('cpu: 7').waitFor();
  expect(await violations(page)).toEqual([]);
  expect(pages.faults).toEqual([]);
});

it('claims a VM of a pool, and scales the pool', async () => {
  const page = await pages.openConsole(admin, '#/objects/vmpools?namespace=platform-default');
  await page.getByText('2 of 2').waitFor(FLEET_WAIT);
  await page.getByRole('button', { name: 'Scale pool fresh' }).click();
  await page.getByLabel('Replicas').fill('3');
  await page.getByRole('button', { name: 'Scale', exact: true }).click();
  await page.getByText('Pool fresh keeps 3 VMs').waitFor();
  await page.getByText('3 of 3').waitFor(FLEET_WAIT);
  await page.getByRole('button', { name: 'Claim a VM of pool fresh' }).click();
  await page.getByLabel('When empty').waitFor();
  await picture(page, 'claim');
  expect(await violations(page)).toEqual([]);
  await page.getByRole('button', { name: 'Claim', exact: true }).click();
  await page.getByRole('heading', { name: /^fresh-.* Running/ }).waitFor(FLEET_WAIT);
  expect(pages.faults).toEqual([]);
});

it('shows members and service accounts to those who manage a namespace, and a new token once', async () => {
  const page = await pages.openConsole(admin, `#/access?namespace=${SHOP}`);
  await page.getByRole('button', { name: 'New service account…' }).click();
  const dialog = page.getByRole('dialog');
  await dialog.getByLabel('Name (required)').fill('ci');
  await dialog.getByLabel('Duration').fill('1 hour');
  await picture(page, 'account');
  expect(await violations(page)).toEqual([]);
  await dialog.getByRole('button', { name: 'Create with a token' }).click();
  await page.getByText('must be hours, minutes and seconds').waitFor();
  await dialog.getByLabel('Duration').fill('1h');
  await dialog.getByRole('button', { name: 'Create with a token' }).click();
  await page.getByRole('heading', { name: 'Token of ci', exact: true }).waitFor();
  const token = await page.getByRole('textbox', { name: 'Token' }).inputValue();
  expect(token.split('.')).toHaveLength(3);
  await picture(page, 'token');
  expect(await violations(page)).toEqual([]);
  await page.getByRole('button', { name: 'Done' }).click();
  expect(await page.content()).not.toContain(token);
  await page.getByRole('button', { name: 'Add a member…' }).click();
  await page.getByLabel('Name (required)').fill(HOSTILE);
  await page.getByRole('button', { name: 'Add', exact: true }).click();
  await page.getByRole('rowheader', { name: HOSTILE }).waitFor();
  await picture(page, 'access');
  expect(await violations(page)).toEqual([]);
  expect(await page.title()).toBe('Berth');
  expect(faultsBeside(422)).toEqual([]);
  await page.context().close();
  const other = await pages.openConsole(member, `#/access?namespace=${SHOP}`);
  await other.getByText(`You do not manage namespace ${SHOP}`).waitFor();
  expect(await violations(other)).toEqual([]);
  expect(faultsBeside(403)).toEqual([]);
});

it('draws how long jobs waited and ran', async () => {
  const page = await pages.openConsole(admin, '#/times');
  await page
    .getByRole('img', { name: /jobs in 24 hours/ })
    .first()
    .waitFor(FLEET_WAIT);
  await picture(page, 'times');
  expect(await violations(page)).toEqual([]);
  expect(pages.faults).toEqual([]);
});

it('shows hosts and VMs on a narrow screen, without a fault that axe finds', async () => {
  const page = await pages.openConsole(admin, '', { viewport: { width: 390, height: 844 } });
  await page.getByRole('article').first().waitFor();
  await picture(page, 'fleet-narrow');
  await page.goto(`${server.url}/console/#/vms`);
  await page.getByRole('link', { name: 'build-0', exact: true }).waitFor();
  // Both namespaces can have a VM with this name.
  await page.getByRole('cell', { name: 'build-0 platform-default', exact: true }).waitFor();
  await picture(page, 'vms-narrow');
  expect(await violations(page)).toEqual([]);
  expect(pages.faults).toEqual([]);
});

it('leads the keyboard through the bar and the tools in the order in which they are drawn', async () => {
  const page = await pages.openConsole(admin, '#/vms');
  await page.getByRole('link', { name: 'build-0', exact: true }).waitFor();
  for (const width of [1440, 1280, 800, 390]) {
    await page.setViewportSize({ width, height: 844 });
    await page.getByRole('link', { name: 'Fleet' }).focus();
    expect(await backwardSteps(page)).toEqual([]);
    await picture(page, `bar-${width}`);
  }
  expect(pages.faults).toEqual([]);
  await page.context().close();
});

/** Presses the tabulator from the first page in the bar to the button for a VM, and returns the steps that go up or to the left. */
async function backwardSteps(page: Page): Promise<string[]> {
  const place = `(() => {
    const { activeElement: element } = document;
    const { top, bottom, left } = element.getBoundingClientRect();
    return { top, bottom, left, text: element.textContent };
  })()`;
  const steps: string[] = [];
  let last = await page.evaluate<{ top: number; bottom: number; left: number; text: string }>(place);
  while (last.text !== 'Deploy a VM') {
    await page.keyboard.press('Tab');
    const next = await page.evaluate<typeof last>(place);
    if (next.bottom <= last.top || (next.top < last.bottom && next.left < last.left)) {
      steps.push(`${last.text} → ${next.text}`);
    }
    last = next;
  }
  return steps;
}

it('refuses a wrong token in plain words', async () => {
  const page = await pages.openConsole('invented');
  await page.getByRole('alert').waitFor();
  await picture(page, 'sign-in');
  expect(await page.getByRole('alert').textContent()).toMatch(/does not accept this token/);
  expect(await violations(page)).toEqual([]);
  expect(faultsBeside(401)).toEqual([]);
});

it('stops a VM, and deletes it after a question', async () => {
  const page = await pages.openConsole(member, `#/vms/${SHOP}/e2e-0`);
  await page.getByRole('button', { name: 'Stop' }).click();
  await page.getByText('Stop was requested').waitFor();
  await page.getByRole('button', { name: 'Delete…' }).click();
  await picture(page, 'delete');
  await page.getByRole('button', { name: 'Delete', exact: true }).click();
  await page.getByText('VM e2e-0 does not exist').waitFor();
  expect(pages.faults).toEqual([]);
});

it('switches a server off after a question, and on again', async () => {
  await using hosts = await PoweredHosts.create(cluster, { count: 1, bootMilliseconds: 100 });
  const [name = ''] = hosts.names;
  const page = await pages.openConsole(admin, '#/objects/servers');
  const power = (text: string) => page.locator('.phase', { hasText: new RegExp(`^${text}$`) });
  await power('On').waitFor(FLEET_WAIT);
  await page.getByRole('button', { name: `Switch off server ${name}` }).click();
  await page.getByText('While VMs run on it, the action is refused.').waitFor();
  await picture(page, 'server-off');
  await page.getByRole('button', { name: 'Switch off', exact: true }).click();
  await page.getByText(`Off was requested for server ${name}`).waitFor();
  await power('Off').waitFor(FLEET_WAIT);
  expect(hosts.isOn(name)).toBe(false);
  await page.getByRole('button', { name: `Switch on server ${name}` }).click();
  await power('On').waitFor(FLEET_WAIT);
  expect(hosts.isOn(name)).toBe(true);
  expect(await violations(page)).toEqual([]);
  expect(pages.faults).toEqual([]);
});
