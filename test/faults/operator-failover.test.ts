/** Two operators on one cluster. The one that leads is killed, stopped, or frozen and continued, and users must not notice. */
import { afterAll, afterEach, beforeAll, expect, it } from 'vitest';
import { DESIRED_ANNOTATION } from '../../api/v1alpha1/names.ts';
import { SERVERS } from '../../api/v1alpha1/resources.ts';
import type { ServerStatus } from '../../api/v1alpha1/server.ts';
import { timestamp } from '../../base/time.ts';
import { LEASES } from '../../kube/core.ts';
import { type Cluster, type OperatorProcess, startCluster } from '../../hack/cluster/index.ts';
import { startOperator } from '../../hack/cluster/program.ts';
import { ApiProxy, type Write } from '../wires/apiproxy.ts';
import { faultsIn } from '../support/operatorlog.ts';
import { numbered, VMs } from '../fixtures/vms.ts';
import { waitFor } from '../../hack/wait.ts';
import { untilStill } from '../support/stillness.ts';
import { Plug } from '../worlds/plug.ts';

const LEASE = { namespace: 'berth-system', name: 'berth-operator' };
/** Promised times from the end of the leader until another leads. After a crash, VMs that were created meanwhile also run in this time. */
const AFTER_CRASH_MILLISECONDS = 15_000;
const AFTER_CLEAN_STOP_MILLISECONDS = 2_000;
/** Time limit until another leads. An operator that was frozen cannot release its lease. */
const ANOTHER_LEADS = { deadlineMilliseconds: 60_000 };

let cluster: Cluster;
let vms: VMs;
let proxy: ApiProxy;
let leader: OperatorProcess | undefined;
let standby: OperatorProcess | undefined;

beforeAll(async () => {
  cluster = await startCluster({ name: `operator-failover-${process.pid}`, hosts: 5 });
  proxy = await ApiProxy.start(cluster, 'proxied');
  vms = new VMs(cluster);
});

afterEach(async () => {
  proxy.goOn('lost');
  for (const operator of [leader, standby]) {
    await operator?.kill('SIGKILL');
    await operator?.stopped;
  }
  await cluster.client().delete(LEASES, LEASE);
});

afterAll(async () => {
  await proxy?.close();
  await cluster?.stop();
});

/** Starts two operators. The first leads and uses the proxy. The second has warm caches. */
async function startTwo(): Promise<[OperatorProcess, OperatorProcess]> {
  leader = await startOperator(cluster.directory, proxy.kubeconfig, { name: 'leader' });
  await waitForHolder((holder) => holder !== '');
  standby = await cluster.startOperator({ name: 'standby' });
  return [leader, standby];
}

async function waitForHolder(matches: (holder: string) => boolean): Promise<string> {
  return await waitFor(
    'somebody to lead',
    async () => {
      const { spec } = await cluster.client().get(LEASES, LEASE);
      const holder = spec?.holderIdentity ?? '';
      return matches(holder) && holder;
    },
    ANOTHER_LEADS,
  );
}

/** Waits until another operator than `before` leads. */
async function waitForAnother(before: string): Promise<void> {
  await waitForHolder((holder) => holder !== '' && holder !== before);
}

/** Returns the milliseconds from `began` until all VMs run. */
async function millisecondsUntilAllRun(names: readonly string[], began: number): Promise<number> {
  for (const name of names) {
    await vms.waitForPhase(name, 'Running');
  }
  return performance.now() - began;
}

it('the leader killed: VMs that are created meanwhile run within 15 s', async () => {
  const [first] = await startTwo();
  const names = numbered('killed', 8);
  const began = performance.now();
  await first.kill('SIGKILL');
  await vms.createMany(names);
  expect(await millisecondsUntilAllRun(names, began)).toBeLessThan(AFTER_CRASH_MILLISECONDS);
});

it('the leader stopped cleanly: another leads within 2 s, and VMs that are created meanwhile run', async () => {
  const [first, second] = await startTwo();
  const before = await waitForHolder((holder) => holder !== '');
  const names = numbered('stopped', 4);
  const began = performance.now();
  await first.kill('SIGTERM');
  const created = vms.createMany(names);
  await waitForAnother(before);
  expect(performance.now() - began).toBeLessThan(AFTER_CLEAN_STOP_MILLISECONDS);
  await created;
  await millisecondsUntilAllRun(names, began);
  await first.stopped;
  expect(faultsIn(first.logFile)).toEqual([]);
  expect(faultsIn(second.logFile)).toEqual([]);
});

