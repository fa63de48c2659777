/**
 * Makes tokens of service accounts with the TokenRequest API of Kubernetes. A token "without expiration" gets the longest life: 136 years,
 * unless the API server has its own limit. A Secret could have a token that never expires, but somebody would need the right to read
 * Secrets.
 */
import { lifeSeconds, type Token, type TokenLife } from '../../api/http/serviceaccount.ts';
import type { KubeClient } from '../../kube/client.ts';
import { SERVICE_ACCOUNTS } from '../../kube/core.ts';
import { apiErrorFrom } from '../../kube/errors.ts';
import { pathOf } from '../../kube/objects.ts';
import { checked, type NamespacedRef } from '../callers/objects.ts';

/** Returns a token and the time of its end, which the API server chose. @throws ApiError when the API server refuses. */
export async function requestToken(client: KubeClient, ref: NamespacedRef, life: TokenLife): Promise<Token> {
  const path = pathOf(SERVICE_ACCOUNTS, checked(SERVICE_ACCOUNTS, ref), 'token');
  const { status, body, retryAfterMilliseconds } = await client.raw('POST', path, {
    body: {
      apiVersion: 'authentication.k8s.io/v1',
      kind: 'TokenRequest',
      spec: { expirationSeconds: lifeSeconds(life) },
    },
  });
  if (status >= 400) {
    throw apiErrorFrom(body, status, retryAfterMilliseconds);
  }
  const { token, expirationTimestamp } = (body as { status: Token }).status;
  return { token, expirationTimestamp };
}
