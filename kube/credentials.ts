/**
 * Where the API server is and how to log in to it, from a kubeconfig file or from inside a Pod.
 * Only the parsers and the exec plug-in of `@kubernetes/client-node` are imported, by path: its index and its
 * KubeConfig class load every generated client, which costs some 85 MB of memory.
 */
import { access, readFile } from 'node:fs/promises';
import { homedir } from 'node:os';
import path from 'node:path';
import {
  type Cluster,
  newClusters,
  newContexts,
  newUsers,
  type User,
} from '@kubernetes/client-node/dist/config_types.js';
import { ExecAuth } from '@kubernetes/client-node/dist/exec_auth.js';
import { parse } from 'yaml';

/** How to reach and log in to an API server. Certificates and keys are PEM text. */
export interface Connection {
  /** `https://host:port`, without a trailing slash. */
  server: string;
  /** Whom to trust; the system's authorities when absent. */
  certificateAuthority?: string | undefined;
  /** Name expected in the server's certificate, when it is not the host of `server`. */
  serverName?: string | undefined;
  clientCertificate?: string | undefined;
  clientKey?: string | undefined;
  token?: string | undefined;
  /** File that holds the token; read again as it is renewed. Wins over `token`. */
  tokenFile?: string | undefined;
  /** Asks a credential plug-in for a token; it keeps its own cache. */
  tokenPlugin?: (() => Promise<string>) | undefined;
  /** Namespace of the kubeconfig's context, or of the Pod. */
  namespace?: string | undefined;
}

export interface LoadOptions {
  kubeconfigPath?: string | undefined;
  /** Which context; the file's own current one when absent. */
  context?: string | undefined;
  environment?: Record<string, string | undefined>;
}

const SERVICE_ACCOUNT_FOLDER = '/var/run/secrets/kubernetes.io/serviceaccount';
/** The API server's own name in every cluster, and in its certificate. */
const OWN_NAME = 'kubernetes.default.svc';

/**
 * Finds the cluster as kubectl does: the file given, else the first file of `KUBECONFIG`, else the Pod's service account,
 * else `~/.kube/config`.
 *
 * In a Pod, a kubeconfig's `https://kubernetes.default.svc` is the address that the kubelet gives to every Pod: one in its
 * host's network may have nobody to ask for a name of the cluster.
 *
 * @throws Error with the path in the message when something is missing or wrong.
 */
export async function loadConnection(options: LoadOptions = {}): Promise<Connection> {
  const environment = options.environment ?? process.env;
  const fromEnvironment = environment.KUBECONFIG?.split(path.delimiter).find((file) => file !== '');
  const file = options.kubeconfigPath ?? fromEnvironment;
  if (file !== undefined) {
    return await fromKubeconfig(file, options.context, environment);
  }
  const server = serverOfPod(environment);
  if (server !== undefined && (await exists(path.join(SERVICE_ACCOUNT_FOLDER, 'token')))) {
    return await fromServiceAccount(server);
  }
  return await fromKubeconfig(path.join(homedir(), '.kube', 'config'), options.context, environment);
}

/** Where a kubelet tells its Pods that the API server is; undefined outside of a Pod. */
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

interface RawKubeconfig {
  clusters?: unknown;
  contexts?: unknown;
  users?: unknown;
  'current-context'?: string;
}

async function fromKubeconfig(
  file: string,
  contextName: string | undefined,
  environment: LoadOptions['environment'],
): Promise<Connection> {
  const raw = (parse(await readFile(file, 'utf8')) ?? {}) as RawKubeconfig;
  const wanted = contextName ?? raw['current-context'];
  const context = newContexts(raw.contexts).find((candidate) => candidate.name === wanted);
  if (context === undefined) {
    throw new Error(`kubeconfig ${file}: there is no context ${JSON.stringify(wanted ?? '')}`);
  }
  const cluster = newClusters(raw.clusters).find((candidate) => candidate.name === context.cluster);
  if (cluster === undefined) {
    throw new Error(`kubeconfig ${file}: there is no cluster ${JSON.stringify(context.cluster)}`);
  }
  const folder = path.dirname(path.resolve(file));
  const user = newUsers(raw.users).find((candidate) => candidate.name === context.user);
  refuseUnsupported(file, cluster, user);
  return {
    ...addressOf(cluster, environment),
    certificateAuthority: await pem(folder, cluster.caData, cluster.caFile),
    namespace: context.namespace,
    ...(user === undefined ? {} : await userCredentials(folder, user, tokenFileOf(raw.users, user.name))),
  };
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
    cluster.skipTLSVerify && 'insecure-skip-tls-verify: name the certificate authority instead',
    cluster.proxyUrl && 'proxy-url',
    user?.impersonateUser && 'as (impersonation)',
    user?.username && 'username and password',
    user?.authProvider && 'auth-provider: use an exec plug-in',
  ].filter((problem) => typeof problem === 'string' && problem !== '');
  if (problems.length > 0) {
    throw new Error(`kubeconfig ${file}: not supported: ${problems.join('; ')}`);
  }
}

/** `tokenFile` as kubectl spells it, which client-node's parser does not know. */
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
    tokenPlugin: user.exec ? execPlugin(user) : undefined,
  };
}

function execPlugin(user: User): () => Promise<string> {
  const plugin = new ExecAuth();
  return async () => {
    const request: { headers: Record<string, string> } = { headers: {} };
    await plugin.applyAuthentication(user, request);
    const { Authorization: header } = request.headers;
    if (header === undefined) {
      throw new Error(`the credential plug-in of user ${user.name} gave no token`);
    }
    return header.replace(/^Bearer /, '');
  };
}

/** Inline base64 wins over a file, as in client-go; a relative file is relative to the kubeconfig. */
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
