/**
 * Finds the API server and the credentials for it, from a kubeconfig file or from inside a Pod. This file imports only the parsers of
 * `@kubernetes/client-node`, by their path inside the package. An import of the package's index or of its class KubeConfig would load all
 * generated clients, which take about 85 MB of memory.
 */
import { access, readFile } from 'node:fs/promises';
import path from 'node:path';
import {
  type Cluster,
  type Context,
  newClusters,
  newContexts,
  newUsers,
  type User,
} from '@kubernetes/client-node/dist/config_types.js';
import { parse } from 'yaml';
import { isMissing, messageOf, undefinedIf } from '../base/errors.ts';
import { homeFolder } from '../base/files.ts';
import { execPluginIn, type PluginCluster, type TokenPlugin, tokenPlugin } from './execplugin.ts';

/** The address of an API server and the credentials for it. Certificates and keys are PEM text. */
export interface Connection {
  /** URL of the API server, `https://host:port`. The URL of a proxy for several clusters also has a path. */
  server: string;
  /** CA certificates for the check of the server's certificate. If absent, the CA certificates of the system are used. */
  certificateAuthority?: string | undefined;
  /** Name that the server's certificate must contain, if it differs from the host in `server`. */
  serverName?: string | undefined;
  clientCertificate?: string | undefined;
  clientKey?: string | undefined;
  token?: string | undefined;
  /** File with the token. It is read again from time to time, because the token is renewed. The file has precedence over `token`. */
  tokenFile?: string | undefined;
  /** Function that gets a token from a credential plug-in. The plug-in has precedence over `tokenFile` and `token`. */
  tokenPlugin?: TokenPlugin | undefined;
  /** Namespace of the kubeconfig's context, or of the Pod in which this program runs. */
  namespace?: string | undefined;
}

export interface LoadOptions {
  /** Path of the file. As in kubectl, an empty path counts as absent. */
  kubeconfigPath?: string | undefined;
  /** Name of the context. If absent or empty, the current context of the file is used. */
  context?: string | undefined;
  environment?: Record<string, string | undefined>;
}

const SERVICE_ACCOUNT_FOLDER = '/var/run/secrets/kubernetes.io/serviceaccount';
/** Name that the API server has inside every cluster. The server's certificate contains this name. */
const OWN_NAME = 'kubernetes.default.svc';

/**
 * Finds the cluster as kubectl does. The first of these that exists is used: the given file, the files of `KUBECONFIG`, `~/.kube/config`,
 * and the Pod's service account. If `KUBECONFIG` has several files, each entry comes from the first file that has it. The service account
 * has no contexts, so it is not used if `options` names a context.
 *
 * A Pod that uses the network of its host sometimes cannot resolve the cluster's DNS names. Therefore, inside a Pod, this function replaces
 * the server `https://kubernetes.default.svc` of a kubeconfig. It uses the address in the variables that the kubelet sets in every Pod.
 *
 * @throws Error with the path of the file in the message when something is missing or wrong.
 */
export async function loadConnection(options: LoadOptions = {}): Promise<Connection> {
  const environment = options.environment ?? process.env;
  // A script can give an empty text, for example `--context "$CONTEXT"` with a variable that is not set.
  const context = options.context || undefined;
  const files = options.kubeconfigPath ? [options.kubeconfigPath] : kubeconfigsIn(environment);
  if (files.length > 0) {
    return await fromKubeconfigs(files, context, environment);
  }
  const own = path.join(homeFolder(environment), '.kube', 'config');
  const server = context === undefined && !(await exists(own)) ? serverOfPod(environment) : undefined;
  if (server !== undefined && (await exists(path.join(SERVICE_ACCOUNT_FOLDER, 'token')))) {
    return await fromServiceAccount(server);
  }
  return await fromKubeconfigs([own], context, environment);
}

/** Returns the paths in the variable `KUBECONFIG`. The list is empty if the variable names no file. */
export function kubeconfigsIn({ KUBECONFIG = '' }: NonNullable<LoadOptions['environment']>): string[] {
  return KUBECONFIG.split(path.delimiter).filter((file) => file !== '');
}

/** Returns the URL of the API server from the variables that a kubelet sets in its Pods. The result is undefined outside of a Pod. */
function serverOfPod(environment: LoadOptions['environment']): string | undefined {
  const host = environment?.KUBERNETES_SERVICE_HOST;
  if (host === undefined) {
    return undefined;
  }
  return `https://${host.includes(':') ? `[${host}]` : host}:${environment?.KUBERNETES_SERVICE_PORT ?? '443'}`;
}

