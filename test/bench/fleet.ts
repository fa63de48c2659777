/** Measures VMs on simulated hosts. Each contestant runs once in each round, with a new cluster. */
import { setTimeout as sleep } from 'node:timers/promises';
import { bundle } from '../../hack/bundle.ts';
import { type Cluster, startCluster } from '../../hack/cluster/index.ts';
import { listProcesses } from '../../hack/cluster/processes.ts';
import { waitFor } from '../../hack/wait.ts';
import { type Contestant, contestants } from './contestants.ts';
import { withFolder } from './folder.ts';
import { type Times, runLoad } from './load.ts';
import { countWrites, cpuSeconds, difference, peakMegabytes } from './measure.ts';

const SLOTS_PER_HOST = 4;
const NAMESPACE = 'platform-bench';
const OWN_WRITES = ['PATCH vms', 'PATCH vms/status', 'PUT vms', 'POST pods', 'PATCH pods', 'PUT pods'];
/** Time without writes after which the work is over. Events and the last statuses of Pods come late. */
const QUIET_MILLISECONDS = 5_000;
const QUIET_DEADLINE_MILLISECONDS = 300_000;
const IDLE_MILLISECONDS = 10_000;
/** Periodic writes of simulated hosts and leaders, and of the operator's times of VMs, which it keeps at most once in a minute. */
const HEARTBEATS = new Set(['PATCH nodes/status', 'PATCH leases', 'PUT leases', 'PATCH configmaps']);
/** Smaller numbers of writes belong to the test harness and not to VMs. */
const LEAST_PER_VM = 0.02;

export interface Run extends Times {
  /** CPU time of the process, from the first creation until no program wrote any more. */
  cpuSeconds: number;
  /** CPU time per VM in milliseconds, of each program of the cluster, in the same time. It is known only for clusters of processes. */
  cpuOfPrograms: Record<string, number>;
  /** Bytes of the first VM and its Pod at the end, as JSON, and of the part that says who wrote which field. */
  bytes: Record<string, number>;
  /** Largest memory of the process, in MB of 1024². */
  peakMegabytes: number;
  /** Writes of all programs per VM, by verb and resource, until no program wrote any more. The API server counts them. */
  writesPerVM: Record<string, number>;
  /** Writes of the contestant to VMs and Pods. */
  ownWritesPerVM: number;
  /** Writes of all programs except heartbeats, in the 10 s after that. */
  idleWrites: Record<string, number>;
}

export interface Fleet {
  vms: number;
  hosts: number;
  /** Runs by contestant, one for each round. */
  runs: Partial<Record<Contestant['name'], Run[]>>;
}

export interface FleetOptions {
  vms: number;
  hosts: number;
  rounds: number;
  /** Folder for built programs. */
  folder: string;
}

/** @throws Error when the hosts have no room for the VMs */
export async function measureFleet({ vms, hosts, rounds, folder }: FleetOptions): Promise<Fleet> {
  if (!(vms > 0 && hosts * SLOTS_PER_HOST >= vms)) {
    throw new Error(`${hosts} hosts have no room for ${vms} VMs`);
  }
  await bundle();
  return await withFolder(folder, async (built) => {
    const all = await contestants(built);
    const runs: Fleet['runs'] = {};
    for (let round = 0; round < rounds; round += 1) {
      // Each round begins with another contestant. The first round does not, because the floor repeats writes of the operator.
      for (const contestant of [...all.slice(round % all.length), ...all.slice(0, round % all.length)]) {
        (runs[contestant.name] ??= []).push(await measureOne(contestant, vms, hosts));
      }
    }
    return { vms, hosts, runs };
  });
}

async function measureOne(contestant: Contestant, vms: number, hosts: number): Promise<Run> {
  const cluster = await startCluster({ name: 'bench', hosts });
  try {
    if (!contestant.policies) {
      await liftPolicies(cluster);
    }
    await cluster.createNamespace(NAMESPACE);
    const { pid, stop } = await contestant.start(cluster, NAMESPACE);
    try {
      return await measure(cluster, pid, vms);
    } finally {
      await stop();
    }
  } finally {
    await cluster.stop();
  }
}

