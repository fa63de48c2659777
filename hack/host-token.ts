/**
 * `make host-token NAME=rack1-7` makes a bootstrap token with which one host joins, once, within a day. It prints a kubeconfig with the
 * token. It uses the cluster and the user of the current kubeconfig. The user must be allowed to create Secrets in `kube-system`.
 */
import { randomBytes } from 'node:crypto';
import { parseArgs } from 'node:util';
import { stringify } from 'yaml';
import { BOOTSTRAP_GROUP, bootstrapGroupOf, isHostName } from '../api/v1alpha1/names.ts';
import { KubeClient } from '../kube/client.ts';
import { SECRETS } from '../kube/core.ts';
import { type Connection, loadConnection } from '../kube/credentials.ts';
import { createMetrics } from '../kube/metrics.ts';
import { Transport } from '../kube/transport.ts';
import { runCommand } from './command.ts';

/** Lifetime of a token. A host has enough time to join, and a forgotten file soon becomes useless. */
const TOKEN_MILLISECONDS = 24 * 3_600_000;
/** Lengths in bytes of the two parts of a token. Kubernetes requires 6 and 16 hexadecimal digits, two per byte. */
const ID_BYTES = 3;
const SECRET_BYTES = 8;

export interface HostToken {
  /** Public part of the token. The Secret is `kube-system/bootstrap-token-ID`. */
  readonly id: string;
  /** Text of a kubeconfig. It must be kept secret like a password. */
  readonly kubeconfig: string;
}

/**
 * Makes a token and its Secret.
 *
 * @param lifetimeMilliseconds time until the token expires
 * @throws Error when no host can have that name
 */
export async function createHostToken(
  client: KubeClient,
  connection: Connection,
  hostName: string,
  lifetimeMilliseconds = TOKEN_MILLISECONDS,
): Promise<HostToken> {
  if (!isHostName(hostName)) {
    throw new Error(`NAME must be a lower-case DNS label of at most 63 characters, not "${hostName}"`);
  }
  const id = randomBytes(ID_BYTES).toString('hex');
  const secret = randomBytes(SECRET_BYTES).toString('hex');
  await client.create(SECRETS, {
    type: 'bootstrap.kubernetes.io/token',
    metadata: { name: `bootstrap-token-${id}`, namespace: 'kube-system' },
    stringData: {
      description: `The Berth host ${hostName} joins with it`,
      'token-id': id,
      'token-secret': secret,
      'usage-bootstrap-authentication': 'true',
      'auth-extra-groups': [BOOTSTRAP_GROUP, bootstrapGroupOf(hostName)].join(','),
      expiration: new Date(Date.now() + lifetimeMilliseconds).toISOString(),
    },
  });
  return { id, kubeconfig: kubeconfigText(connection, `${id}.${secret}`) };
}

function kubeconfigText({ server, serverName, certificateAuthority }: Connection, token: string): string {
  const name = 'berth';
  const authority = certificateAuthority && {
    'certificate-authority-data': Buffer.from(certificateAuthority).toString('base64'),
  };
  const cluster = { server, ...(serverName && { 'tls-server-name': serverName }), ...authority };
  return stringify(
    {
      apiVersion: 'v1',
      kind: 'Config',
      'current-context': name,
      clusters: [{ name, cluster }],
      contexts: [{ name, context: { cluster: name, user: name } }],
      users: [{ name, user: { token } }],
    },
    { lineWidth: 0 },
  );
}

async function main(): Promise<void> {
  const { values } = parseArgs({ options: { name: { type: 'string', default: '' } } });
  const connection = await loadConnection();
  const transport = new Transport(connection, { metrics: createMetrics(), userAgent: 'berth-host-token' });
  try {
    const { kubeconfig } = await createHostToken(new KubeClient(transport), connection, values.name);
    process.stdout.write(kubeconfig);
  } finally {
    await transport.close();
  }
}

if (import.meta.main) {
  await runCommand(main);
}