async function exists(file: string): Promise<boolean> {
  return await access(file).then(
    () => true,
    () => false,
  );
}

async function fromServiceAccount(server: string): Promise<Connection> {
  const [certificateAuthority, namespace] = await Promise.all([
    readFile(path.join(SERVICE_ACCOUNT_FOLDER, 'ca.crt'), 'utf8'),
    readFile(path.join(SERVICE_ACCOUNT_FOLDER, 'namespace'), 'utf8'),
  ]);
  return {
    server,
    certificateAuthority,
    tokenFile: path.join(SERVICE_ACCOUNT_FOLDER, 'token'),
    namespace: namespace.trim(),
  };
}

/** Name of the extension that contains data for credential plug-ins. A cluster in a kubeconfig can have this extension. */
const PLUGIN_EXTENSION = 'client.authentication.k8s.io/exec';

interface RawCluster {
  readonly name?: string;
  readonly cluster?: { readonly extensions?: readonly { name?: string; extension?: unknown }[] };
}

async function fromKubeconfigs(
  files: readonly string[],
  contextName: string | undefined,
  environment: LoadOptions['environment'],
): Promise<Connection> {
  const raws = await readKubeconfigs(files);
  const shown = files.join(path.delimiter);
  const context = contextIn(raws, shown, contextName);
  const cluster = named(raws, ({ clusters }) => clusters, newClusters, context.cluster);
  if (cluster === undefined) {
    throw new Error(`kubeconfig ${shown}: there is no cluster ${JSON.stringify(context.cluster)}`);
  }
  const user = named(raws, ({ users }) => users, newUsers, context.user);
  if (user === undefined && context.user) {
    throw new Error(`kubeconfig ${shown}: there is no user ${JSON.stringify(context.user)}`);
  }
  refuseUnsupported(shown, cluster.entry, user?.entry);
  const { caData, caFile } = cluster.entry;
  const certificateAuthority = await pem(cluster.raw.folder, caData, caFile);
  const address = {
    ...addressOf(cluster.entry, environment),
    certificateAuthority,
    namespace: context.namespace,
  };
  if (user === undefined) {
    return address;
  }
  const { folder, users } = user.raw;
  const credentials = await userCredentials(folder, user.entry, tokenFileOf(users, user.entry.name));
  const forPlugin = pluginClusterOf(cluster.entry, certificateAuthority, cluster.raw.clusters);
  const plugin = user.entry.exec ? pluginOf(user.entry, folder, forPlugin, environment) : undefined;
  return { ...address, ...credentials, tokenPlugin: plugin };
}

function addressOf(
  { server, tlsServerName: serverName }: Cluster,
  environment: LoadOptions['environment'],
): Pick<Connection, 'server' | 'serverName'> {
  const own = URL.parse(server)?.hostname === OWN_NAME ? serverOfPod(environment) : undefined;
  return own === undefined ? { server, serverName } : { server: own, serverName: serverName ?? OWN_NAME };
}

function refuseUnsupported(file: string, cluster: Cluster, user: User | undefined): void {
  const problems = [
    cluster.skipTLSVerify && 'insecure-skip-tls-verify (use certificate-authority instead)',
    cluster.proxyUrl && 'proxy-url',
    user?.impersonateUser && 'as (impersonation)',
    user?.username && 'username and password',
    user?.authProvider && 'auth-provider (use an exec plug-in instead)',
  ].filter((problem) => typeof problem === 'string' && problem !== '');
  if (problems.length > 0) {
    throw new Error(`kubeconfig ${file}: not supported: ${problems.join('; ')}`);
  }
}

/** Reads the field `tokenFile` of a user, as kubectl does. The parser of client-node does not read this field: it expects `token-file`. */
function tokenFileOf(users: unknown, name: string): string | undefined {
  const entries = Array.isArray(users) ? (users as { name?: string; user?: { tokenFile?: string } }[]) : [];
  return entries.find((entry) => entry.name === name)?.user?.tokenFile;
}

async function userCredentials(
  folder: string,
  user: User,
  tokenFile: string | undefined,
): Promise<Partial<Connection>> {
  return {
    clientCertificate: await pem(folder, user.certData, user.certFile),
    clientKey: await pem(folder, user.keyData, user.keyFile),
    token: user.token,
    tokenFile: tokenFile === undefined ? undefined : path.resolve(folder, tokenFile),
  };
}

