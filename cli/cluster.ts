/**
 * Connects to the cluster that the command works with. The libraries for connections and kubeconfig files are imported only when a command
 * needs the cluster. Otherwise help, completion and messages about usage mistakes would have to wait for these libraries.
 */
import { causeOfRefusal } from '../api/http/refusedtoken.ts';
import { unlessAborted } from '../base/time.ts';
import { codeOf, messageOf, undefinedIf } from '../base/errors.ts';
import { aliasNames } from '../api/http/namespaceitem.ts';
import { DEFAULT_NAMESPACE, isObjectName, NAMESPACE_PREFIX } from '../api/v1alpha1/names.ts';
import { VERSION } from '../api/v1alpha1/version.ts';
import { KubeClient } from '../kube/client.ts';
import type { Connection } from '../kube/credentials.ts';
import { ApiError } from '../kube/errors.ts';
import type { TokenPlugin } from '../kube/execplugin.ts';
import { TokenSource } from '../kube/tokensource.ts';
import type { Transport } from '../kube/transport.ts';
import { CommandError, EXIT, explained } from './errors.ts';
import type { Globals } from './globals.ts';
import type { Servers } from './httpapi.ts';
import { readSettings, type Settings } from './settingsfile.ts';
import type { Terminal } from './terminal.ts';

export interface UserCluster extends Servers {
  readonly client: KubeClient;
  /** Connections to the API server for watches, and for streams of VMs. */
  readonly watches: Transport;
  readonly namespace: string;
  /**
   * Returns the name that a namespace has in the cluster. If the settings define the prefix `ci-`, a flag can say `ci-team` instead of
   * `platform-team`.
   */
  readonly realNamespace: (name: string) => string;
}

/**
 * Runs `work` with the cluster of the user, and then closes the connections. Resolves with the result of `work`.
 *
 * @throws CommandError when the cluster cannot be used; errors of `work`.
 */
export async function withCluster<T>(
  terminal: Terminal,
  globals: Globals,
  work: (cluster: UserCluster) => Promise<T>,
): Promise<T> {
  const [{ Transport }, { Registry }, settings, connection] = await Promise.all([
    import('../kube/transport.ts'),
    import('prom-client'),
    readSettings(terminal.environment),
    connect(terminal, globals),
  ]);
  const userAgent = `berth/${VERSION}`;
  const watches = new Transport(connection, { metrics: new Registry(), userAgent });
  // Requests do not share the connections of watches. Otherwise many watches could use all connections, and requests would wait.
  const requests = new Transport(connection, { metrics: new Registry(), userAgent });
  const namespace = required(namespaceOf(globals, terminal, settings, connection));
  const { signal } = terminal;
  const client = new KubeClient(requests, { signal });
  try {
    const { apiURL, certificateAuthority: apiAuthority } = settings;
    const realNamespace = (name: string) => realNameOf(name, settings);
    const { environment } = terminal;
    const servers = { connection, apiURL, apiAuthority, environment };
    const cluster = { client, watches, namespace, realNamespace, ...servers };
    const result = await work(cluster);
    if (terminal.isForPeople) {
      const { remind } = await import('./versions.ts');
      await remind(terminal, cluster);
    }
    return result;
  } catch (error) {
    throw await errorForUser(error, connection);
  } finally {
    await Promise.all([requests.close(), watches.close()]);
  }
}

/**
 * Returns a client for a change that consists of several requests. If the user interrupts the command during the change, the change is
 * still completed, because the cluster must not keep half of it. A second interruption ends the command at once.
 *
 * @throws the signal's reason when the user has interrupted the command before the change.
 */
export function clientForChange({ client }: Pick<UserCluster, 'client'>, { signal }: Terminal): KubeClient {
  signal.throwIfAborted();
  return new KubeClient(client.transport);
}

/**
 * Returns the namespace of the command. The flag has precedence over environment variables, and these have precedence over the context. An
 * empty text counts as absent. If nothing names a namespace, returns the default namespace. Scripts that were written for another platform
 * can keep the namespace prefix of that platform, if the settings define this prefix.
 */
