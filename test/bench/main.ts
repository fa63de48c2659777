/**
 * Measures the operator's bundle: 1,000 VMs on 600 simulated hosts, and the floor beside it on the same cluster.
 *
 *     node test/bench/main.ts [--vms 1000] [--hosts 600]
 */
import { spawn } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { KubeClient } from '../../kube/client.ts';
import { type Pod, PODS } from '../../kube/core.ts';
import { bundle, bundleInto } from '../../hack/bundle.ts';
import { type Cluster, startCluster } from '../cluster/index.ts';
import type { Template } from './floor.ts';
import { runLoad, VMS } from './load.ts';
import { countWrites, cpuSeconds, difference, peakMegabytes } from './measure.ts';
import { type Result, type Run, table } from './report.ts';

const SLOTS_PER_HOST = 4;
const OWN_WRITES = ['PATCH vms', 'PATCH vms/status', 'PUT vms', 'POST pods', 'PATCH pods', 'PUT pods'];
/** Events trail behind, and Pods get their last status: not idle yet. */
const SETTLE_MILLISECONDS = 5_000;
const IDLE_MILLISECONDS = 10_000;
const NOT_OURS = /events|leases|nodes/;
/** Fewer than this are the harness's own, not a VM's. */
const LEAST_PER_VM = 0.02;

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

async function main(): Promise<void> {
  const { values } = parseArgs({
    options: {
      vms: { type: 'string', default: '1000' },
      hosts: { type: 'string', default: '600' },
    },
  });
  const [vms, hosts] = [Number(values.vms), Number(values.hosts)];
  // The floor's VMs come beside the operator's, which nobody deletes in between.
  if (!(vms > 0 && hosts * SLOTS_PER_HOST >= 2 * vms)) {
    throw new Error(`${hosts} hosts have no room for twice ${vms} VMs`);
  }
  if (process.platform !== 'linux') throw new Error('the benchmark reads /proc: it runs on Linux only');
  await bundle();
  const cluster = await startCluster({ name: 'bench', hosts });
  try {
    const operator = await measureOperator(cluster, vms);
    const result: Result = { vms, hosts, operator, floor: await measureFloor(cluster, vms) };
    process.stdout.write(`${table(result)}\n\n${JSON.stringify(result)}\n`);
  } finally {
    await cluster.stop();
  }
}

try {
  await main();
} catch (error) {
  process.stderr.write(`${error instanceof Error ? error.message : String(error)}\n`);
  process.exitCode = 1;
}
