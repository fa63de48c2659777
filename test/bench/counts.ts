/**
 * Counts what one VM costs the cluster on simulated hosts, from its creation until it runs, and its deletion. Counts do not depend on the load
 * of the machine as times do.
 */
import { VMS } from '../../api/v1alpha1/resources.ts';
import { bundle } from '../../hack/bundle.ts';
import { type Cluster, startCluster } from '../../hack/cluster/index.ts';
import { waitFor } from '../../hack/wait.ts';
import { PODS } from '../../kube/core.ts';
import { type AuditedWrite, auditedWrites, isSignOfLife, untilSettled } from '../support/apiwrites.ts';
import { hostsAreReady, IMAGE_OPERATOR } from './contestants.ts';
import { runLoad } from './load.ts';
import { format } from './report.ts';

const VMS_COUNTED = 40;
const HOSTS = 20;
const NAMESPACE = 'platform-bench';
/** Smaller counts for each VM belong to the cluster and not to VMs. */
const LEAST_PER_VM = 0.1;
const LEAST_BYTES_PER_VM = 50;
/** Leases are renewed, whatever the VMs do. */
const RENEWED = 'leases';
/** Metrics of the API server that count what was done for writes and watches, and the label that names it. */
const METRICS = {
  watchEvents: ['apiserver_watch_events_total', 'resource'],
  watchBytes: ['apiserver_watch_events_sizes_sum', 'resource'],
  matchConditions: ['apiserver_admission_match_condition_evaluation_seconds_count', 'name'],
} as const;

type MetricName = keyof typeof METRICS;
type Counted = Readonly<Record<string, number>>;

/** Counts for one VM. */
interface Step extends Readonly<Record<MetricName, Counted>> {
  /** Writes by writer, verb and resource. */
  readonly writes: Counted;
  /** Bytes of the bodies of these writes. */
  readonly writtenBytes: Counted;
}

export interface Counts {
  readonly vms: number;
  readonly deploy: Step;
  readonly delete: Step;
  /** Bytes of the first VM and its Pod as JSON, in all and by part. */
  readonly bytes: Counted;
}

export async function measureCounts(): Promise<Counts> {
  await bundle();
  const cluster = await startCluster({ name: 'bench-counts', hosts: HOSTS, audit: true });
  try {
    await cluster.createNamespace(NAMESPACE);
    const operator = await cluster.startOperator(IMAGE_OPERATOR);
    await hostsAreReady(cluster);
    const bytes: Record<string, number> = {};
    const deploy = await countStep(cluster, async () => {
      await runLoad(cluster.client(), NAMESPACE, VMS_COUNTED);
    });
    for (const kind of ['VM', 'Pod'] as const) {
      Object.assign(bytes, await bytesOf(cluster, kind));
    }
    const deleted = await countStep(cluster, () => deleteAll(cluster));
    await operator.stop();
    return { vms: VMS_COUNTED, deploy, delete: deleted, bytes };
  } finally {
    await cluster.stop();
  }
}

async function deleteAll(cluster: Cluster): Promise<void> {
  const client = cluster.client();
  const { items } = await client.list(VMS, { namespace: NAMESPACE });
  await Promise.all(
    items.map(({ metadata: { name } }) => client.delete(VMS, { namespace: NAMESPACE, name })),
  );
  await waitFor('the Pods to end', async () => {
    const pods = await client.list(PODS, { namespace: NAMESPACE });
    return pods.items.length === 0;
  });
}

/** Does the work, waits until nobody writes because of it, and returns the counts for each VM. */
async function countStep(cluster: Cluster, work: () => Promise<void>): Promise<Step> {
  await untilSettled(cluster);
  const skipped = auditedWrites(cluster).length;
  const before = await metricsOf(cluster);
  await work();
  await untilSettled(cluster);
  const after = await metricsOf(cluster);
  const writes = auditedWrites(cluster)
    .slice(skipped)
    .filter((write) => !isSignOfLife(write));
  const metrics = Object.keys(METRICS).map((name) => {
    const key = name as MetricName;
    const changes = [...after[key]].map(([of, count]) => [of, count - (before[key].get(of) ?? 0)] as const);
    const kept = changes.filter(([of]) => of !== RENEWED);
    return [key, perVM(new Map(kept), key === 'watchBytes' ? LEAST_BYTES_PER_VM : LEAST_PER_VM)] as const;
  });
  return {
    writes: perVM(sumOf(writes, () => 1)),
    writtenBytes: perVM(sumOf(writes, ({ body }) => body.length)),
    ...(Object.fromEntries(metrics) as Record<MetricName, Counted>),
  };
}

