/**
 * Sign-in at a real identity provider in a real Chromium, for a real API server. It runs on request (`make real`), because it needs Debian's
 * package chromium. The pictures are in `dist/console-pictures/`.
 */
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { AxeBuilder } from '@axe-core/playwright';
import { type Browser, chromium } from 'playwright-core';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { stringify } from 'yaml';
import { authenticationConfiguration } from '../../../hack/authentication.ts';
import { bundleConsole } from '../../../hack/bundle.ts';
import { type Cluster, startCluster } from '../../../hack/cluster/index.ts';
import type { ServerProcess } from '../../../hack/cluster/program.ts';
import { CLIENT, IdentityProvider } from '../../worlds/provider.ts';

const PICTURES = join(import.meta.dirname, '..', '..', '..', 'dist', 'console-pictures');
const CHROMIUM = '/usr/bin/chromium';
const NAMESPACE = 'platform-default';
/** Script for the page: all that it has stored. */
const STORED = `JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie])`;

let provider: IdentityProvider;
let cluster: Cluster;
let server: ServerProcess;
let browser: Browser;
let folder: string;

beforeAll(async () => {
  await mkdir(PICTURES, { recursive: true });
  folder = await mkdtemp(join(tmpdir(), 'berth-console-signin-'));
  await bundleConsole();
  provider = await IdentityProvider.start({ dev: { groups: ['devs'] } });
  const { issuer, authority } = provider;
  const configuration = authenticationConfiguration({ issuer, authority, client: CLIENT, hardened: true });
  cluster = await startCluster({
    name: `console-signin-${process.pid}`,
    authentication: stringify(configuration),
  });
  const trusted = join(folder, 'provider.pem');
  await writeFile(trusted, authority);
  server = await cluster.startServer({
    config: { cluster: { issuer, clientID: CLIENT } },
    environment: { NODE_EXTRA_CA_CERTS: trusted },
  });
  provider.registerPage(`${server.url}/console/`);
  const binding = ['rolebinding', 'devs', '-n', NAMESPACE, '--clusterrole=berth-role-dev'];
  await cluster.kubectl(['create', ...binding, '--group=oidc:devs']);
  browser = await chromium.launch({ executablePath: CHROMIUM, chromiumSandbox: false });
});

afterAll(async () => {
  await browser?.close();
  await server?.process.stop();
  await cluster?.stop();
  await provider?.close();
  await rm(folder, { recursive: true, force: true });
});

it('signs in at the provider, comes back to the place, and stores no token', async () => {
  const context = await browser.newContext({ ignoreHTTPSErrors: true });
  const page = await context.newPage();
  const faults: string[] = [];
  page.on('pageerror', (error) => faults.push(error.message));
  const place = `#/vms?namespace=${NAMESPACE}`;
  await page.goto(`${server.url}/console/${place}`);
  const account = page.getByRole('button', { name: 'Continue with your account' });
  await account.waitFor();
  await page.screenshot({ path: join(PICTURES, 'sign-in-account.png') });
  expect((await new AxeBuilder({ page }).analyze()).violations.map(({ id }) => id)).toEqual([]);
  await account.click();
  await page.locator('input[name=login]').fill('dev');
  await page.locator('input[name=password]').fill('any');
  await page.getByRole('button', { name: 'Sign-in' }).click();
  await page.getByRole('button', { name: 'Continue' }).click();
  await page.getByText('dev@berth.test').waitFor();
  await page.getByText(`No VMs in namespace ${NAMESPACE} yet`).waitFor();
  expect(page.url()).toBe(`${server.url}/console/${place}`);
  expect(await page.evaluate(STORED)).toBe('[{},{},""]');
  await page.getByRole('button', { name: 'Sign out' }).click();
  await account.waitFor();
  // An answer that this window did not ask for signs nobody in.
  await page.goto(`${server.url}/console/?code=stolen&state=${'x'.repeat(43)}`);
  await page.getByRole('alert').waitFor();
  expect(await page.getByRole('alert').textContent()).toMatch(/was not begun in this window/);
  expect(page.url()).toBe(`${server.url}/console/`);
  expect(faults).toEqual([]);
  await context.close();
});
