/** Requests tokens of ServiceAccounts. */
import { requestToken as request } from '../../kube/accounttoken.ts';
import type { KubeClient } from '../../kube/client.ts';

export { SERVICE_ACCOUNTS } from '../../kube/core.ts';

/** Returns a token of the account that is valid for this number of seconds, at least 600. @throws ApiError when the API server refuses. */
export async function requestToken(
  client: KubeClient,
  account: { namespace: string; name: string },
  expirationSeconds: number,
): Promise<string> {
  return (await request(client, account, expirationSeconds)).token;
}
