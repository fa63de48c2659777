/** Lists the programs of a cluster, their versions, and their builds. */
import { createHash } from 'node:crypto';
import { readdir, readFile } from 'node:fs/promises';
import { join, relative } from 'node:path';

export type ClusterTool =
  | 'etcd'
  | 'kube-apiserver'
  | 'kube-controller-manager'
  | 'kube-scheduler'
  | 'kubectl';

/** Program that simulates hosts. */
export type SimulationTool = 'kwok';

/** Programs that render and check the chart, and tell the health of objects as Helm, Flux and Argo CD do. */
export type ChartTool = 'helm' | 'health' | 'helm-unittest' | 'kubeconform';

/** Programs that a machine needs to be a node. */
export type NodeTool = 'kubelet' | 'kube-proxy';

/** Program that serves the usage of nodes and Pods to `kubectl top`. */
export type MetricsTool = 'metrics-server';

/** Programs of CI systems that run jobs. */
export type CITool = 'buildkite-agent';

export type Tool = ClusterTool | SimulationTool | ChartTool | NodeTool | MetricsTool | CITool;

/** Addresses of a file that has a program, and of the list with its SHA-256. The file is the program, or an archive (`.tar.gz`) with it. */
export interface Publication {
  readonly url: string;
  readonly checksums: string;
}

/** Group of programs that are released and built together. */
export interface ToolGroup {
  readonly name:
    | 'kubernetes'
    | 'etcd'
    | 'kwok'
    | 'helm'
    | 'helm-unittest'
    | 'kubeconform'
    | 'metrics-server'
    | 'buildkite-agent';
  readonly version: string;
  /** Go package of each program. */
  readonly packages: Readonly<Partial<Record<Tool, string>>>;
  readonly ldflags: string;
  /** Returns where the project publishes a program for Linux and this architecture. Groups without it are built. */
  readonly publication?: (tool: Tool, architecture: string) => Publication;
  /** Duration of a build without a cache. It is printed before a build, so that nobody thinks that the build hangs. */
  readonly coldBuild: string;
}

const KUBERNETES_VERSION = 'v1.36.3';
/** Flags that set the version. Without them the server reports v0.0.0, and clients refuse features that need a version. */
const VERSION_FLAGS = [
  ['gitVersion', KUBERNETES_VERSION],
  ['gitMajor', '1'],
  ['gitMinor', '36'],
]
  .map(([name, value]) => `-X k8s.io/component-base/version.${name}=${value}`)
  .join(' ');

const ETCD_VERSION = 'v3.7.3';

function publicationOfKubernetes(tool: Tool, architecture: string): Publication {
  const url = `https://dl.k8s.io/release/${KUBERNETES_VERSION}/bin/linux/${architecture}/${tool}`;
  return { url, checksums: `${url}.sha256` };
}

function publicationOfEtcd(_tool: Tool, architecture: string): Publication {
  const release = `https://github.com/etcd-io/etcd/releases/download/${ETCD_VERSION}`;
  const url = `${release}/etcd-${ETCD_VERSION}-linux-${architecture}.tar.gz`;
  return { url, checksums: `${release}/SHA256SUMS` };
}

export const TOOL_GROUPS: readonly ToolGroup[] = [
  {
    name: 'etcd',
    version: ETCD_VERSION,
    packages: { etcd: 'go.etcd.io/etcd/server/v3' },
    ldflags: '-s -w',
    publication: publicationOfEtcd,
    coldBuild: 'about 20 s on 2 cores',
  },
  {
    name: 'kubernetes',
    version: KUBERNETES_VERSION,
    packages: {
      'kube-apiserver': 'k8s.io/kubernetes/cmd/kube-apiserver',
      'kube-controller-manager': 'k8s.io/kubernetes/cmd/kube-controller-manager',
      'kube-scheduler': 'k8s.io/kubernetes/cmd/kube-scheduler',
      kubectl: 'k8s.io/kubernetes/cmd/kubectl',
    },
    ldflags: `-s -w ${VERSION_FLAGS}`,
    publication: publicationOfKubernetes,
    coldBuild: 'about 6 min on 2 cores',
  },
];