export function namespaceOf(
  { namespace }: Pick<Globals, 'namespace'>,
  { environment }: Pick<Terminal, 'environment'>,
  settings: Settings,
  context: Pick<Connection, 'namespace'>,
): string {
  const { BERTH_NAMESPACE: variable, [settings.namespaceVariable ?? '']: alias } = environment;
  const named = namespace || variable || alias;
  return named ? realNameOf(named, settings) : context.namespace || DEFAULT_NAMESPACE;
}

/**
 * Returns the name that a namespace has in the cluster. `name` comes from a flag or variable, and can begin with the prefix that the
 * settings define.
 */
function realNameOf(name: string, { namespacePrefix }: Settings): string {
  return namespacePrefix === undefined
    ? name
    : aliasNames(namespacePrefix, { prefix: NAMESPACE_PREFIX, default: DEFAULT_NAMESPACE }).real(name);
}

/**
 * Returns the name if a namespace can have this name. Other names are refused, because they could change the path of a request, or a
 * command in a shell. Such a name can come from an HTTP API: `login` writes the default namespace of the HTTP API into the kubeconfig.
 *
 * @throws CommandError when no namespace can have the name.
 */
function required(namespace: string): string {
  if (!isObjectName(namespace)) {
    throw new CommandError(`No namespace can have the name ${JSON.stringify(namespace)}`, EXIT.usage);
  }
  return namespace;
}

/**
 * Returns the connection to the cluster that the kubeconfig names.
 *
 * @throws CommandError when the kubeconfig is missing or has a mistake.
 */
export async function connect(
  { environment, name, signal }: Terminal,
  { kubeconfig: kubeconfigPath, context }: Globals,
): Promise<Connection> {
  const { loadConnection } = await import('../kube/credentials.ts');
  const { ContextError } = await import('../kube/credentials.ts');
  try {
    const connection = await loadConnection({ kubeconfigPath, context, environment });
    const { tokenPlugin } = connection;
    return { ...connection, tokenPlugin: tokenPlugin && interruptible(tokenPlugin, signal) };
  } catch (error) {
    const { path } = error as NodeJS.ErrnoException;
    const signIn = `Sign in with ${name} login, or name a`;
    let message = messageOf(error);
    if (codeOf(error) === 'ENOENT') {
      message = `The file ${path} does not exist. ${signIn} kubeconfig with --kubeconfig or in KUBECONFIG`;
    } else if (error instanceof ContextError) {
      message = `${message}. ${signIn} context with --context`;
    }
    throw new CommandError(message, EXIT.usage);
  }
}

/**
 * Returns a plug-in whose callers no longer wait when the signal aborts. The program of the plug-in continues, because it might be writing
 * new tokens. A call after the abort waits as usual: the command can still need a token, for example to delete a VM that it has deployed.
 */
function interruptible(plugin: TokenPlugin, signal: AbortSignal): TokenPlugin {
  return async (isRefused) => {
    const token = plugin(isRefused);
    return await (signal.aborted ? token : unlessAborted(token, signal));
  };
}

/**
 * Returns the error for the user. Its message names the API server that does not answer, or the reason why the API server refused the token.
 * Other errors are returned unchanged.
 */
async function errorForUser(thrown: unknown, connection: Connection): Promise<unknown> {
  // Work on several names throws an AggregateError without a code. An AggregateError with a code is one failed connection.
  if (thrown instanceof AggregateError && codeOf(thrown) === undefined) {
    const errors = thrown.errors.map(async (one) => await errorForUser(one, connection));
    return new AggregateError(await Promise.all(errors));
  }
  const server = `API server ${connection.server}`;
  return (await refusalOf(thrown, connection)) ?? explained(thrown, server, 'the kubeconfig');
}

/**
 * If the API server refused the token, and the token itself shows the reason (for example, it has expired), returns an error for the user.
 * Otherwise the result is undefined.
 */
async function refusalOf(error: unknown, connection: Connection): Promise<CommandError | undefined> {
  if (!(error instanceof ApiError) || error.status !== 401) {
    return undefined;
  }
  const token = await undefinedIf(() => true, new TokenSource(connection).token());
  const cause = causeOfRefusal(token ?? '', { clientID: '' });
  return cause === undefined ? undefined : new CommandError(`Unauthorized: ${cause}`, EXIT.denied);
}
