/** Finds the API server and the credentials for it, from a kubeconfig file or from inside a Pod. */
import { access, readFile } from 'node:fs/promises';
import path from 'node:path';
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

async function fromKubeconfigs(
  files: readonly string[],
  contextName: string | undefined,
  environment: LoadOptions['environment'],
): Promise<Connection> {
  const raws = await readKubeconfigs(files);
  const shown = files.join(path.delimiter);
  const context = contextIn(raws, shown, contextName);
  const cluster = entryIn(raws, 'clusters', context.cluster);
  if (cluster === undefined) {
    throw new Error(`kubeconfig ${shown}: there is no cluster ${JSON.stringify(context.cluster)}`);
  }
  const user = context.user === undefined ? undefined : entryIn(raws, 'users', context.user);
  if (user === undefined && context.user !== undefined) {
    throw new Error(`kubeconfig ${shown}: there is no user ${JSON.stringify(context.user)}`);
  }
  refuseUnsupported(shown, cluster, user);
  const certificateAuthority = await cluster.pem('certificate-authority');
  const address = {
    ...addressOf(cluster, environment),
    certificateAuthority,
    namespace: context.namespace,
  };
  if (user === undefined) {
    return address;
  }
  const tokenPlugin = pluginOf(user, pluginClusterOf(cluster, certificateAuthority), environment);
  return { ...address, ...(await userCredentials(user)), tokenPlugin };
}

function addressOf(
  cluster: Entry,
  environment: LoadOptions['environment'],
): Pick<Connection, 'server' | 'serverName'> {
  const server = serverOf(cluster);
  const serverName = cluster.text('tls-server-name');
  const own = URL.parse(server)?.hostname === OWN_NAME ? serverOfPod(environment) : undefined;
  return own === undefined ? { server, serverName } : { server: own, serverName: serverName ?? OWN_NAME };
}

/** Returns the URL of a cluster, without a slash at its end. */
function serverOf(cluster: Entry): string {
  return cluster.required('server').replace(/\/$/, '');
}

function refuseUnsupported(file: string, cluster: Entry, user: Entry | undefined): void {
  const problems = [
    cluster.value('insecure-skip-tls-verify') === true &&
      'insecure-skip-tls-verify (use certificate-authority instead)',
    cluster.value('proxy-url') && 'proxy-url',
    user?.value('as') && 'as (impersonation)',
    user?.value('username') && 'username and password',
    user?.value('auth-provider') && 'auth-provider (use an exec plug-in instead)',
  ].filter((problem) => typeof problem === 'string' && problem !== '');
  if (problems.length > 0) {
    throw new Error(`kubeconfig ${file}: not supported: ${problems.join('; ')}`);
  }
}

async function userCredentials(user: Entry): Promise<Partial<Connection>> {
  const tokenFile = user.text('tokenFile');
  return {
    clientCertificate: await user.pem('client-certificate'),
    clientKey: await user.pem('client-key'),
    token: user.text('token'),
    tokenFile: tokenFile === undefined ? undefined : path.resolve(user.folder, tokenFile),
  };
}

/** Returns a description of the cluster for credential plug-ins. */
function pluginClusterOf(cluster: Entry, authority: string | undefined): PluginCluster {
  const list = cluster.value('extensions');
  const extensions = (Array.isArray(list) ? list : []) as ({ name?: unknown; extension?: unknown } | null)[];
  return {
    server: serverOf(cluster),
    'tls-server-name': cluster.text('tls-server-name'),
    'certificate-authority-data': authority && Buffer.from(authority).toString('base64'),
    config: extensions.find((one) => one?.name === PLUGIN_EXTENSION)?.extension,
  };
}

function pluginOf(
  user: Entry,
  cluster: PluginCluster,
  environment: LoadOptions['environment'],
): TokenPlugin | undefined {
  const exec = user.value('exec');
  if (!exec) {
    return undefined;
  }
  try {
    return tokenPlugin(execPluginIn(exec, user.folder), cluster, environment ?? {});
  } catch (error) {
    throw new Error(`kubeconfig: user ${user.name}: ${messageOf(error)}`, { cause: error });
  }
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

export interface Context {
  readonly cluster: string;
  readonly user: string | undefined;
  readonly namespace: string | undefined;
}

/** Returns the named context, or the current one. @throws ContextError when there is no such context. */
export function contextIn(raws: readonly RawKubeconfig[], shown: string, name: string | undefined): Context {
  const wanted = name ?? raws.map((raw) => raw['current-context']).find(Boolean);
  const context = wanted ? entryIn(raws, 'contexts', wanted) : undefined;
  if (context === undefined) {
    throw new ContextError(
      wanted
        ? `kubeconfig ${shown}: there is no context ${JSON.stringify(wanted)}`
        : `kubeconfig ${shown}: there is no current context`,
    );
  }
  return {
    cluster: context.required('cluster'),
    user: context.text('user'),
    namespace: context.text('namespace'),
  };
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

/** Lists of a kubeconfig, each with the field in which its entries have their content. */
const CONTENT = { clusters: 'cluster', contexts: 'context', users: 'user' } as const;

/** One entry of a kubeconfig. Its fields are read when they are needed, because `kubectl config` also writes entries that are not complete. */
class Entry {
  readonly name: string;
  /** Folder of the file that has the entry. Relative paths begin there. */
  readonly folder: string;
  readonly #kind: string;
  readonly #fields: Readonly<Record<string, unknown>>;

  constructor(name: string, folder: string, kind: string, content: unknown) {
    this.name = name;
    this.folder = folder;
    this.#kind = kind;
    this.#fields = (content ?? {}) as Readonly<Record<string, unknown>>;
  }

  value(field: string): unknown {
    return this.#fields[field];
  }

  /** Returns a text; undefined if the field is absent or empty. @throws Error when the field is no text. */
  text(field: string): string | undefined {
    const value = this.value(field) ?? '';
    if (typeof value !== 'string') {
      throw new Error(`kubeconfig: entry ${this.name}: ${this.#kind}.${field} must be a text`);
    }
    return value || undefined;
  }

  /** Returns a text. @throws Error when the field is absent, empty or no text. */
  required(field: string): string {
    const text = this.text(field);
    if (text === undefined) {
      throw new Error(`kubeconfig: entry ${this.name}: ${this.#kind}.${field} is missing`);
    }
    return text;
  }

  /** Reads PEM text. Inline base64 (`FIELD-data`) has precedence over a file, as in client-go. */
  async pem(field: string): Promise<string | undefined> {
    const data = this.text(`${field}-data`);
    if (data !== undefined) {
      return Buffer.from(data, 'base64').toString('utf8');
    }
    const file = this.text(field);
    return file === undefined ? undefined : await readFile(path.resolve(this.folder, file), 'utf8');
  }
}

/** Returns the first entry with the name; undefined if there is no such entry. */
function entryIn(
  raws: readonly RawKubeconfig[],
  list: keyof typeof CONTENT,
  name: string,
): Entry | undefined {
  for (const raw of raws) {
    const entries = (Array.isArray(raw[list]) ? raw[list] : []) as (Record<string, unknown> | null)[];
    const found = entries.find((one) => one?.['name'] === name);
    if (found) {
      return new Entry(name, raw.folder, CONTENT[list], found[CONTENT[list]]);
    }
  }
  return undefined;
}
