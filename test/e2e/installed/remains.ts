/** What of Berth is in a cluster and on its nodes. */
import { GROUP } from '../../../api/v1alpha1/names.ts';
import type { Installed } from '../../worlds/installed.ts';

export interface Remains {
  /** As `kind/namespace/name`. */
  objects: string[];
  /** Of each node. */
  hosts: Traces[];
}

export interface Traces {
  links: string[];
  tables: string[];
  processes: string[];
  /** Control groups of machines. */
  groups: string[];
  /** What the data directory has of machines and Pods; images stay on purpose. */
  data: string[];
}

export const NO_TRACES: Traces = { links: [], tables: [], processes: [], groups: [], data: [] };

interface Found {
  apiVersion: string;
  kind: string;
  metadata: { name: string; namespace?: string };
}

/** Anything that says in its name or place that it is Berth's, and the token that hosts join with. */
const OURS = /berth|^namespace\/platform-|^secret\/kube-system\/bootstrap-token-/;
/**
 * What Kubernetes ends by itself (Events, requests for certificates), what it makes of other objects, and the namespace
 * that helm was told to make, with what Kubernetes puts into each.
 */
const KUBERNETES_OWN =
  /^(event|certificatesigningrequest|apiservice)\/|^namespace\/berth-system$|\/kube-root-ca\.crt$|^serviceaccount\/berth-system\/default$/;
/** The harness's, which has the project's folder in its arguments. */
const NODE_PROGRAMS = /node\.sh|containerd|kubelet|kube-proxy|prometheus/;

/** The chart's `agent.hostPath`. */
const DATA = '/var/lib/berth';
const MACHINES = ['-path', `${DATA}/machines/*`, '-o', '-path', `${DATA}/pods/*`];

export async function remains(berth: Installed): Promise<Remains> {
  const { stdout } = await berth.cluster.kubectl(['api-resources', '--verbs=list', '--output=name']);
  const kinds = stdout.trim().split('\n').join(',');
  const { items } = JSON.parse(
    (await berth.cluster.kubectl(['get', kinds, '--all-namespaces', '--output=json'])).stdout,
  ) as { items: Found[] };
  const objects = items
    .map(({ apiVersion, kind, metadata: { namespace, name } }) => ({
      isOurs: apiVersion.startsWith(`${GROUP}/`),
      name: [kind.toLowerCase(), ...(namespace === undefined ? [] : [namespace]), name].join('/'),
    }))
    .filter(({ isOurs, name }) => isOurs || (OURS.test(name) && !KUBERNETES_OWN.test(name)))
    .map(({ name }) => name);
  return { objects: [...new Set(objects)].toSorted(), hosts: await Promise.all(berth.nodes.map(traces)) };
}

async function traces(node: Installed['nodes'][number]): Promise<Traces> {
  const ours = (text: string): string[] =>
    text.split('\n').filter((line) => line.includes('berth') && !NODE_PROGRAMS.test(line));
  // By itself: it would show the others, which have the name in their arguments.
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
