/** The operator's bundle, and the floor beside it, on one cluster of simulated hosts. */
import { spawn } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { bundle, bundleInto } from '../../hack/bundle.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { KubeClient } from '../../kube/client.ts';
import { type Pod, PODS } from '../../kube/core.ts';
import { VMS } from '../../operator/resources.ts';
import { type Cluster, startCluster } from '../cluster/index.ts';
import { waitFor } from '../support/wait.ts';
import type { Template } from './floor.ts';
import { runLoad } from './load.ts';
import { countWrites, cpuSeconds, difference, peakMegabytes } from './measure.ts';
import type { Fleet, Run } from './report.ts';

const SLOTS_PER_HOST = 4;
const OWN_WRITES = ['PATCH vms', 'PATCH vms/status', 'PUT vms', 'POST pods', 'PATCH pods', 'PUT pods'];
/** An operator that starts gives every host its berths first. */
const START_MILLISECONDS = 120_000;
/** Events trail behind, and Pods get their last status: not idle yet. */
const SETTLE_MILLISECONDS = 5_000;
const IDLE_MILLISECONDS = 10_000;
const NOT_OURS = /events|leases|nodes/;
/** Fewer than this are the harness's own, not a VM's. */
const LEAST_PER_VM = 0.02;

/** Both make `vms` VMs on one cluster, one after the other: throws when the hosts have no room for twice as many. */
export async function measureFleet(vms: number, hosts: number): Promise<Fleet> {
  // The floor's VMs come beside the operator's, which nobody deletes in between.
  if (!(vms > 0 && hosts * SLOTS_PER_HOST >= 2 * vms)) {
    throw new Error(`${hosts} hosts have no room for twice ${vms} VMs`);
  }
  await bundle();
  const cluster = await startCluster({ name: 'bench', hosts });
  try {
    const operator = await measureOperator(cluster, vms);
    return { vms, hosts, operator, floor: await measureFloor(cluster, vms) };
  } finally {
    await cluster.stop();
  }
}

/** Runs the load against whoever reconciles, and measures that process. */
async function measure(client: KubeClient, pid: number, namespace: string, vms: number): Promise<Run> {
  const before = await countWrites(client);
  const cpu = cpuSeconds(pid);
  const times = await runLoad(client, namespace, vms);
  const used = cpuSeconds(pid) - cpu;
  const loaded = difference(before, await countWrites(client));
  await sleep(SETTLE_MILLISECONDS);
  const settled = await countWrites(client);
  await sleep(IDLE_MILLISECONDS);
  const idle = Object.entries(difference(settled, await countWrites(client)));
  const perVM = Object.entries(loaded).map(([key, count]) => [key, count / vms] as const);
  const own = perVM.filter(([key]) => OWN_WRITES.includes(key));
  return {
    ...times,
    cpuSeconds: used,
    peakMegabytes: peakMegabytes(pid),
    writesPerVM: Object.fromEntries(perVM.filter(([, count]) => count > LEAST_PER_VM)),
    ownWritesPerVM: own.reduce((total, [, count]) => total + count, 0),
    idleWrites: Object.fromEntries(idle.filter(([key]) => !NOT_OURS.test(key))),
  };
}

async function measureOperator(cluster: Cluster, vms: number): Promise<Run> {
  const namespace = 'platform-bench-operator';
  await cluster.createNamespace(namespace);
  const operator = await cluster.startOperator({ bundle: true });
  try {
    await hostsAreReady(cluster.client());
    return await measure(cluster.client(), operator.pid, namespace, vms);
  } finally {
    await operator.stop();
  }
}

async function measureFloor(cluster: Cluster, vms: number): Promise<Run> {
  const namespace = 'platform-bench-floor';
  await cluster.createNamespace(namespace);
  const template = join(cluster.directory, 'floor-template.json');
  writeFileSync(template, JSON.stringify(await readTemplate(cluster.client())));
  // From a bundle, as the operator, or Node's TypeScript loader would be measured too.
  await bundleInto(cluster.directory, { floor: join(import.meta.dirname, 'floor.ts') });
  writeFileSync(join(cluster.directory, 'package.json'), '{"type":"module"}');
  const program = join(cluster.directory, 'floor.js');
  const child = spawn(process.execPath, [program, cluster.operatorKubeconfig, template, namespace], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const ended = new Promise<never>((_, reject) => {
    child.once('exit', (code) => reject(new Error(`the floor ended (${code})`)));
  });
  // Until it is waited for; its end after the measurement is no error.
  ended.catch(() => undefined);
  try {
    await Promise.race([ended, new Promise((resolve) => child.stdout.once('data', resolve))]);
    return await Promise.race([ended, measure(cluster.client(), child.pid ?? 0, namespace, vms)]);
  } finally {
    child.kill();
  }
}

/** What the operator made of the first VM. */
async function readTemplate(client: KubeClient): Promise<Template> {
  const ref = { namespace: 'platform-bench-operator', name: 'vm-0' };
  return { vm: await client.get<VM>(VMS, ref), pod: await client.get<Pod>(PODS, ref) };
}

/** The operator has written to every host what it offers, and nothing since the last look. */
export async function hostsAreReady(client: KubeClient): Promise<void> {
  const written = async (): Promise<number> => (await countWrites(client)).get('APPLY nodes/status') ?? 0;
  let last = -1;
  await waitFor(
    'the hosts to have their berths',
    async () => {
      const before = last;
      last = await written();
      return last > 0 && last === before;
    },
    { deadlineMilliseconds: START_MILLISECONDS, intervalMilliseconds: 2_000 },
  );
}