it('the leader killed after a command to the controller of a server: the next leader confirms it, and sends none', async () => {
  const [first] = await startTwo();
  await using plug = await Plug.start();
  const name = 'switched';
  await cluster.client().create(SERVERS, {
    metadata: { name },
    spec: { addresses: ['192.0.2.1'], controller: plug.controller },
  });
  const waitForStatus = async (what: string, test: (status: ServerStatus) => boolean): Promise<void> => {
    await waitFor(
      what,
      async () => test((await cluster.client().get(SERVERS, { name })).status ?? {}),
      ANOTHER_LEADS,
    );
  };
  await waitForStatus('the power', ({ power }) => power === 'On');
  // The plug accepts the command, and switches off only later.
  plug.isLying = true;
  const powerAction = { action: 'Off', requestedAt: timestamp(Date.now()) };
  await cluster.client().mergePatch(SERVERS, { name }, { spec: { powerAction } });
  await waitForStatus('the acceptance', ({ lastAction }) => lastAction?.acceptedAt !== undefined);
  await first.kill('SIGKILL');
  plug.power = 'off';
  await waitForStatus('the end', ({ lastAction }) => lastAction?.result === 'Succeeded');
  expect(plug.commands).toEqual(['off']);
  await cluster.client().delete(SERVERS, { name });
});

/** Writes that the leader has sent. The API server gets them when another operator has long been leading. */
const LATE = {
  pod: (write: Write) => write.method === 'POST' && write.body.includes('"name":"deleted-meanwhile"'),
  power: (write: Write) => write.method === 'PATCH' && write.path.endsWith('/pods/stopped-meanwhile'),
  deletion: (write: Write) => write.method === 'DELETE' && write.path.endsWith('/pods/made-again'),
};

async function powerOf(name: string): Promise<string> {
  const text = (await vms.pod(name)).metadata.annotations?.[DESIRED_ANNOTATION] ?? '{}';
  return (JSON.parse(text) as { powerState: string }).powerState;
}

async function setPower(name: string, powerState: 'Running' | 'Stopped'): Promise<void> {
  await vms.patch(name, { powerState });
}

async function waitForPower(name: string, power: string): Promise<void> {
  await waitFor(`the Pod of ${name} to say ${power}`, async () => (await powerOf(name)) === power);
}

/** Freezes the leader while these three writes are held back. */
async function freezeAtWork(first: OperatorProcess): Promise<void> {
  await vms.createMany(['stopped-meanwhile', 'made-again']);
  await millisecondsUntilAllRun(['stopped-meanwhile', 'made-again'], 0);
  proxy.stopAt('before', LATE.pod);
  await vms.create('deleted-meanwhile');
  await proxy.untilStopped();
  await setPower('stopped-meanwhile', 'Stopped');
  await vms.delete('made-again');
  await waitFor('all three to be on their way', () =>
    Object.values(LATE).every((matches) => proxy.writes.some(matches)),
  );
  await first.kill('SIGSTOP');
}

/** Changes all objects that the late writes concern. */
async function lifeGoesOn(): Promise<void> {
  await vms.waitForPhase('deleted-meanwhile', 'Running');
  await vms.delete('deleted-meanwhile');
  await waitForPower('stopped-meanwhile', 'Stopped');
  await setPower('stopped-meanwhile', 'Running');
  await waitForPower('stopped-meanwhile', 'Running');
  await vms.waitUntilGone('made-again');
  await vms.create('made-again');
  await vms.waitForPhase('made-again', 'Running');
  await vms.waitUntilGone('deleted-meanwhile');
}

/** Returns the versions of the objects that the late writes concern. */
async function versions(): Promise<(string | undefined)[]> {
  const names = ['stopped-meanwhile', 'made-again'];
  const all = await Promise.all(names.flatMap((name) => [vms.get(name), vms.pod(name)]));
  return all.map(({ metadata }) => metadata.resourceVersion);
}

it('the leader frozen past its lease, then continued: it writes nothing more, and of its late writes only one Pod of a deleted VM succeeds and is removed', async () => {
  const [first, second] = await startTwo();
  const before = await waitForHolder((holder) => holder !== '');
  await freezeAtWork(first);
  await waitForAnother(before);
  await lifeGoesOn();
  const unchanged = await untilStill(versions);

  // The frozen leader first finds work that nobody has done, before it can know that it no longer leads.
  const { length: sent } = proxy.writes;
  await second.kill('SIGSTOP');
  await vms.create('found');
  await waitFor('the frozen one to be told', () => proxy.hasPassedOn('"name":"found"'));
  await first.kill('SIGCONT');
  await first.stopped;
  expect(proxy.writes.slice(sent)).toEqual([]);
  await second.kill('SIGCONT');

  const late = proxy.writes.filter(({ status }) => status === undefined);
  proxy.goOn('late');
  await waitFor('the late writes to be answered', () => late.every(({ status }) => status !== undefined));
  expect(late.filter(LATE.power).map(({ status }) => status)).toEqual([409]);
  expect(late.filter(LATE.deletion).map(({ status }) => status)).toEqual([409]);
  // A late creation of a Pod succeeds if its name is free again. The new leader removes the Pod and its machine.
  expect(late.filter(LATE.pod).map(({ status }) => status)).toEqual([201]);
  await vms.waitUntilGone('deleted-meanwhile');
  await vms.waitForPhase('found', 'Running');
  expect(await versions()).toEqual(unchanged);
  expect(faultsIn(second.logFile)).toEqual([]);
});