function sumOf(writes: readonly AuditedWrite[], value: (write: AuditedWrite) => number): Map<string, number> {
  const sums = new Map<string, number>();
  for (const write of writes) {
    const key = `${write.writer} ${write.what}`;
    sums.set(key, (sums.get(key) ?? 0) + value(write));
  }
  return sums;
}

function perVM(counts: ReadonlyMap<string, number>, least = LEAST_PER_VM): Counted {
  const shares = [...counts].map(([key, count]) => [key, count / VMS_COUNTED] as const);
  return Object.fromEntries(shares.filter(([, share]) => share >= least));
}

async function metricsOf(
  cluster: Cluster,
): Promise<Readonly<Record<MetricName, ReadonlyMap<string, number>>>> {
  const { body } = await cluster.client().raw('GET', '/metrics');
  const lines = String(body).split('\n');
  const read = ([metric, label]: readonly [string, string]): Map<string, number> => {
    const counts = new Map<string, number>();
    for (const line of lines.filter((text) => text.startsWith(`${metric}{`))) {
      const key = new RegExp(`[{,]${label}="([^"]*)"`).exec(line)?.[1] ?? '';
      counts.set(key, (counts.get(key) ?? 0) + Number(line.slice(line.lastIndexOf(' '))));
    }
    return counts;
  };
  const entries = Object.entries(METRICS).map(([name, metric]) => [name, read(metric)]);
  return Object.fromEntries(entries) as Record<MetricName, Map<string, number>>;
}

/** Uses kubectl, because the client removes managedFields. */
async function bytesOf(cluster: Cluster, kind: 'VM' | 'Pod'): Promise<Counted> {
  const path = { VM: 'apis/berth.dev/v1alpha1', Pod: 'api/v1' }[kind];
  const url = `/${path}/namespaces/${NAMESPACE}/${kind.toLowerCase()}s/vm-0`;
  const { stdout } = await cluster.kubectl(['get', '--raw', url]);
  const { metadata, spec, status } = JSON.parse(stdout) as {
    metadata: { managedFields: object[]; annotations?: object };
    spec: object;
    status: { conditions: object[] };
  };
  const { managedFields, annotations = {} } = metadata;
  const parts = { managedFields, annotations, spec, status, conditions: status.conditions };
  const sizes = Object.entries(parts).map(([part, value]) => [
    `${kind} ${part}`,
    JSON.stringify(value).length,
  ]);
  return {
    [kind]: stdout.length,
    ...(Object.fromEntries(sizes) as Counted),
    [`${kind} owners of fields`]: managedFields.length,
    [`${kind} number of conditions`]: status.conditions.length,
  };
}

export function countsTable(counts: Counts): string {
  const { vms, deploy, bytes } = counts;
  const section = (title: string, values: (step: Step) => Counted, digits: number): string[][] => {
    const keys = new Set([...Object.keys(values(deploy)), ...Object.keys(values(counts.delete))]);
    return [...keys]
      .toSorted()
      .map((key) => [
        `${title}: ${key}`,
        ...[deploy, counts.delete].map((step) => (values(step)[key] ?? 0).toFixed(digits)),
      ]);
  };
  return format([
    [`for each of ${vms} VMs on ${HOSTS} simulated hosts`, 'deploy', 'delete'],
    ...section('writes', ({ writes }) => writes, 2),
    ...section('bytes of writes', ({ writtenBytes }) => writtenBytes, 0),
    ...section('watch events', ({ watchEvents }) => watchEvents, 1),
    ...section('bytes of watch events', ({ watchBytes }) => watchBytes, 0),
    ...section('match conditions', ({ matchConditions }) => matchConditions, 1),
    ...Object.entries(bytes).map(([part, size]) => [`bytes at the end: ${part}`, String(size)]),
  ]);
}
