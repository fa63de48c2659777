/**
 * Asks the HTTP API for data that only cluster admins may read from the API server. Nodes and ImageCacheEntries belong to no namespace, so
 * members of a namespace have no right to read them. From the HTTP API, the members get the data that belong to their namespace.
 */
import { getCACertificates } from 'node:tls';
import { messageOf } from '../base/errors.ts';
import type { ProxyEnvironment } from '../base/proxy.ts';
import { VERSION } from '../api/v1alpha1/version.ts';
import { KubeClient } from '../kube/client.ts';
import type { Connection } from '../kube/credentials.ts';
import { apiErrorFrom, isForbidden, isRefused } from '../kube/errors.ts';
import type { Method } from '../kube/transport.ts';
import { readAuthority } from './authority.ts';
import { CommandError, EXIT, explained } from './errors.ts';
import { proxyFor } from './proxy.ts';
import { CERTIFICATE_AUTHORITY_KEY } from './settingsfile.ts';
import { printable } from './text.ts';

const ROOT = '/api/v1';
/** Request for the facts about the cluster. The HTTP API answers this request even if the request has no token. */
export const CLUSTER_INFO: ServerRequest = { method: 'GET', path: '/cluster-info' };
const OLDER =
  'The HTTP API of the cluster does not support this command, because the HTTP API has an older release';
/** Message of the HTTP API for a path that it does not have. */
const NO_SUCH_ROUTE = /^[A-Z]+ \/\S+ not found$/;

/**
 * Sends a request to the HTTP API, and resolves with the body of the answer.
 *
 * @throws ApiError when the HTTP API refuses the request; CommandError when no HTTP API of Berth answers.
 */
export type HttpApi = (request: ServerRequest) => Promise<unknown>;

/** Servers of the user's cluster. */
export interface Servers {
  /** Connection to the API server. */
  readonly connection: Connection;
  /** Address of the HTTP API. It is undefined if the settings have none. */
  readonly apiURL: string | undefined;
  /** Path of a PEM file with the private authority of the HTTP API's certificate. It is undefined if the settings have none. */
  readonly apiAuthority?: string | undefined;
  /** Variables of the command. They can name a proxy to the HTTP API. */
  readonly environment: ProxyEnvironment;
}

export interface ServerRequest {
  readonly method: Method;
  /** Path below `/api/v1`. The parts of the path are encoded as for a URL. */
  readonly path: string;
  readonly body?: object;
}

/**
 * Resolves with the result of `direct`, which asks the API server. If the API server refuses because the user lacks a right, resolves with
 * the result of `ask`, which asks the HTTP API.
 *
 * @throws errors of `direct` and `ask`; CommandError when the user lacks a right and the HTTP API cannot be used.
 */
export async function directOrAsked<T>(
  servers: Servers,
  signal: AbortSignal,
  direct: () => Promise<T>,
  ask: (server: HttpApi) => Promise<T>,
): Promise<T> {
  const { apiURL, connection } = servers;
  try {
    return await direct();
  } catch (error) {
    const lacksRight = isForbidden(error) && !isRefused(error);
    if (!lacksRight || !hasToken(connection)) {
      throw error;
    }
    if (apiURL === undefined) {
      throw new CommandError(
        `${printable(messageOf(error))}. Members of a namespace need the HTTP API of Berth for this command: set its address with \`berth config set --api-url URL\``,
        EXIT.denied,
      );
    }
    return await withServer({ ...servers, apiURL, signal }, ask);
  }
}

function hasToken({ token, tokenFile, tokenPlugin }: Connection): boolean {
  return (token ?? tokenFile ?? tokenPlugin) !== undefined;
}

