/**
 * Starts and stops Kubernetes clusters for the demo, the tests and the benchmark, on any machine, with Berth's kinds, policies, namespaces and
 * rights.
 */
import { existsSync } from 'node:fs';
import { mkdir, readdir, rm, rmdir } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { codeOf } from '../../base/errors.ts';
import { Cluster, type ClusterOptions } from './cluster.ts';
import { removeGroups, removeNetworks, unmountBelow } from './leftovers.ts';
import { startControlPlane } from './controlplane.ts';
import { kubectlFor, type Kubectl } from './kubectl.ts';
import { bringUpNodes, type NodeCluster, type NodeClusterOptions } from './nodes/cluster.ts';
import { removeNamespaces } from './nodes/network.ts';
import {
  isAlive,
  killAllSync,
  listProcesses,
  type ProcessRecord,
  startTimeOf,
  stopProcess,
} from './processes.ts';
import { chooseProvider, copyKubeconfig, type Provider } from './providers/provider.ts';
import {
  CLUSTERS,
  type ClusterState,
  directoryOf,
  readOwner,
  readState,
  writeOwner,
  writeState,
} from './state.ts';
import { resolveTools, type Tools } from './toolchain/toolchain.ts';
import { keepUsedRights } from './usedrights.ts';
import { execFile } from 'node:child_process';
import { promisify } from 'node:util';

export type { NodeCluster } from './nodes/cluster.ts';
export type { ClusterNode } from './nodes/node.ts';
export type { OperatorProcess } from './program.ts';
export type { Cluster } from './cluster.ts';
export type { ClusterOptions } from './cluster.ts';

const ENDING_SIGNALS = [
  ['SIGHUP', 129],
  ['SIGINT', 130],
  ['SIGTERM', 143],
] as const;

/** Starts a cluster with the CRDs, policies and rights of Berth. An existing cluster of the same name is stopped first. */
export async function startCluster(options: ClusterOptions): Promise<Cluster> {
  return await begin(options, (directory) => bringUp(options, directory));
}

/** Starts a cluster with its own nodes, in which nothing is installed. An existing cluster of the same name is stopped first. */
export async function startNodeCluster(options: NodeClusterOptions): Promise<NodeCluster> {
  return await begin(options, (directory) => bringUpNodes(options, directory, end));
}

/**
 * Runs `bringUp` in the folder of that name, after a previous cluster there was stopped. Processes that `bringUp` records in the folder end
 * with this process at the latest, unless the cluster is lasting.
 */
export async function begin<C>(
  options: Pick<ClusterOptions, 'name' | 'stateDirectory' | 'lasting'>,
  bringUp: (directory: string) => Promise<C>,
): Promise<C> {
  const directory = directoryOf(options.name, options.stateDirectory);
  await stopCluster(options.name, options.stateDirectory);
  await sweep(CLUSTERS);
  await mkdir(directory, { recursive: true, mode: 0o700 });
  if (options.lasting !== true) {
    writeOwner(directory, { pid: process.pid, startTime: (await startTimeOf(process.pid)) ?? '' });
    killAtExit(directory);
  }
  try {
    return await bringUp(directory);
  } catch (error) {
    // The folder stays, because its logs contain the reason. The next start or stop of this name removes it.
    await stopProcesses(directory);
    throw error;
  }
}

/** Opens a cluster that another process started. */
export async function connectCluster(name: string, stateDirectory?: string): Promise<Cluster> {
  const directory = directoryOf(name, stateDirectory);
  const state = readState(directory);
  if (state === undefined) {
    throw new Error(`no cluster "${name}" in ${directory}`);
  }
  return await Cluster.open(directory, state, end);
}

/** Stops a cluster, whichever process started it, and removes its state. A missing cluster is no error. */
export async function stopCluster(name: string, stateDirectory?: string): Promise<void> {
  await remove(directoryOf(name, stateDirectory));
}

async function bringUp(options: ClusterOptions, directory: string): Promise<Cluster> {
  const provider = chooseProvider();
  const tools = await resolveTools();
  const state: ClusterState = { name: options.name, provider, tools, lasting: options.lasting ?? false };
  if (provider === 'kubeconfig') {
    await copyKubeconfig(tools.kubectl, directory);
  } else {
    await startControlPlane({ ...options, directory, tools, image: await imageFor(provider, tools) });
  }
  writeState(directory, state);
  const cluster = await Cluster.open(directory, state, end);
  await install(kubectlFor(tools.kubectl, cluster.kubeconfig), {
    directory,
    displayDpiMaximum: options.displayDpiMaximum ?? 240,
  });
  await cluster.writeComponentKubeconfigs();
  await cluster.addHosts(options.hosts ?? 0);
  if (options.operator === true) {
    await cluster.startOperator({
      config: options.operatorConfig ?? {},
      bundle: options.bundle ?? false,
    });
  }
  return cluster;
}

async function imageFor(provider: Provider, tools: Tools): Promise<string | undefined> {
  if (provider !== 'docker') {
    return undefined;
  }
  const { controlPlaneImage } = await import('./providers/docker.ts');
  return await controlPlaneImage(tools);
}

async function end(cluster: Cluster): Promise<void> {
  await remove(cluster.directory);
}

