/**
 * Asks the HTTP API for what the API server tells only cluster admins. Nodes and ImageCacheEntries belong to no namespace, so members of a
 * namespace have no right to them. The HTTP API shows the members what belongs to their namespace.
 */
import { messageOf } from '../base/errors.ts';
import { VERSION } from '../api/v1alpha1/version.ts';
import { KubeClient } from '../kube/client.ts';
import type { Connection } from '../kube/credentials.ts';
import { apiErrorFrom, isForbidden, isRefused } from '../kube/errors.ts';
import type { Method } from '../kube/transport.ts';
import { type Cluster, explained } from './cluster.ts';
import { CommandError, EXIT } from './errors.ts';
import { printable } from './text.ts';

const ROOT = '/api/v1';
const CLUSTER_INFO: ServerRequest = { method: 'GET', path: '/cluster-info' };

/** Sends a request to the HTTP API, and resolves with the body of its answer. @throws ApiError when the HTTP API refuses. */
export type Server = (request: ServerRequest) => Promise<unknown>;

export interface ServerRequest {
  readonly method: Method;
  /** Path below `/api/v1`, whose parts are encoded. */
  readonly path: string;
  readonly body?: object;
}

/**
 * Resolves with what `direct` gets from the API server. If the user has no right to it there, resolves with the answer of the HTTP API.
 *
 * @throws ApiError and CommandError, of `direct` if the settings have no address of the HTTP API.
 */
export async function directOrAsked<T>(
  { apiURL, connection }: Cluster,
  signal: AbortSignal,
  direct: () => Promise<T>,
  ask: (server: Server) => Promise<T>,
): Promise<T> {
  try {
    return await direct();
  } catch (error) {
    const lacksRight = isForbidden(error) && !isRefused(error);
    if (!lacksRight || !hasToken(connection)) {
      throw error;
    }
    if (apiURL === undefined) {
      throw new CommandError(
        `${printable(messageOf(error))}. Members of a namespace need the HTTP API of Berth for this command: set its address with "config set --api-url"`,
        EXIT.denied,
      );
    }
    return await withServer({ apiURL, connection, signal }, ask);
  }
}

function hasToken({ token, tokenFile, tokenPlugin }: Connection): boolean {
  return (token ?? tokenFile ?? tokenPlugin) !== undefined;
}

async function withServer<T>(
  { apiURL, connection, signal }: { apiURL: string; connection: Connection; signal: AbortSignal },
  ask: (server: Server) => Promise<T>,
): Promise<T> {
  const [{ Transport }, { Registry }] = await Promise.all([
    import('../kube/transport.ts'),
    import('prom-client'),
  ]);
  const options = { metrics: new Registry(), userAgent: `berth/${VERSION}` };
  const stranger = new Transport({ server: apiURL }, options);
  const { token, tokenFile, tokenPlugin } = connection;
  const member = new Transport(
    { server: apiURL, token, tokenFile, tokenPlugin },
    { ...options, metrics: new Registry() },
  );
  try {
    // The settings are for all contexts. The token of one cluster must not reach the server of another one.
    const info = await answerOf(new KubeClient(stranger), CLUSTER_INFO, signal);
    requireSameCluster(info, connection, apiURL);
    const client = new KubeClient(member);
    return await ask(async (request) => await answerOf(client, request, signal));
  } catch (error) {
    throw explained(error, `HTTP API ${apiURL}`, 'the settings, or NODE_EXTRA_CA_CERTS');
  } finally {
    await Promise.all([stranger.close(), member.close()]);
  }
}

async function answerOf(
  client: KubeClient,
  { method, path, body: sent }: ServerRequest,
  signal: AbortSignal,
): Promise<unknown> {
  const options = { body: sent, signal };
  const { status, body, retryAfterMilliseconds } = await client.raw(method, ROOT + path, options);
  if (status >= 400) {
    throw apiErrorFrom(body, status, retryAfterMilliseconds);
  }
  if (typeof body !== 'object' || body === null) {
    throw new CommandError('There is no HTTP API of Berth at the address of the settings', EXIT.usage);
  }
  return body;
}

/** @throws CommandError when the server belongs to another cluster. The same API server can have several addresses. */
function requireSameCluster(
  info: unknown,
  { server, certificateAuthority = '' }: Connection,
  apiURL: string,
) {
  const { apiEndpoint, certData } = info as { apiEndpoint?: unknown; certData?: unknown };
  const own = certificatesIn(certificateAuthority);
  const given = typeof certData === 'string' ? certificatesIn(certData) : [];
  const isSameAuthority = given.length > 0 && given.every((certificate) => own.includes(certificate));
  const isSameAddress =
    typeof apiEndpoint === 'string' && URL.parse(apiEndpoint)?.origin === new URL(server).origin;
  if (!isSameAuthority && !isSameAddress) {
    throw new CommandError(
      `The HTTP API ${apiURL} of the settings belongs to another cluster than ${server}. Choose another context with --context, or another HTTP API with "config set --api-url"`,
      EXIT.usage,
    );
  }
}

/** Returns the certificates in PEM text, without white space, in which files differ. A part of a certificate is none. */
function certificatesIn(pem: string): string[] {
  return pem.replace(/\s/g, '').match(/-----BEGINCERTIFICATE-----[^-]+-----ENDCERTIFICATE-----/g) ?? [];
}

/** Returns the path of a namespace's resources, with encoded parts. */
export function namespacePath(namespace: string, ...parts: readonly string[]): string {
  return ['', 'namespaces', namespace, ...parts].map(encodeURIComponent).join('/');
}
