/** Clients of a test's cluster under identities that an attacker may hold. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { createKey, readKey } from '../../../kube/certificates/certificate.ts';
import { KubeClient } from '../../../kube/client.ts';
import { type Connection, loadConnection } from '../../../kube/credentials.ts';
import { createMetrics } from '../../../kube/metrics.ts';
import { Transport } from '../../../kube/transport.ts';
import type { Cluster } from '../../../hack/cluster/index.ts';
import { issue } from '../../../hack/cluster/authority.ts';

/** Returns a client with the rights of a node of this name. Its Node need not exist. */
export async function asNode(cluster: Cluster, name: string): Promise<KubeClient> {
  const pki = join(cluster.directory, 'pki');
  const key = await createKey();
  const authority = {
    key: readKey(readFileSync(join(pki, 'ca.key'), 'utf8')),
    certificate: readFileSync(join(pki, 'ca.crt'), 'utf8'),
  };
  const clientCertificate = await issue(authority, {
    key,
    commonName: `system:node:${name}`,
    organizations: ['system:nodes'],
    usages: ['client'],
  });
  return await clientOf(cluster, { clientCertificate, clientKey: key.pem });
}

/** Returns a client with these credentials. */
export async function clientOf(
  cluster: Cluster,
  credentials: Pick<Connection, 'clientCertificate' | 'clientKey' | 'token'>,
): Promise<KubeClient> {
  const { server, certificateAuthority } = await loadConnection({ kubeconfigPath: cluster.kubeconfig });
  return new KubeClient(
    new Transport({ server, certificateAuthority, ...credentials }, { metrics: createMetrics() }),
  );
}
