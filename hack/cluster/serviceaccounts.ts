/** Requests tokens of ServiceAccounts. The product itself makes neither ServiceAccounts nor tokens. */
import type { KubeClient } from '../../kube/client.ts';
import { type KubeObject, pathOf, resource } from '../../kube/objects.ts';

export const SERVICE_ACCOUNTS = resource<KubeObject>({
  apiVersion: 'v1',
  kind: 'ServiceAccount',
  plural: 'serviceaccounts',
  namespaced: true,
});

/** Returns a token of the account that is valid for this number of seconds, at least 600. @throws Error with the API server's refusal. */
export async function requestToken(
  client: KubeClient,
  account: { namespace: string; name: string },
  expirationSeconds: number,
): Promise<string> {
  const { status, body } = await client.raw('POST', pathOf(SERVICE_ACCOUNTS, account, 'token'), {
    body: { apiVersion: 'authentication.k8s.io/v1', kind: 'TokenRequest', spec: { expirationSeconds } },
  });
  if (status !== 201) {
    throw new Error(
      `a token of ${account.namespace}/${account.name}: HTTP ${status} ${JSON.stringify(body)}`,
    );
  }
  return (body as { status: { token: string } }).status.token;
}
