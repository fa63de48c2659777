/** Finds everything of Berth in a cluster and on its nodes. */
import { isDeepStrictEqual } from 'node:util';
import { GROUP } from '../../../api/v1alpha1/names.ts';
import { waitFor } from '../../../hack/wait.ts';
import { type Installed, SYSTEM } from '../../worlds/installed.ts';

/** Helm and kubectl do not wait for Pods. Those of the HTTP API end some seconds after their Deployment, when they have no more clients. */
const ENDING = { deadlineMilliseconds: 90_000, intervalMilliseconds: 500 };

export interface Remains {
  /** Objects of the cluster, as `kind/namespace/name`. */
  objects: string[];
  /** Traces on each node. */
  hosts: Traces[];
}

export interface Traces {
  links: string[];
  tables: string[];
  processes: string[];
  /** Control groups of machines. */
  groups: string[];
  /** Entries of machines and Pods in the data directory. Images stay on purpose. */
  data: string[];
}

export const NO_TRACES: Traces = { links: [], tables: [], processes: [], groups: [], data: [] };

interface Found {
  apiVersion: string;
  kind: string;
  metadata: { name: string; namespace?: string };
}

/** Pattern of names and places of Berth, and of the token for joining. */
const OURS = /berth|^namespace\/platform-|^secret\/kube-system\/bootstrap-token-/;
/**
 * Objects that Kubernetes removes by itself (Events, certificate requests) or makes of other objects. Also the namespace that helm created,
 * with the objects that Kubernetes puts into each namespace.
 */
const KUBERNETES_OWN =
  /^(event|certificatesigningrequest|apiservice)\/|^namespace\/berth-system$|\/kube-root-ca\.crt$|^serviceaccount\/berth-system\/default$/;
/** Programs of the test harness, which have the project's folder in their arguments. */
const NODE_PROGRAMS = /node\.sh|containerd|kubelet|kube-proxy|prometheus/;

/** The value `agent.hostPath` of the chart. */
const DATA = '/var/lib/berth';
const MACHINES = ['-path', `${DATA}/machines/*`, '-o', '-path', `${DATA}/pods/*`];

/**
 * Returns what is left when the Pods have ended. Kubernetes deletes some objects a moment after their owner, for example the Lease of a
 * Node. Therefore the function waits some time until only the `wanted` objects are left.
 */
export async function remains(berth: Installed, wanted: readonly string[]): Promise<Remains> {
  await waitFor('the Pods of Berth to end', async () => (await podNames(berth)) === '', ENDING);
  let objects: string[] = [];
  const isDone = async (): Promise<boolean> => {
    objects = await objectsOf(berth);
    return isDeepStrictEqual(objects, wanted);
  };
  // If more is left, the test shows it.
  await waitFor('the other objects to be deleted', isDone, ENDING).catch(() => undefined);
  return { objects, hosts: await Promise.all(berth.nodes.map(traces)) };
}

async function objectsOf(berth: Installed): Promise<string[]> {
  const { stdout } = await berth.cluster.kubectl(['api-resources', '--verbs=list', '--output=name']);
  const kinds = stdout.trim().split('\n').join(',');
  const { items } = JSON.parse(
    (await berth.cluster.kubectl(['get', kinds, '--all-namespaces', '--output=json'])).stdout,
  ) as { items: Found[] };
  const names = items
    .map(({ apiVersion, kind, metadata: { namespace, name } }) => ({
      isOurs: apiVersion.startsWith(`${GROUP}/`),
      name: [kind.toLowerCase(), ...(namespace === undefined ? [] : [namespace]), name].join('/'),
    }))
    .filter(({ isOurs, name }) => isOurs || (OURS.test(name) && !KUBERNETES_OWN.test(name)))
    .map(({ name }) => name);
  return [...new Set(names)].toSorted();
}

async function podNames({ cluster }: Installed): Promise<string> {
  return (await cluster.kubectl(['get', 'pods', '--namespace', SYSTEM, '--output=name'])).stdout;
}

async function traces(node: Installed['nodes'][number]): Promise<Traces> {
  const ours = (text: string): string[] =>
    text.split('\n').filter((line) => line.includes('berth') && !NODE_PROGRAMS.test(line));
  // This command runs alone, because it would list the other commands, which have the name in their arguments.
  const processes = await node.run('ps', '-e', '-o', 'args=');
  const [links, tables, groups, data] = await Promise.all([
    node.run('ip', '-brief', 'link'),
    node.run('nft', 'list', 'tables'),
    node.run('find', '/sys/fs/cgroup', '-path', '*/berth/*', '-type', 'd'),
    node.run('find', DATA, '-mindepth', '2', '-maxdepth', '2', '(', ...MACHINES, ')'),
  ]);
  return {
    links: ours(links),
    tables: ours(tables),
    processes: ours(processes),
    groups: ours(groups),
    data: ours(data),
  };
}
