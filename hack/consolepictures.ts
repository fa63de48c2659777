/**
 * Makes the pictures of the console on the running demo, and types into the screen of its guest. A fleet of one host would show little, so
 * simulated hosts with VMs stand beside the demo's own while the fleet is pictured.
 */
import { join } from 'node:path';
import { VM_POOLS, VMS } from '../api/v1alpha1/resources.ts';
import { NODES } from '../kube/core.ts';
import type { ServerPages } from './browser.ts';
import { type Cluster, connectCluster } from './cluster/index.ts';
import { waitFor } from './wait.ts';

const NAMESPACE = 'platform-default';
/** VM of the demo. */
const GUEST = 'hello';
const NARROW = { width: 390, height: 844 } as const;
const FLEET_VIEW = { width: 1440, height: 570 } as const;
/** Room for a screen and what stands above it. */
const SCREEN_VIEW = { width: 1440, height: 860 } as const;
const POOLS_VIEW = { width: 1440, height: 300 } as const;
/** Time limit of a step in milliseconds. An emulated guest on a busy machine needs seconds for a line. */
const STEP = { deadlineMilliseconds: 120_000 } as const;

// The screen of the guest

/** Lines for the login on the screen. */
const SCREEN_LINES = ['root', 'uname -a', 'free -m', 'ls /'];
const PROMPT = /hello:~#/g;
/** Time between two keys in milliseconds: the speed of a good typist, and enough for the keyboard buffer of an emulated guest. */
const KEY_MILLISECONDS = 100;

/** Logs in on the screen of the guest, calls `whenTyped`, and logs out. */
export async function pictureScreen(
  pages: ServerPages,
  { token, folder, whenTyped }: { token: string; folder: string; whenTyped: () => Promise<void> },
): Promise<void> {
  const cluster = await connectCluster('demo');
  try {
    const page = await pages.openConsole(token, `#/vms/${NAMESPACE}/${GUEST}/screen`, {
      viewport: SCREEN_VIEW,
      colorScheme: 'dark',
    });
    await page.getByText('Connected.').waitFor();
    await page.locator('.screen canvas').click();
    for (const [index, line] of SCREEN_LINES.entries()) {
      await page.keyboard.type(`${line}\n`, { delay: KEY_MILLISECONDS });
      await waitFor(
        `the answer to ${line} on the screen`,
        async () => (await countPrompts(cluster)) > index,
        STEP,
      );
    }
    await whenTyped();
    await page.screenshot({ path: join(folder, 'console-screen.png') });
    await page.keyboard.type('exit\n', { delay: KEY_MILLISECONDS });
  } finally {
    await cluster.disconnect();
  }
}

/** Returns the number of prompts on the first text screen of the guest. */
async function countPrompts(cluster: Cluster): Promise<number> {
  const { stdout } = await cluster.kubectl(['-n', NAMESPACE, 'exec', GUEST, '--', 'cat', '/dev/vcs1']);
  return stdout.match(PROMPT)?.length ?? 0;
}

// The fleet

const TEAM = 'platform-mobile';
/** Simulated hosts. Each has room for four of the VMs below. */
const HOSTS = [
  { prefix: 'mini', count: 8 },
  { prefix: 'studio', count: 4 },
] as const;
/** A host that takes no VMs, and one that keeps its VMs and takes no more. */
const CORDONED = { empty: 'studio-3', occupied: 'mini-2' } as const;
/** VMs that the hosts run. */
const RUNNING = [
  { prefix: 'ios-build', namespace: TEAM, count: 17, spec: { cpu: 4, scheduler: 'most-allocated' } },
  { prefix: 'ui-test', namespace: NAMESPACE, count: 9, spec: { cpu: 4 } },
] as const;
/** VMs that wait: no host has as many processors, or as much memory. */
const WAITING = [
  { prefix: 'archive', namespace: TEAM, count: 2, spec: { cpu: 32 } },
  { prefix: 'render', namespace: NAMESPACE, count: 1, spec: { memory: '256Gi' } },
] as const;
/** The demo's own host has another architecture, so it gets none of these VMs. */
const ARCHITECTURE = 'arm64';
const IMAGE = 'registry.example/macos/sonoma:14.6';
const SOURCE = { image: IMAGE, architecture: ARCHITECTURE } as const;
const POOLS = [
  { name: 'ios-fresh', replicas: 6 },
  { name: 'ui-fresh', replicas: 3 },
] as const;

