/** Starts the HTTP API of the demo, and makes a token for an administrator and one for a member of the default namespace. */
import { mkdir } from 'node:fs/promises';
import { join, relative } from 'node:path';
import { writeWholeSync } from '../base/files.ts';
import type { Cluster } from './cluster/index.ts';
import { requestToken, SERVICE_ACCOUNTS } from './cluster/serviceaccounts.ts';

/** Validity of the tokens in seconds. The demo may be kept for some weeks. */
const TOKEN_SECONDS = 30 * 24 * 3600;

/**
 * Starts the server. Writes its address (`server.url`), the certificate of its authority (`authority.crt`) and the tokens
 * (`tokens/admin`, `tokens/dev`) into the folder of the demo. Returns a command that lists the VMs, and the address of the power API.
 */
export async function startDemoServer(
  cluster: Cluster,
  namespace: string,
): Promise<{ readonly list: string; readonly powerUrl: string }> {
  const { url, powerUrl, authority } = await cluster.startServer({ config: { power: { enabled: true } } });
  const path = (name: string) => join(cluster.directory, name);
  await mkdir(path('tokens'), { mode: 0o700 });
  const administrator = ['clusterrolebinding', 'demo-admin', '--clusterrole=cluster-admin'];
  const member = ['rolebinding', 'demo-dev', '--clusterrole=berth-role-dev', `--namespace=${namespace}`];
  writeWholeSync(
    path('tokens/admin'),
    await tokenOf(cluster, { namespace, name: 'demo-admin' }, administrator),
  );
  writeWholeSync(path('tokens/dev'), await tokenOf(cluster, { namespace, name: 'demo-dev' }, member));
  writeWholeSync(path('authority.crt'), authority);
  writeWholeSync(path('server.url'), url);
  const shown = (name: string) => relative(process.cwd(), path(name));
  const header = `-H "Authorization: Bearer $(cat ${shown('tokens/dev')})"`;
  const list = `curl --cacert ${shown('authority.crt')} ${header} ${url}/api/v1/namespaces/${namespace}/vms`;
  return { list, powerUrl };
}

/** Makes a ServiceAccount with these rights. Returns a token of it. */
async function tokenOf(
  cluster: Cluster,
  account: { namespace: string; name: string },
  binding: readonly string[],
): Promise<string> {
  await cluster.client().create(SERVICE_ACCOUNTS, { metadata: account });
  const subject = `--serviceaccount=${account.namespace}:${account.name}`;
  await cluster.kubectl(['create', ...binding, subject]);
  return await requestToken(cluster.client(), account, TOKEN_SECONDS);
}
