/** Bootstrap tokens, with which hosts join. */
import { randomBytes } from 'node:crypto';
import { join } from 'node:path';
import type { KubeClient } from '../../kube/client.ts';
import { type Connection } from '../../kube/credentials.ts';
import { SECRETS } from '../../kube/core.ts';
import { writeKubeconfig } from './kubeconfig.ts';

/** Long enough for a host to join, short enough that a forgotten file is worth nothing. */
const TOKEN_MILLISECONDS = 24 * 3_600_000;
const GROUP = 'system:bootstrappers:berth';

/** Makes a token and writes a kubeconfig with it; resolves with the file's path. */
export async function createBootstrapKubeconfig(
  client: KubeClient,
  connection: Connection,
  directory: string,
): Promise<string> {
  const id = randomBytes(3).toString('hex');
  const secret = randomBytes(8).toString('hex');
  await client.create(SECRETS, {
    apiVersion: 'v1',
    kind: 'Secret',
    type: 'bootstrap.kubernetes.io/token',
    metadata: { name: `bootstrap-token-${id}`, namespace: 'kube-system' },
    data: encode({
      'token-id': id,
      'token-secret': secret,
      'usage-bootstrap-authentication': 'true',
      'auth-extra-groups': GROUP,
      expiration: new Date(Date.now() + TOKEN_MILLISECONDS).toISOString(),
    }),
  });
  const path = join(directory, `bootstrap-${id}.kubeconfig`);
  writeKubeconfig(path, {
    server: connection.server,
    authority: connection.certificateAuthority ?? '',
    user: { kind: 'token', token: `${id}.${secret}` },
  });
  return path;
}

function encode(values: Record<string, string>): Record<string, string> {
  return Object.fromEntries(
    Object.entries(values).map(([key, value]) => [key, Buffer.from(value).toString('base64')]),
  );
}