/** The pictures: an address, and a text that the page shows when it is complete. */
const LOOKS = [
  { name: 'console-fleet', address: '#/fleet', text: 'archive-0', viewport: FLEET_VIEW },
  {
    name: 'console-fleet-dark',
    address: '#/fleet',
    text: 'archive-0',
    viewport: FLEET_VIEW,
    colorScheme: 'dark',
  },
  { name: 'console-fleet-narrow', address: '#/fleet', text: 'archive-0', viewport: NARROW },
  { name: 'console-pools', address: '#/objects/vmpools', text: '6 of 6', viewport: POOLS_VIEW },
  { name: 'console-vms-narrow', address: '#/vms', text: 'archive-0', viewport: NARROW, colorScheme: 'dark' },
] as const;

/** Makes simulated hosts, pictures them, and removes them. `token` is that of an administrator. */
export async function pictureFleet(
  pages: ServerPages,
  { token, folder }: { token: string; folder: string },
): Promise<void> {
  const cluster = await connectCluster('demo');
  try {
    await fill(cluster);
    for (const { name, address, text, ...look } of LOOKS) {
      const page = await pages.openConsole(token, address, look);
      await page.getByText(text, { exact: true }).first().waitFor();
      // The row below the mouse would be marked.
      await page.mouse.move(0, 0);
      await page.screenshot({ path: join(folder, `${name}.png`) });
      await page.context().close();
    }
  } finally {
    await empty(cluster);
    await cluster.disconnect();
  }
}

async function fill(cluster: Cluster): Promise<void> {
  const client = cluster.client();
  await cluster.createNamespace(TEAM);
  for (const { count, ...options } of HOSTS) {
    await cluster.addHosts(count, { ...options, architecture: ARCHITECTURE });
  }
  const cordon = async (name: string) =>
    await client.mergePatch(NODES, { name }, { spec: { unschedulable: true } });
  await cordon(CORDONED.empty);
  await createVMs(cluster, RUNNING);
  for (const { name, replicas } of POOLS) {
    const spec = { replicas, template: { spec: SOURCE } };
    await client.create(VM_POOLS, { metadata: { namespace: TEAM, name }, spec });
  }
  await waitFor(
    'the pools to be full',
    async () => {
      const { items } = await client.list(VM_POOLS, { namespace: TEAM });
      return items.every(({ spec, status }) => status?.readyReplicas === spec.replicas);
    },
    STEP,
  );
  await cordon(CORDONED.occupied);
  await createVMs(cluster, WAITING);
}

async function createVMs(cluster: Cluster, groups: typeof RUNNING | typeof WAITING): Promise<void> {
  for (const { prefix, namespace, count, spec } of groups) {
    for (let index = 0; index < count; index += 1) {
      const metadata = { namespace, name: `${prefix}-${index}` };
      await cluster.client().create(VMS, { metadata, spec: { ...SOURCE, ...spec } });
    }
  }
}

async function empty(cluster: Cluster): Promise<void> {
  const simulated = [...RUNNING, ...WAITING].flatMap(({ prefix, namespace, count }) =>
    namespace === NAMESPACE ? Array.from({ length: count }, (_, index) => `${prefix}-${index}`) : [],
  );
  await cluster.kubectl(['delete', 'vms', '-n', NAMESPACE, '--ignore-not-found', ...simulated]);
  await cluster.kubectl(['delete', 'namespace', TEAM, '--ignore-not-found']);
  // Otherwise, hosts of these names would be cordoned again when they come back.
  const client = cluster.client();
  const names: readonly string[] = Object.values(CORDONED);
  const cordoned = (await client.list(NODES)).items.filter(({ metadata }) => names.includes(metadata.name));
  for (const { metadata } of cordoned) {
    await client.mergePatch(NODES, { name: metadata.name }, { spec: { unschedulable: null } });
  }
  await cluster.kubectl(['delete', 'nodes', '--selector=berth.dev/simulated=true', '--ignore-not-found']);
}
