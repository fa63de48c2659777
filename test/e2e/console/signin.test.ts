/**
 * Sign-in at a real identity provider in a real Chromium, for a real API server. It runs on request (`make real`), because it needs Debian's
 * package chromium. The pictures are in `dist/console-pictures/`.
 */
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { stringify } from 'yaml';
import { authenticationConfiguration } from '../../../hack/authentication.ts';
import { ServerPages } from '../../../hack/browser.ts';
import { bundleConsole } from '../../../hack/bundle.ts';
import { type Cluster, startCluster } from '../../../hack/cluster/index.ts';
import type { ServerProcess } from '../../../hack/cluster/program.ts';
import { picture, violations } from '../../support/pages.ts';
import { CLIENT, IdentityProvider } from '../../worlds/provider.ts';

const NAMESPACE = 'platform-default';
/** Script for the page: all that it has stored. */
const STORED = `JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie])`;

let provider: IdentityProvider;
let cluster: Cluster;
let server: ServerProcess;
let pages: ServerPages;
let folder: string;

beforeAll(async () => {
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
  pages = await ServerPages.launch(server.url);
});

afterAll(async () => {
  await pages?.close();
  await server?.process.stop();
  await cluster?.stop();
  await provider?.close();
  await rm(folder, { recursive: true, force: true });
});

it('signs in at the provider, comes back to the place, and stores no token', async () => {
  const place = `#/vms?namespace=${NAMESPACE}`;
  const page = await pages.visit(`/console/${place}`);
  const account = page.getByRole('button', { name: 'Continue with your account' });
  await account.waitFor();
  await picture(page, 'sign-in-account');
  expect(await violations(page)).toEqual([]);
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
  expect(pages.faults).toEqual([]);
  await page.context().close();
});