/** Gives all rights to the operator's identity, because the anchor needs other rights than the operator. */
async function liftPolicies(cluster: Cluster): Promise<void> {
  await cluster.kubectl(['delete', 'validatingadmissionpolicybindings', '--all']);
  const account = '--serviceaccount=berth-system:berth-operator';
  await cluster.kubectl(['create', 'clusterrolebinding', 'bench', '--clusterrole=cluster-admin', account]);
}

/** Creates the load for one contestant, and measures its process. */
async function measure(cluster: Cluster, pid: number, vms: number): Promise<Run> {
  const client = cluster.client();
  const before = await countWrites(client);
  const cpu = cpuSeconds(pid);
  const programs = await cpuOfPrograms(cluster);
  const times = await runLoad(client, NAMESPACE, vms);
  const quiet = await untilQuiet(cluster);
  const used = cpuSeconds(pid) - cpu;
  const cpuPerVM = Object.entries(difference(programs, await cpuOfPrograms(cluster))).map(
    ([name, seconds]) => [name, (seconds * 1000) / vms] as const,
  );
  await sleep(IDLE_MILLISECONDS);
  const idle = counted(difference(quiet, await countWrites(client)));
  const perVM = Object.entries(difference(before, quiet)).map(([key, count]) => [key, count / vms] as const);
  const own = perVM.filter(([key]) => OWN_WRITES.includes(key));
  return {
    ...times,
    cpuSeconds: used,
    cpuOfPrograms: Object.fromEntries(cpuPerVM),
    bytes: await countBytes(cluster),
    peakMegabytes: peakMegabytes(pid),
    writesPerVM: Object.fromEntries(perVM.filter(([, count]) => count > LEAST_PER_VM)),
    ownWritesPerVM: own.reduce((total, [, count]) => total + count, 0),
    idleWrites: idle,
  };
}

async function cpuOfPrograms(cluster: Cluster): Promise<ReadonlyMap<string, number>> {
  const programs = await listProcesses(cluster.directory);
  return new Map(programs.map(({ name, pid }) => [name, cpuSeconds(pid)]));
}

/** Uses kubectl, because the client removes managedFields. */
async function countBytes(cluster: Cluster): Promise<Record<string, number>> {
  const paths = { VM: 'apis/berth.dev/v1alpha1', Pod: 'api/v1' };
  const counts = Object.entries(paths).map(async ([kind, path]) => {
    const url = `/${path}/namespaces/${NAMESPACE}/${kind.toLowerCase()}s/vm-0`;
    const { stdout } = await cluster.kubectl(['get', '--raw', url]);
    const { metadata } = JSON.parse(stdout) as { metadata: { managedFields?: object[] } };
    return [
      [kind, stdout.length],
      [`${kind}'s managedFields`, JSON.stringify(metadata.managedFields ?? []).length],
    ] as const;
  });
  return Object.fromEntries((await Promise.all(counts)).flat());
}

/** Waits for a time in which all programs write only heartbeats, and returns the counts. */
async function untilQuiet(cluster: Cluster): Promise<ReadonlyMap<string, number>> {
  let last = await countWrites(cluster.client());
  return await waitFor(
    'all writes to end',
    async () => {
      const before = last;
      last = await countWrites(cluster.client());
      return Object.keys(counted(difference(before, last))).length === 0 && last;
    },
    { deadlineMilliseconds: QUIET_DEADLINE_MILLISECONDS, intervalMilliseconds: QUIET_MILLISECONDS },
  );
}

function counted(writes: Record<string, number>): Record<string, number> {
  return Object.fromEntries(Object.entries(writes).filter(([key]) => !HEARTBEATS.has(key)));
}