export const SIMULATION_TOOL_GROUPS: readonly ToolGroup[] = [
  {
    name: 'kwok',
    version: 'v0.8.0',
    packages: { kwok: 'sigs.k8s.io/kwok/cmd/kwok' },
    ldflags: '-s -w',
    coldBuild: 'about 20 s on 2 cores after the control plane',
  },
];

export const CHART_TOOL_GROUPS: readonly ToolGroup[] = [
  {
    name: 'helm',
    version: 'v4.3.1',
    // `health` uses the library with which this Helm waits for objects.
    packages: { helm: 'helm.sh/helm/v4/cmd/helm', health: './health' },
    ldflags: '-s -w',
    coldBuild: 'about 40 s on 2 cores after the control plane',
  },
  {
    name: 'helm-unittest',
    version: 'v1.1.2',
    packages: { 'helm-unittest': 'github.com/helm-unittest/helm-unittest/cmd/helm-unittest' },
    ldflags: '-s -w',
    coldBuild: 'about 10 s on 2 cores after helm',
  },
  {
    name: 'kubeconform',
    version: 'v0.8.0',
    packages: { kubeconform: 'github.com/yannh/kubeconform/cmd/kubeconform' },
    ldflags: '-s -w',
    coldBuild: 'about 10 s on 2 cores',
  },
];

export const NODE_TOOL_GROUPS: readonly ToolGroup[] = [
  {
    name: 'kubernetes',
    version: KUBERNETES_VERSION,
    packages: { kubelet: 'k8s.io/kubernetes/cmd/kubelet', 'kube-proxy': 'k8s.io/kubernetes/cmd/kube-proxy' },
    ldflags: `-s -w ${VERSION_FLAGS}`,
    publication: publicationOfKubernetes,
    coldBuild: 'about 40 s on 2 cores after the control plane',
  },
];

export const METRICS_TOOL_GROUPS: readonly ToolGroup[] = [
  {
    name: 'metrics-server',
    version: 'v0.9.0',
    packages: { 'metrics-server': 'sigs.k8s.io/metrics-server/cmd/metrics-server' },
    ldflags: '-s -w',
    coldBuild: 'about 30 s on 2 cores after the control plane',
  },
];

export const CI_TOOL_GROUPS: readonly ToolGroup[] = [
  {
    name: 'buildkite-agent',
    // Later versions need a module that the public proxy of Go refuses.
    version: 'v3.78.0',
    packages: { 'buildkite-agent': 'github.com/buildkite/agent/v3' },
    ldflags: '-s -w',
    coldBuild: 'about 60 s on 2 cores',
  },
];

/** Returns the folder of the Go module that pins the sources of a group. */
export function moduleDirectory(group: ToolGroup): string {
  return join(import.meta.dirname, group.name);
}

/** Returns the paths of the files of a group's Go module, relative to its folder: `go.mod`, `go.sum`, and programs of its own. */
async function sourceFiles(group: ToolGroup): Promise<string[]> {
  const entries = await readdir(moduleDirectory(group), { recursive: true, withFileTypes: true });
  const files = entries.filter((entry) => entry.isFile());
  return files
    .map(({ parentPath, name }) => relative(moduleDirectory(group), join(parentPath, name)))
    .toSorted();
}

/** Returns the name of a group's cache folder: its version, and a hash of everything that determines the content. */
export async function cacheKey(group: ToolGroup): Promise<string> {
  const hash = createHash('sha256');
  for (const file of await sourceFiles(group)) {
    hash.update(await readFile(join(moduleDirectory(group), file)));
  }
  hash.update(group.ldflags).update(JSON.stringify(group.packages));
  return `${group.name}-${group.version}-${process.platform}-${process.arch}-${hash.digest('hex').slice(0, 12)}`;
}
