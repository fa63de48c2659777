/** The agent's identity in the cluster: a node's identity from a bootstrap kubeconfig, or a kubeconfig that is used unchanged. */
import { existsSync, readFileSync, rmSync } from 'node:fs';
import type { Logger } from 'pino';
import type { Registry } from 'prom-client';
import { stringify } from 'yaml';
import { Backoff } from '../../base/backoff.ts';
import { AGENT_NAME, FIRST_CERTIFICATE_SECONDS } from '../../api/v1alpha1/names.ts';
import {
  type Certificate,
  createKey,
  type PrivateKey,
  readKey,
} from '../../kube/certificates/certificate.ts';
import { KubeClient } from '../../kube/client.ts';
import { type Connection, loadConnection } from '../../kube/credentials.ts';
import { pause } from '../../base/time.ts';
import { Transport } from '../../kube/transport.ts';
import { isMissing, messageOf } from '../../base/errors.ts';
import {
  CertificateRefusedError,
  identityFiles,
  type IdentitySettings,
  isFinal,
  isUsable,
  nodeUser,
  readPair,
  requestCertificate,
  writePair,
  writeSecretFile,
} from './certificates.ts';

export interface Identity {
  connection: Connection;
  /** Whether the agent has a node's certificate, which it must renew. False if the configuration sets the field `kubeconfig`. */
  isNode: boolean;
}

export interface IdentityOptions {
  config: IdentitySettings;
  logger: Logger;
  metrics: Registry;
  signal: AbortSignal;
}

/** Error if this host cannot join the cluster. The message contains the reason, for example the reason that the cluster gave. */
export class JoinError extends Error {
  override readonly name = 'JoinError';
}

const RETRY_FIRST_MILLISECONDS = 1_000;
const RETRY_CAP_MILLISECONDS = 30_000;
/**
 * Time limit for checking the stored certificate with the API server, in milliseconds. The limit is short, because the work on machines
 * waits for this check when the agent starts.
 */
const REVIEW_MILLISECONDS = 10_000;
/**
 * Request that asks the API server for the agent's own identity. Only one result matters: whether the API server knows the certificate. The
 * API server checks this before it checks permissions, so the agent needs no permission.
 */
const SELF_REVIEW = { apiVersion: 'authentication.k8s.io/v1', kind: 'SelfSubjectReview' } as const;
const UNAUTHORIZED = 401;

/**
 * Uses the stored identity, or joins the cluster. If the cluster does not know the stored identity, the host joins again. If the bootstrap
 * kubeconfig can be read, the API server's address and certificate authority come from this file.
 *
 * @throws JoinError when the cluster refuses this host, or when the host must join and its bootstrap kubeconfig cannot be read.
 */
export async function takeIdentity(o: IdentityOptions): Promise<Identity> {
  const { config, logger } = o;
  if (config.kubeconfig !== undefined) {
    return { connection: await loadConnection({ kubeconfigPath: config.kubeconfig }), isNode: false };
  }
  const bootstrap = await readBootstrap(o);
  const stored = await storedConnection(config, bootstrap);
  if (stored === undefined) {
    return await joinWith(await requireBootstrap(config), o);
  }
  if (!(await isRefused(stored, o))) {
    return { connection: stored, isNode: true };
  }
  const why = { nodeName: config.nodeName, server: stored.server };
  if (bootstrap === undefined) {
    logger.warn(
      why,
      'The cluster refuses the certificate of this host; give the agent a bootstrap kubeconfig',
    );
    return { connection: stored, isNode: true };
  }
  logger.warn(why, 'The cluster refuses the certificate of this host; the host joins again');
  return await joinWith(bootstrap, o);
}

/**
 * Reads the bootstrap kubeconfig. If the file cannot be read, the result is undefined. This is not an error, because administrators often
 * remove the file after a host has joined.
 */
