/** Power by demand with a real API server and scheduler: hosts go off while nothing needs them, and on when VMs wait. */
import { pino } from 'pino';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { conditionOf } from '../../api/http/conditions.ts';
import type { ServerStatus } from '../../api/v1alpha1/server.ts';
import { type Cluster, type OperatorProcess, startCluster } from '../../hack/cluster/index.ts';
import { waitFor } from '../../hack/wait.ts';
import { EVENTS, type Pod, PODS } from '../../kube/core.ts';
import { Informer } from '../../kube/informer.ts';
import { VMs } from '../fixtures/vms.ts';
import { PoweredHosts } from '../worlds/poweredhosts.ts';

const HOSTS = 5;
const SLOTS = 4;
const BOOT_SECONDS = 6;
/** Longest time in milliseconds from the creation of a VM until it runs, if a host must be switched on: the boot and 10 s. */
const WAIT_MILLISECONDS = (BOOT_SECONDS + 10) * 1000;
const PATIENCE = { deadlineMilliseconds: 90_000 };

let cluster: Cluster;
let operator: OperatorProcess;
let hosts: PoweredHosts;
let vms: VMs;

beforeAll(async () => {
  cluster = await startCluster({ name: `demand-${process.pid}` });
  hosts = await PoweredHosts.create(cluster, { count: HOSTS, bootMilliseconds: BOOT_SECONDS * 1000 });
  operator = await cluster.startOperator({
    config: {
      defaults: { architecture: 'arm64' },
      powerByDemand: { enabled: true, emptySeconds: 5, floor: 1, bootSeconds: 12 },
    },
  });
  vms = new VMs(cluster);
});

afterAll(async () => {
  await operator?.stop();
  await hosts?.[Symbol.asyncDispose]();
  await cluster?.stop();
});

async function untilOnlyFloorIsOn(): Promise<string> {
  await waitFor('all empty hosts but one to be off', async () => hosts.on.length === 1, PATIENCE);
  const [floor = ''] = hosts.on;
  const off = hosts.names.filter((name) => name !== floor);
  await Promise.all(off.map((name) => untilOff(name)));
  return floor;
}

/** Waits until the operator has confirmed that the server is off. */
async function untilOff(name: string): Promise<ServerStatus> {
  return await waitFor(
    `Server ${name} to be off`,
    async () => {
      const { status } = await hosts.server(name);
      return status?.power === 'Off' && status.lastAction?.completedAt !== undefined ? status : undefined;
    },
    PATIENCE,
  );
}

function watchPods(see: (pod: Readonly<Pod>) => void) {
  const ended = new AbortController();
  const informer = new Informer(cluster.client(), PODS, { logger: pino({ level: 'silent' }) });
  informer.cache.onChange(({ object }) => see(object));
  informer.start(ended.signal);
  return { synced: informer.synced, [Symbol.dispose]: () => ended.abort() };
}

async function eventsOf(name: string): Promise<string[]> {
  const { items } = await cluster.client().list(EVENTS, { namespace: 'default' });
  return items
    .filter(({ regarding }) => regarding.kind === 'Server' && regarding.name === name)
    .map(({ reason, note }) => `${reason}: ${note}`);
}

describe('power by demand', () => {
  it('switches empty hosts off one after the other, but never the last one', async () => {
    const floor = await untilOnlyFloorIsOn();
    expect((await hosts.server(floor)).status?.request).toBeUndefined();
    const off = hosts.names.filter((name) => name !== floor);
    for (const name of off) {
      const { lastAction } = await untilOff(name);
      expect([lastAction?.action, lastAction?.by]).toEqual(['Off', 'power by demand']);
      expect(
        (await eventsOf(name)).some((text) =>
          /^PowerOffByDemand: The host has been empty for \d+ s$/.test(text),
        ),
      ).toBe(true);
    }
  });

  it('switches on as many hosts as the waiting VMs need, and the VMs say that a host is starting', async () => {
    await untilOnlyFloorIsOn();
    const names = Array.from({ length: 2 * SLOTS + 1 }, (_, index) => `batch-${index}`);
    const expected = new Set<string>();
    using pods = watchPods(({ spec, metadata, status }) => {
      if (spec.nodeName === undefined && status?.nominatedNodeName) {
        expected.add(metadata.name);
      }
    });
    await pods.synced;
    const begun = Date.now();
    await vms.createMany(names);
    const waits = await waitFor('a VM to wait for a host that starts', async () =>
      (await vms.list()).find(({ status }) =>
        status?.conditions?.some(({ reason }) => reason === 'HostStarting'),
      ),
    );
    expect(waits.status?.phase).toBe('Pending');
    const message = conditionOf(waits, 'Scheduled')?.message;
    expect(message).toMatch(/^No host is free: .*switched off.*\. Host powered-\d is starting$/);
    await Promise.all(names.map((name) => vms.waitForPhase(name, 'Running', undefined, PATIENCE)));
    expect(Date.now() - begun).toBeLessThan(WAIT_MILLISECONDS);
    expect(hosts.on).toHaveLength(3);
    // The first host that opens is for the VMs that have waited longest.
    expect(expected.size).toBeGreaterThanOrEqual(SLOTS);
    const text = 'PowerOnByDemand: A VM waits, and no host that is on or starts has room for it';
    const reported = await Promise.all(hosts.on.map(async (name) => (await eventsOf(name)).includes(text)));
    expect(reported.filter((isReported) => isReported)).toHaveLength(2);
  });

  it('keeps a host on while it has a VM, and switches the others off again when their VMs are gone', async () => {
    const [first] = await vms.list();
    const kept = first?.status?.nodeName ?? '';
    const others = (await vms.list()).slice(1).map(({ metadata }) => metadata.name);
    await Promise.all(others.map((name) => vms.delete(name)));
    const floor = await untilOnlyFloorIsOn();
    expect(floor).toBe(kept);
    await vms.delete(first?.metadata.name ?? '');
  });

  it('takes another host if one does not come up, and switches the broken one off again', async () => {
    const floor = await untilOnlyFloorIsOn();
    const [broken = ''] = hosts.names.filter((name) => name !== floor);
    hosts.broken.add(broken);
    const names = Array.from({ length: SLOTS + 1 }, (_, index) => `late-${index}`);
    await vms.createMany(names);
    await Promise.all(names.map((name) => vms.waitForPhase(name, 'Running', undefined, PATIENCE)));
    const { lastAction } = await untilOff(broken);
    expect(lastAction?.by).toBe('power by demand, after 1 failed starts');
    const text = 'HostNotStarted: The host did not report within 12 s after it was switched on';
    expect(await eventsOf(broken)).toContain(text);
    expect(hosts.errors).toEqual([]);
  });
});
