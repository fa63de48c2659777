/** Makes tokens of service accounts with the TokenRequest API. */
import type { KubeClient } from './client.ts';
import { SERVICE_ACCOUNTS } from './core.ts';
import { pathOf } from './objects.ts';

export interface AccountToken {
  token: string;
  /** RFC 3339 time at which the token expires. The API server chooses this time. */
  expirationTimestamp?: string | undefined;
}

/** Returns a token. `expirationSeconds` is its lifetime, at least 600. @throws ApiError when the API server refuses. */
export async function requestToken(
  client: KubeClient,
  account: { namespace: string; name: string },
  expirationSeconds: number,
): Promise<AccountToken> {
  const path = pathOf(SERVICE_ACCOUNTS, account, 'token');
  const { body } = await client.call('POST', path, {
    body: { apiVersion: 'authentication.k8s.io/v1', kind: 'TokenRequest', spec: { expirationSeconds } },
  });
  const { token, expirationTimestamp } = (body as { status: AccountToken }).status;
  return { token, expirationTimestamp };
}