/**
 * Returns a description of the cluster for credential plug-ins. This function reads the extension for plug-ins itself, because the parser
 * of client-node ignores the extension.
 */
function pluginClusterOf(
  { name, server, tlsServerName }: Cluster,
  authority: string | undefined,
  clusters: unknown,
): PluginCluster {
  const entries = Array.isArray(clusters) ? (clusters as RawCluster[]) : [];
  const extensions = entries.find((entry) => entry.name === name)?.cluster?.extensions ?? [];
  return {
    server,
    'tls-server-name': tlsServerName,
    'certificate-authority-data': authority && Buffer.from(authority).toString('base64'),
    config: extensions.find((one) => one.name === PLUGIN_EXTENSION)?.extension,
  };
}

function pluginOf(
  user: User,
  folder: string,
  cluster: PluginCluster,
  environment: LoadOptions['environment'],
): TokenPlugin {
  try {
    return tokenPlugin(execPluginIn(user.exec, folder), cluster, environment ?? {});
  } catch (error) {
    throw new Error(`kubeconfig: user ${user.name}: ${messageOf(error)}`, { cause: error });
  }
}

/** Reads PEM text. Inline base64 has precedence over a file, as in client-go. A relative path begins in the folder of the kubeconfig. */
async function pem(
  folder: string,
  data: string | null | undefined,
  file: string | null | undefined,
): Promise<string | undefined> {
  if (data) {
    return Buffer.from(data, 'base64').toString('utf8');
  }
  return file ? await readFile(path.resolve(folder, file), 'utf8') : undefined;
}

export interface RawKubeconfig {
  /** Folder of the file. Relative paths in the file begin there. */
  folder: string;
  clusters?: unknown;
  contexts?: unknown;
  users?: unknown;
  'current-context'?: string;
}

/** Error when a kubeconfig lacks the requested context, or has no current context. */
export class ContextError extends Error {
  override readonly name = 'ContextError';
}

/** Returns the named context, or the current one. @throws ContextError when there is no such context. */
export function contextIn(raws: readonly RawKubeconfig[], shown: string, name: string | undefined): Context {
  const wanted = name ?? raws.map((raw) => raw['current-context']).find(Boolean);
  const { entry: context } = named(raws, ({ contexts }) => contexts, newContexts, wanted) ?? {};
  if (context === undefined) {
    throw new ContextError(
      wanted
        ? `kubeconfig ${shown}: there is no context ${JSON.stringify(wanted)}`
        : `kubeconfig ${shown}: there is no current context`,
    );
  }
  return context;
}

/**
 * Returns the content of the files. Missing files are left out, as in kubectl, if at least one of the files exists.
 *
 * @throws Error when no file exists, or when a file cannot be read.
 */
export async function readKubeconfigs(files: readonly string[]): Promise<RawKubeconfig[]> {
  const read = async (file: string): Promise<RawKubeconfig> => ({
    ...((parse(await readFile(file, 'utf8')) ?? {}) as object),
    folder: path.dirname(path.resolve(file)),
  });
  const found = await Promise.all(files.map(async (file) => await undefinedIf(isMissing, read(file))));
  const existing = found.filter((raw) => raw !== undefined);
  return existing.length > 0 ? existing : [await read(files[0] ?? '')];
}

/**
 * Returns the first entry with the name, and the file that has the entry. The result is undefined if there is no such entry. Only this
 * entry is parsed, because `kubectl config` also writes entries that are not complete.
 *
 * @throws Error when the entry is not complete.
 */
export function named<E>(
  raws: readonly RawKubeconfig[],
  listOf: (raw: RawKubeconfig) => unknown,
  parse: (list: unknown) => E[],
  name: string | undefined,
): { entry: E; raw: RawKubeconfig } | undefined {
  const parsed = (list: unknown[]): E[] => {
    try {
      return parse(list);
    } catch (error) {
      throw new Error(`kubeconfig: entry ${name}: ${messageOf(error)}`, { cause: error });
    }
  };
  for (const raw of raws) {
    const list = listOf(raw);
    const entries: ({ name?: unknown } | null)[] = Array.isArray(list) ? list : [];
    const [entry] = parsed(entries.filter((one) => name !== undefined && one?.name === name).slice(0, 1));
    if (entry !== undefined) {
      return { entry, raw };
    }
  }
  return undefined;
}