async function remove(directory: string): Promise<void> {
  const state = readState(directory);
  await stopProcesses(directory);
  await keepUsedRights(directory);
  await removeNetworks(directory);
  for (const namespace of state?.namespaces ?? []) {
    await removeGroups(namespace);
  }
  await removeNamespaces(state?.namespaces ?? []);
  if (state?.provider === 'kubeconfig') {
    await uninstall(kubectlFor(state.tools.kubectl, join(directory, 'kubeconfig')));
  }
  await unmountBelow(directory);
  await rm(directory, { recursive: true, force: true });
  const parent = dirname(directory);
  // The folder of clusters is removed only if it is the project's own folder and empty.
  if (parent === CLUSTERS) {
    await removeIfEmpty(parent);
  }
}

async function removeIfEmpty(directory: string): Promise<void> {
  await rmdir(directory).catch((error: unknown) => {
    if (!['ENOTEMPTY', 'EEXIST', 'ENOENT'].includes(codeOf(error) ?? '')) {
      throw error;
    }
  });
}

/**
 * Stops operators first, because they need the API server for a clean end. Other processes are killed, because the cluster is temporary.
 */
async function stopProcesses(directory: string): Promise<void> {
  const records = await listProcesses(directory);
  const isOperator = (record: ProcessRecord): boolean => record.arguments.includes('--config');
  await Promise.all(records.filter(isOperator).map((record) => stopProcess(directory, record)));
  const rest = records.filter((record) => !isOperator(record));
  await Promise.all(rest.map((record) => stopProcess(directory, record, 'SIGKILL')));
}

const killedAtExit = new Set<string>();

/** Ensures that this process kills its own clusters when it ends, whatever the reason. */
function killAtExit(directory: string): void {
  if (killedAtExit.size === 0) {
    process.once('exit', () => {
      for (const path of killedAtExit) {
        killAllSync(path);
      }
    });
    for (const [signal, code] of ENDING_SIGNALS) {
      if (process.listenerCount(signal) === 0) {
        process.once(signal, () => process.exit(code));
      }
    }
  }
  killedAtExit.add(directory);
}

/** Removes clusters whose owner no longer runs. After a SIGKILL, a test run could not remove them itself. */
async function sweep(folder: string): Promise<void> {
  if (!existsSync(folder)) {
    return;
  }
  for (const name of await readdir(folder)) {
    const owner = readOwner(join(folder, name));
    if (owner !== undefined && !(await isAlive(owner))) {
      await remove(join(folder, name));
    }
  }
}

const ROOT = join(import.meta.dirname, '..', '..');
const FILES = join(ROOT, 'charts', 'berth', 'files');
const MUTATING_POLICIES = join(FILES, 'mutatingpolicies');
/** Time limit until the API server serves new kinds. It takes a second, and several on a busy machine. */
const ESTABLISHED_SECONDS = 60;
/** Highest DPI that the committed CRDs allow. CRDs for the other maximum are generated. */
const COMMITTED_DPI_MAXIMUM = 240;

interface InstallOptions {
  directory: string;
  displayDpiMaximum: 240 | 320;
}

/** Applies all objects and resolves when the kinds can be used. It can be repeated. */
async function install(kubectl: Kubectl, options: InstallOptions): Promise<void> {
  const crds = await crdDirectory(options);
  const files = manifests(crds);
  await kubectl(['apply', '--server-side', '--force-conflicts', ...files]);
  if (await servesMutatingPolicies(kubectl)) {
    await kubectl(['apply', '--server-side', '--force-conflicts', `--filename=${MUTATING_POLICIES}`]);
  }
  await kubectl(['wait', '--for=condition=Established', `--timeout=${ESTABLISHED_SECONDS}s`, '-f', crds]);
}

/** Removes all objects again, and the simulated hosts. */
async function uninstall(kubectl: Kubectl): Promise<void> {
  await kubectl(['delete', 'nodes', '--selector=berth.dev/simulated=true', '--ignore-not-found']);
  if (await servesMutatingPolicies(kubectl)) {
    await kubectl(['delete', '--ignore-not-found', `--filename=${MUTATING_POLICIES}`]);
  }
  await kubectl(['delete', '--ignore-not-found', ...manifests(join(ROOT, 'crds')).toReversed()]);
}

/** Returns whether the API server has the version of MutatingAdmissionPolicies that Kubernetes has from 1.36 on. */
async function servesMutatingPolicies(kubectl: Kubectl): Promise<boolean> {
  const { stdout } = await kubectl(['get', '--raw', '/apis/admissionregistration.k8s.io/v1']);
  return stdout.includes('"mutatingadmissionpolicies"');
}

/** Returns arguments for kubectl. Objects come before the objects that need them. */
function manifests(crds: string): string[] {
  const rbac = join(FILES, 'rbac');
  const harness = join(import.meta.dirname, 'harness.yaml');
  return [join(rbac, 'namespaces.yaml'), rbac, crds, join(FILES, 'policies'), harness].map(
    (path) => `--filename=${path}`,
  );
}

async function crdDirectory(options: InstallOptions): Promise<string> {
  if (options.displayDpiMaximum === COMMITTED_DPI_MAXIMUM) {
    return join(ROOT, 'crds');
  }
  const output = join(options.directory, 'crds');
  const args = [
    join(ROOT, 'hack', 'generate.ts'),
    '--display-dpi-maximum',
    String(options.displayDpiMaximum),
  ];
  await promisify(execFile)(process.execPath, [...args, '--output', output], { cwd: ROOT });
  return output;
}