async function readBootstrap({ config, logger }: IdentityOptions): Promise<Connection | undefined> {
  try {
    return await loadConnection({ kubeconfigPath: config.bootstrapKubeconfig });
  } catch (error) {
    logger[isMissing(error) ? 'info' : 'warn'](
      { reason: messageOf(error) },
      'The bootstrap kubeconfig could not be read',
    );
    return undefined;
  }
}

/** Reads the bootstrap kubeconfig of a host that has no valid certificate. @throws JoinError when the file cannot be read. */
async function requireBootstrap({ bootstrapKubeconfig }: IdentitySettings): Promise<Connection> {
  try {
    return await loadConnection({ kubeconfigPath: bootstrapKubeconfig });
  } catch (error) {
    const why = 'This host has no valid client certificate, so it must join with its bootstrap kubeconfig';
    throw new JoinError(`${why}. This file cannot be read: ${messageOf(error)}`, { cause: error });
  }
}

/**
 * Returns a connection with the stored certificate. The API server's address comes from the bootstrap kubeconfig. If this file cannot be
 * read, the address comes from the stored kubeconfig. The result is undefined if there is no usable certificate.
 */
async function storedConnection(
  config: IdentitySettings,
  bootstrap: Connection | undefined,
): Promise<Connection | undefined> {
  const files = identityFiles(config.dataDirectory);
  if (!isUsable(readPair(files.client), config.nodeName)) {
    return undefined;
  }
  const text = existsSync(files.kubeconfig) ? readFileSync(files.kubeconfig, 'utf8') : undefined;
  const wanted = bootstrap === undefined ? text : kubeconfigText(bootstrap, files.client);
  if (wanted === undefined) {
    return undefined;
  }
  if (wanted !== text) {
    writeSecretFile(files.kubeconfig, wanted);
  }
  return await loadConnection({ kubeconfigPath: files.kubeconfig });
}

/**
 * Reports whether the API server rejects the certificate as unknown (status 401). The result is false if the API server does not answer.
 */
async function isRefused(connection: Connection, o: IdentityOptions): Promise<boolean> {
  const transport = new Transport(connection, { metrics: o.metrics, userAgent: AGENT_NAME });
  try {
    const { status } = await transport.request({
      method: 'POST',
      path: `/apis/${SELF_REVIEW.apiVersion}/selfsubjectreviews`,
      body: SELF_REVIEW,
      signal: o.signal,
      deadlineMilliseconds: REVIEW_MILLISECONDS,
    });
    return status === UNAUTHORIZED;
  } catch (error) {
    o.signal.throwIfAborted();
    o.logger.warn(
      { err: error, server: connection.server },
      'The cluster does not answer; the agent continues with its stored certificate',
    );
    return false;
  } finally {
    await transport.close();
  }
}

/**
 * Joins again with the bootstrap kubeconfig, for a running agent whose certificate the cluster refuses. The function stores the new
 * certificate and kubeconfig, but the caller must begin to use them.
 *
 * @throws JoinError when the cluster refuses this host, or when the bootstrap kubeconfig cannot be read.
 */
export async function joinAgain(o: IdentityOptions): Promise<Certificate> {
  const bootstrap = await requireBootstrap(o.config);
  const pair = await requestToJoin(bootstrap, o);
  store(pair, bootstrap, o.config);
  return pair;
}

async function joinWith(bootstrap: Connection, o: IdentityOptions): Promise<Identity> {
  const { nodeName, dataDirectory } = o.config;
  const files = identityFiles(dataDirectory);
  const pair = await requestToJoin(bootstrap, o);
  // The old serving certificate is removed, because it can be from another cluster with another certificate authority. The removal comes
  // first, because the host counts as joined as soon as its client certificate and its kubeconfig exist.
  rmSync(files.serving, { force: true });
  store(pair, bootstrap, o.config);
  o.logger.info({ user: nodeUser(nodeName) }, 'This host has joined the cluster');
  return { connection: await loadConnection({ kubeconfigPath: files.kubeconfig }), isNode: true };
}