async function withServer<T>(
  {
    apiURL,
    apiAuthority,
    connection,
    environment,
    signal,
  }: Servers & { apiURL: string; signal: AbortSignal },
  ask: (server: HttpApi) => Promise<T>,
): Promise<T> {
  const [{ Transport }, { createPool }, { Registry }] = await Promise.all([
    import('../kube/transport.ts'),
    import('../kube/pool.ts'),
    import('prom-client'),
  ]);
  const certificateAuthority = await authorities(apiAuthority);
  const pool = createPool({ server: apiURL, certificateAuthority }, undefined, proxyFor(apiURL, environment));
  const options = { metrics: new Registry(), userAgent: `berth/${VERSION}`, pool };
  const stranger = new Transport({ server: apiURL }, options);
  const { token, tokenFile, tokenPlugin } = connection;
  const member = new Transport(
    { server: apiURL, token, tokenFile, tokenPlugin },
    { ...options, metrics: new Registry() },
  );
  try {
    // The settings apply to all contexts, so the HTTP API in the settings might belong to another cluster. The request that checks the
    // cluster has no token, because the token of one cluster must not reach the server of another cluster.
    const info = await answerOf(new KubeClient(stranger), CLUSTER_INFO, signal);
    requireSameCluster(info, connection, apiURL);
    const client = new KubeClient(member);
    return await ask(async (request) => await answerOf(client, request, signal));
  } catch (error) {
    throw explained(error, `HTTP API ${apiURL}`, 'the settings, or NODE_EXTRA_CA_CERTS');
  } finally {
    await pool.destroy();
  }
}

/** Returns the authorities of Node.js with the private one as PEM. The result is undefined without a private one, and Node.js takes its own. */
async function authorities(own: string | undefined): Promise<string | undefined> {
  return own === undefined
    ? undefined
    : [...getCACertificates('default'), await readAuthority(own, CERTIFICATE_AUTHORITY_KEY)].join('\n');
}

async function answerOf(
  client: KubeClient,
  { method, path, body: sent }: ServerRequest,
  signal: AbortSignal,
): Promise<unknown> {
  const options = { body: sent, signal };
  const { status, body, retryAfterMilliseconds } = await client.raw(method, ROOT + path, options);
  if (status >= 400) {
    const error = apiErrorFrom(body, status, retryAfterMilliseconds);
    throw NO_SUCH_ROUTE.test(error.message) ? new CommandError(OLDER, EXIT.notFound) : error;
  }
  if (typeof body !== 'object' || body === null) {
    throw new CommandError('There is no HTTP API of Berth at the address of the settings', EXIT.usage);
  }
  return body;
}

/**
 * Checks that the HTTP API belongs to the cluster of the connection. The HTTP API tells the URL and the certificate authority of its API
 * server. The function compares them with the URL and the certificate authority of the connection. If both URLs name the same server, their
 * paths must be equal, because a server can be a proxy with a different path for each cluster. If the URLs name different servers, the
 * certificate authorities must be equal, because one API server can have several addresses.
 *
 * @throws CommandError when the HTTP API belongs to another cluster.
 */
function requireSameCluster(
  info: unknown,
  { server, certificateAuthority = '' }: Connection,
  apiURL: string,
) {
  const { apiEndpoint, certData } = info as { apiEndpoint?: unknown; certData?: unknown };
  const own = parseCertificates(certificateAuthority);
  const given = typeof certData === 'string' ? parseCertificates(certData) : [];
  const isSameAuthority = given.length > 0 && given.every((certificate) => own.includes(certificate));
  const address = URL.parse(typeof apiEndpoint === 'string' ? apiEndpoint : '');
  const ownAddress = new URL(server);
  const isSameServer = address?.origin === ownAddress.origin;
  if (isSameServer ? pathOf(address) !== pathOf(ownAddress) : !isSameAuthority) {
    throw new CommandError(
      `The settings name the HTTP API ${apiURL}, but it does not belong to the cluster of ${server}. Choose another context with --context, or another HTTP API with \`berth config set --api-url URL\``,
      EXIT.usage,
    );
  }
}

/** Returns the path of the address without slashes at its end. */
function pathOf({ pathname }: URL): string {
  return pathname.replace(/\/+$/, '');
}

/**
 * Returns the complete certificates in a PEM text. Removes all white space, because the same certificate can have different white space in
 * two files.
 */
function parseCertificates(pem: string): string[] {
  return pem.replace(/\s/g, '').match(/-----BEGINCERTIFICATE-----[^-]+-----ENDCERTIFICATE-----/g) ?? [];
}

/** Returns the path of a resource in the namespace. Encodes the parts as for a URL. */
export function namespacePath(namespace: string, ...parts: readonly string[]): string {
  return ['', 'namespaces', namespace, ...parts].map(encodeURIComponent).join('/');
}
