/** Makes tokens of service accounts with the TokenRequest API. */
import type { KubeClient } from './client.ts';
import { SERVICE_ACCOUNTS } from './core.ts';
import { pathOf } from './objects.ts';

export interface AccountToken {
  token: string;
  /** RFC 3339 time at which the token expires. The API server chooses this time. */
  expirationTimestamp?: string | undefined;
  /** Lifetime in seconds that the API server granted. It is shorter than the requested one if the cluster limits lifetimes. */
  grantedSeconds: number;
}

/** The answer of the API server. It writes the granted lifetime into the spec. */
interface TokenRequest {
  readonly spec?: { readonly expirationSeconds?: number };
  readonly status: { readonly token: string; readonly expirationTimestamp?: string };
}

/**
 * Returns a token. `expirationSeconds` is its wanted lifetime, at least 600. The API server has a setting for the longest lifetime, and
 * shortens longer ones. @throws ApiError when the API server refuses.
 */
export async function requestToken(
  client: KubeClient,
  account: { namespace: string; name: string },
  expirationSeconds: number,
): Promise<AccountToken> {
  const path = pathOf(SERVICE_ACCOUNTS, account, 'token');
  const { body } = await client.call('POST', path, {
    body: { apiVersion: 'authentication.k8s.io/v1', kind: 'TokenRequest', spec: { expirationSeconds } },
  });
  const { spec, status } = body as TokenRequest;
  const { token, expirationTimestamp } = status;
  return { token, expirationTimestamp, grantedSeconds: spec?.expirationSeconds ?? expirationSeconds };
}