/** Stores a new client certificate and its kubeconfig. The key of the request is removed last, so that no crash can lose this key. */
function store(pair: Certificate, bootstrap: Connection, { dataDirectory }: IdentitySettings): void {
  const files = identityFiles(dataDirectory);
  writePair(files.client, pair);
  writeSecretFile(files.kubeconfig, kubeconfigText(bootstrap, files.client));
  rmSync(files.joining, { force: true });
}

async function requestToJoin(bootstrap: Connection, o: IdentityOptions): Promise<Certificate> {
  const { nodeName } = o.config;
  o.logger.info({ nodeName, server: bootstrap.server }, 'This host asks to join the cluster');
  const transport = new Transport(bootstrap, { metrics: o.metrics, userAgent: AGENT_NAME });
  try {
    return await join(new KubeClient(transport), o);
  } finally {
    await transport.close();
  }
}

/** Requests the client certificate, and repeats the request until the cluster answers, because an outage at boot usually ends soon. */
async function join(client: KubeClient, o: IdentityOptions): Promise<Certificate> {
  const { nodeName, certificates, dataDirectory } = o.config;
  const { joining } = identityFiles(dataDirectory);
  const request = {
    nodeName,
    kind: 'client',
    ipAddresses: [],
    tell: (message: string) => o.logger.warn(message),
    expirationSeconds: Math.min(certificates.clientSeconds, FIRST_CERTIFICATE_SECONDS),
  } as const;
  const backoff = new Backoff({
    firstMilliseconds: RETRY_FIRST_MILLISECONDS,
    capMilliseconds: RETRY_CAP_MILLISECONDS,
  });
  for (;;) {
    try {
      const isEarlier = existsSync(joining);
      const key = await joiningKey(joining);
      const pair = await requestCertificate(client, { ...request, key }, o.signal);
      // A new certificate is always used. If it seems to have expired, the clock of the host is wrong.
      if (!isEarlier || isUsable(pair, nodeName)) {
        return pair;
      }
      // An earlier start made the request, and the agent was then off for longer than the certificate's life. So the next attempt uses a new
      // key and makes a new request.
      rmSync(joining, { force: true });
      o.logger.warn({ nodeName }, 'The certificate of this host expired before the host could use it');
    } catch (error) {
      if (error instanceof CertificateRefusedError) {
        // The cluster has refused the request. Without this file, the next start uses a new key and makes a new request. After other
        // errors the file stays, because the request can still be open, and an open request would block a request with a new key.
        rmSync(joining, { force: true });
      }
      if (isFinal(error)) {
        throw new JoinError(messageOf(error), { cause: error });
      }
      o.signal.throwIfAborted();
      o.logger.warn({ err: error }, 'The cluster does not answer; the agent tries again');
    }
    await pause(backoff.next(), o.signal);
  }
}

/**
 * Returns the key for the request to join. The function saves a new key in the file before it returns the key. Otherwise a restarted agent
 * would make a second request with another key, and the operator would deny this request.
 */
async function joiningKey(file: string): Promise<PrivateKey> {
  if (existsSync(file)) {
    return readKey(readFileSync(file, 'utf8'));
  }
  const key = await createKey('ECDSA');
  writeSecretFile(file, key.pem);
  return key;
}

function kubeconfigText(bootstrap: Connection, clientFile: string): string {
  const name = 'berth';
  const authority = bootstrap.certificateAuthority;
  const cluster = {
    server: bootstrap.server,
    'certificate-authority-data':
      authority === undefined ? undefined : Buffer.from(authority).toString('base64'),
    'tls-server-name': bootstrap.serverName,
  };
  return stringify({
    apiVersion: 'v1',
    kind: 'Config',
    clusters: [{ name, cluster }],
    users: [{ name, user: { 'client-certificate': clientFile, 'client-key': clientFile } }],
    contexts: [{ name, context: { cluster: name, user: name } }],
    'current-context': name,
  });
}
