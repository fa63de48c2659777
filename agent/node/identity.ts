/** Who the agent is to the cluster: a node's identity got with a bootstrap kubeconfig, or a kubeconfig used as it is. */
import { X509Certificate } from 'node:crypto';
import { existsSync, mkdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import type { Logger } from 'pino';
import type { Registry } from 'prom-client';
import { stringify } from 'yaml';
import { KubeClient } from '../../kube/client.ts';
import { type Connection, loadConnection } from '../../kube/credentials.ts';
import { Backoff, pause } from '../../kube/time.ts';
import { Transport } from '../../kube/transport.ts';
import type { AgentConfig } from '../config.ts';
import { type Certificate, isFinal, nodeUser, requestCertificate } from './certificate.ts';

export interface Identity {
  connection: Connection;
  /** The agent holds a node's certificate and must renew it; false with a kubeconfig of somebody else's making. */
  isNode: boolean;
}

/** Where a node's identity lies: certificate and key in one file, so that both are replaced at once. */
export function identityFiles(dataDirectory: string): {
  kubeconfig: string;
  client: string;
  serving: string;
} {
  return {
    kubeconfig: path.join(dataDirectory, 'kubeconfig'),
    client: path.join(dataDirectory, 'pki', 'client.pem'),
    serving: path.join(dataDirectory, 'pki', 'serving.pem'),
  };
}

export interface IdentityOptions {
  config: AgentConfig;
  logger: Logger;
  metrics: Registry;
  signal: AbortSignal;
}

/** The cluster refused this host, in its words. */
export class JoinError extends Error {
  override readonly name = 'JoinError';
}

const RETRY_FIRST_MILLISECONDS = 1_000;
const RETRY_CAP_MILLISECONDS = 30_000;

/** Takes up the identity the agent has, or joins the cluster. Throws {@link JoinError} when it is refused. */
export async function takeIdentity(o: IdentityOptions): Promise<Identity> {
  const { config, logger } = o;
  if (config.kubeconfig !== undefined) {
    return { connection: await loadConnection({ kubeconfigPath: config.kubeconfig }), isNode: false };
  }
  const files = identityFiles(config.dataDirectory);
  if (existsSync(files.kubeconfig) && isUsable(readPair(files.client), config.nodeName)) {
    return { connection: await loadConnection({ kubeconfigPath: files.kubeconfig }), isNode: true };
  }
  const bootstrap = await loadConnection({ kubeconfigPath: config.bootstrapKubeconfig });
  logger.info({ nodeName: config.nodeName, server: bootstrap.server }, 'asking to join the cluster');
  const transport = new Transport(bootstrap, { metrics: o.metrics, userAgent: 'berth-agent' });
  try {
    writePair(files.client, await join(new KubeClient(transport), o));
    writeSecretFile(files.kubeconfig, kubeconfigText(bootstrap, files.client));
  } finally {
    await transport.close();
  }
  logger.info({ user: nodeUser(config.nodeName) }, 'joined the cluster');
  return { connection: await loadConnection({ kubeconfigPath: files.kubeconfig }), isNode: true };
}

/** Asks until somebody answers: a cluster that is away at the host's boot is back before long. */
async function join(client: KubeClient, o: IdentityOptions): Promise<Certificate> {
  const { nodeName, certificates } = o.config;
  const request = {
    nodeName,
    kind: 'client',
    ipAddresses: [],
    expirationSeconds: certificates.clientSeconds,
  } as const;
  const backoff = new Backoff({
    firstMilliseconds: RETRY_FIRST_MILLISECONDS,
    capMilliseconds: RETRY_CAP_MILLISECONDS,
  });
  for (;;) {
    try {
      return await requestCertificate(client, request, o.signal);
    } catch (error) {
      if (isFinal(error)) {
        throw new JoinError(error instanceof Error ? error.message : String(error), { cause: error });
      }
      o.signal.throwIfAborted();
      o.logger.warn({ err: error }, 'the cluster does not answer, trying again');
    }
    await pause(backoff.next(), o.signal);
  }
}

/** A certificate and its key from one file; undefined when there is none. */
export function readPair(file: string): Certificate | undefined {
  if (!existsSync(file)) {
    return undefined;
  }
  const text = readFileSync(file, 'utf8');
  const keyAt = text.search(/-----BEGIN [A-Z ]*PRIVATE KEY-----/);
  return keyAt < 0 ? undefined : { certificate: text.slice(0, keyAt), key: text.slice(keyAt) };
}

export function writePair(file: string, pair: Certificate): void {
  writeSecretFile(file, `${pair.certificate.trimEnd()}\n${pair.key.trimEnd()}\n`);
}

/** Whether a certificate is this Node's and still valid. */
export function isUsable(pair: Certificate | undefined, nodeName: string): boolean {
  if (pair === undefined) {
    return false;
  }
  const { subject, validTo } = new X509Certificate(pair.certificate);
  return subject.split('\n').includes(`CN=${nodeUser(nodeName)}`) && Date.parse(validTo) > Date.now();
}

function writeSecretFile(file: string, text: string): void {
  mkdirSync(path.dirname(file), { recursive: true, mode: 0o700 });
  writeFileSync(`${file}.tmp`, text, { mode: 0o600 });
  renameSync(`${file}.tmp`, file);
}

function kubeconfigText(bootstrap: Connection, clientFile: string): string {
  const name = 'berth';
  const authority = bootstrap.certificateAuthority;
  return stringify({
    apiVersion: 'v1',
    kind: 'Config',
    clusters: [
      {
        name,
        cluster: {
          server: bootstrap.server,
          ...(authority === undefined
            ? {}
            : { 'certificate-authority-data': Buffer.from(authority).toString('base64') }),
          ...(bootstrap.serverName === undefined ? {} : { 'tls-server-name': bootstrap.serverName }),
        },
      },
    ],
    users: [{ name, user: { 'client-certificate': clientFile, 'client-key': clientFile } }],
    contexts: [{ name, context: { cluster: name, user: name } }],
    'current-context': name,
  });
}
