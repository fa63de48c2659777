/** Versions of all objects of a cluster, to see whether somebody changed anything. */
import type { Cluster } from '../../../hack/cluster/index.ts';
import { untilStill } from '../../support/stillness.ts';

/** Objects that the control plane writes by itself. Of Nodes, the fields without heartbeats are compared. */
const RESTLESS = /^(leases|events|nodes|componentstatuses)(\.|$)/;
const VERSION = '{.kind} {.metadata.namespace}/{.metadata.name} {.metadata.uid} {.metadata.resourceVersion}';
const NODE = 'Node {.metadata.name} {.metadata.labels} {.metadata.annotations} {.spec}';
/** Time limit. A reading lists some sixty resources, which takes seconds on a busy machine. */
const STILL = { deadlineMilliseconds: 180_000 };

/** Returns a line for each object, when two readings are equal: the control plane still completes new objects. */
export async function snapshotOf(cluster: Cluster): Promise<string[]> {
  return await untilStill(() => readAll(cluster), STILL);
}

async function readAll(cluster: Cluster): Promise<string[]> {
  const { stdout } = await cluster.kubectl(['api-resources', '--verbs=list', '--output=name']);
  const resources = stdout.split('\n').filter((name) => name !== '' && !RESTLESS.test(name));
  const lines = await Promise.all([
    read(cluster, resources.join(','), VERSION),
    read(cluster, 'nodes', NODE),
  ]);
  return lines.flat();
}

async function read(cluster: Cluster, resources: string, line: string): Promise<string[]> {
  const output = `--output=jsonpath={range .items[*]}${line}{"\\n"}{end}`;
  const { stdout } = await cluster.kubectl(['get', resources, '--all-namespaces', output]);
  return stdout.split('\n').filter((text) => text !== '');
}
