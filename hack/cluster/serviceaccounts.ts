/** Requests tokens of ServiceAccounts. */
import type { KubeClient } from '../../kube/client.ts';
import { SERVICE_ACCOUNTS } from '../../kube/core.ts';
import { pathOf } from '../../kube/objects.ts';

export { SERVICE_ACCOUNTS } from '../../kube/core.ts';

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
