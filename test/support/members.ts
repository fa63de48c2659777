/** ServiceAccounts with roles, whose tokens tests send to the HTTP API. */
import { join } from 'node:path';
import type { Cluster } from '../../hack/cluster/index.ts';
import { writeKubeconfig } from '../../hack/cluster/kubeconfig.ts';
import { requestToken, SERVICE_ACCOUNTS } from '../../hack/cluster/tokens.ts';
import { loadConnection } from '../../kube/credentials.ts';

const TOKEN_SECONDS = 3600;

export interface Membership {
  /** Name of a ClusterRole. */
  role: string;
  /** Namespaces in which the account has the role, or the whole cluster. By default, this is the namespace of the account. */
  in?: readonly string[] | 'cluster';
}

/**
 * Creates the account and returns a token of it. The bindings have the name of the account. The name of a ClusterRoleBinding begins with
 * the namespace. The API server needs some time to apply them.
 */
export async function accountToken(
  cluster: Cluster,
  account: { namespace: string; name: string },
  membership?: Membership,
): Promise<string> {
  const client = cluster.client();
  await client.create(SERVICE_ACCOUNTS, { metadata: account });
  for (const binding of membership === undefined ? [] : bindings(account, membership)) {
    const subject = `--serviceaccount=${account.namespace}:${account.name}`;
    await cluster.kubectl(['create', ...binding, `--clusterrole=${membership?.role}`, subject]);
  }
  return await requestToken(client, account, TOKEN_SECONDS);
}

/** Returns the arguments that name each binding. */
function bindings(
  { namespace, name }: { namespace: string; name: string },
  { in: where = [namespace] }: Membership,
): string[][] {
  return where === 'cluster'
    ? [['clusterrolebinding', `${namespace}-${name}`]]
    : where.map((one) => ['rolebinding', name, '-n', one]);
}

/** Writes a kubeconfig for the caller with this token into the folder of the cluster, and returns its path. `name` must be unique there. */
export async function writeTokenKubeconfig(
  { kubeconfig, directory }: Pick<Cluster, 'kubeconfig' | 'directory'>,
  token: string,
  name: string,
): Promise<string> {
  const { server, certificateAuthority: authority = '' } = await loadConnection({
    kubeconfigPath: kubeconfig,
  });
  const path = join(directory, `cli-${name}.kubeconfig`);
  writeKubeconfig(path, { server, authority, user: { kind: 'token', token } });
  return path;
}
