/**
 * Reads the versions of Berth's parts in the cluster from Deployments and Nodes, and compares them with this command. Members of a namespace
 * get the versions of the HTTP API and of their hosts from the HTTP API.
 */
import { mkdir, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { isMissing, undefinedIf } from '../base/errors.ts';
import { homeFolder } from '../base/files.ts';
import { HOST_KEY, HOST_VALUE } from '../api/v1alpha1/names.ts';
import { agentVersion, VERSION } from '../api/v1alpha1/version.ts';
import type { KubeClient } from '../kube/client.ts';
import { ApiError } from '../kube/errors.ts';
import { NODES } from '../kube/core.ts';
import { type KubeObject, namespaced } from '../kube/objects.ts';
import type { ClusterInfo } from '../api/http/cluster.ts';
import type { NodeItem } from '../api/http/node.ts';
import { CommandError, described, Interrupted, withLogin } from './errors.ts';
import { CLUSTER_INFO, directOrAsked, namespacePath, type Servers } from './httpapi.ts';
import type { Terminal } from './terminal.ts';
import { printable } from './text.ts';
import type { Globals } from './globals.ts';
import { print } from './output.ts';

const COMPONENT = 'app.kubernetes.io/component';
/** Names of Berth's parts that run as Deployments, as in the labels of the Deployments. */
const PARTS: readonly string[] = ['operator', 'server'];
const DAY_MILLISECONDS = 24 * 3_600_000;
/**
 * Time limit of the daily comparison of versions. The limit is short, because the user already has the result of the command, and waits
 * only for this comparison.
 */
const LOOK_MILLISECONDS = 2_000;

interface Deployment extends KubeObject {
  readonly spec?: { readonly selector?: { readonly matchLabels?: Readonly<Record<string, string>> } };
}

export const DEPLOYMENTS = namespaced<Deployment>('apps/v1', 'Deployment', 'deployments');

export interface Version {
  readonly name: string;
  readonly version: string;
  /** Number of hosts whose agents have this version. */
  readonly hosts?: number;
}

/** Cluster whose versions are read. */
interface Asked extends Servers {
  readonly client: KubeClient;
  readonly namespace: string;
}

export interface Versions {
  readonly versions: readonly Version[];
  /** Sentences about the parts whose versions could not be read. */
  readonly problems: readonly string[];
}

/**
 * Returns the versions that the user may read. If the version of a part cannot be read, `problems` contains a sentence about this part.
 *
 * @throws ApiError with status 401; errors of the connection.
 */
async function versionsOf(cluster: Asked, signal: AbortSignal): Promise<Versions> {
  const { client, namespace } = cluster;
  const problems: string[] = [];
  const orNone = async (what: string, versions: Promise<Version[]>) => {
    try {
      return await versions;
    } catch (error) {
      const isRefusal = error instanceof ApiError ? error.status !== 401 : error instanceof CommandError;
      if (!isRefusal) {
        throw error;
      }
      problems.push(`The versions of ${what} are not known: ${described(error).message}`);
      return [];
    }
  };
  const found = await Promise.all([
    orNone(
      'operator and server',
      directOrAsked(
        cluster,
        signal,
        async () => await deployed(client, signal),
        async (server) => [
          { name: 'server', version: ((await server(CLUSTER_INFO)) as ClusterInfo).version },
        ],
      ),
    ),
    orNone(
      'the agents',
      directOrAsked(
        cluster,
        signal,
        async () => await agents(client, signal),
        async (server) => {
          const answer = await server({ method: 'GET', path: namespacePath(namespace, 'nodes') });
          return countedHosts((answer as { items: NodeItem[] }).items.map(({ versions }) => versions.agent));
        },
      ),
    ),
  ]);
  return { versions: found.flat(), problems };
}

async function deployed(client: KubeClient, signal: AbortSignal): Promise<Version[]> {
  const { items } = await client.list(DEPLOYMENTS, { labelSelector: 'app.kubernetes.io/name=berth', signal });
  return items.flatMap(({ metadata: { labels = {} }, spec }) => {
    const name = spec?.selector?.matchLabels?.[COMPONENT] ?? '';
    const version = labels['app.kubernetes.io/version'];
    return version !== undefined && PARTS.includes(name) ? [{ name, version }] : [];
  });
}

async function agents(client: KubeClient, signal: AbortSignal): Promise<Version[]> {
  const { items } = await client.list(NODES, { labelSelector: `${HOST_KEY}=${HOST_VALUE}`, signal });
  return countedHosts(items.map(({ status }) => agentVersion(status?.nodeInfo?.kubeletVersion)));
}

function countedHosts(agentVersions: readonly (string | undefined)[]): Version[] {
  const hosts = Map.groupBy(agentVersions, (version) => version ?? 'unknown');
  return [...hosts].map(([version, { length }]) => ({ name: 'agent', version, hosts: length }));
}

/** Returns a warning if a part has another minor release than this command. Otherwise the result is undefined. */
export function warningOf(versions: readonly Version[], own = VERSION): string | undefined {
  const other = versions.find(({ version }) => /^\d/.test(version) && minorOf(version) !== minorOf(own));
  return other === undefined
    ? undefined
    : `warning: this command has release ${minorOf(own)}, and ${other.name} has ${minorOf(other.version)}. Install the release of this command that matches the cluster`;
}

function minorOf(version: string): string {
  return printable(version.split('.', 2).join('.'));
}

/** Compares the release of this command with the releases in the cluster, at most once a day. Writes a warning if they differ. */
export async function remind({ environment, err, signal }: Terminal, cluster: Asked): Promise<void> {
  const folder = join(environment['XDG_CACHE_HOME'] || join(homeFolder(environment), '.cache'), 'berth');
  const file = join(folder, 'versions-compared');
  try {
    const last = await undefinedIf(isMissing, stat(file));
    if (last !== undefined && Date.now() - last.mtimeMs < DAY_MILLISECONDS) {
      return;
    }
    await mkdir(folder, { recursive: true });
    await writeFile(file, '');
  } catch {
    // The file limits the comparisons to one a day. If the command cannot write the file, it does not compare the releases.
    return;
  }
  const asked = versionsOf(cluster, AbortSignal.any([signal, AbortSignal.timeout(LOOK_MILLISECONDS)]));
  // The command has already done its work, so an error of the comparison must not make the command fail.
  const found = await undefinedIf(() => true, asked);
  const warning = warningOf(found?.versions ?? []);
  if (warning !== undefined) {
    err(`${warning}\n`);
  }
}

/**
 * Time limit for reading the versions in the cluster. The limit is short, so that users soon see the version of this command even if the
 * cluster does not answer.
 */
const LIMIT_MILLISECONDS = 5_000;

/** Runs work with the cluster of the user, and resolves with its result. */
type WithCluster = (work: (cluster: Asked) => Promise<Versions>) => Promise<Versions>;

/**
 * Writes the versions. If the cluster does not answer, writes only the version of this command. In the table formats, also writes to the
 * standard error why versions are missing.
 */
export async function showVersions(
  terminal: Terminal,
  globals: Globals,
  withCluster: WithCluster,
): Promise<void> {
  const { versions, problems } = await readVersions(terminal, withCluster);
  await print<Version>(terminal, globals.output, {
    rows: [{ name: 'berth', version: VERSION }, ...versions],
    columns: [
      { header: 'COMPONENT', value: ({ name }) => name },
      { header: 'VERSION', value: ({ version }) => version },
      { header: 'HOSTS', value: ({ hosts }) => hosts },
    ],
    itemOf: (row) => row,
  });
  if (globals.output === 'table' || globals.output === 'wide') {
    terminal.err(problems.map((problem) => `${withLogin(problem, terminal.name)}\n`).join(''));
  }
}

async function readVersions(terminal: Terminal, withCluster: WithCluster): Promise<Versions> {
  const signal = AbortSignal.any([terminal.signal, AbortSignal.timeout(LIMIT_MILLISECONDS)]);
  try {
    return await withCluster(async (cluster) => await versionsOf(cluster, signal));
  } catch (error) {
    if (error instanceof Interrupted) {
      throw error;
    }
    return {
      versions: [],
      problems: [`The versions of the cluster are not known: ${described(error).message}`],
    };
  }
}
