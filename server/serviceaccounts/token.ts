/**
 * Makes tokens of service accounts by the request for a token of Kubernetes. A Secret with a token would have no expiration at all, but
 * somebody would need the right to read Secrets. So a token without expiration gets the longest life, 136 years unless the API server has
 * a limit of its own.
 */
import { lifeSeconds, type Token, type TokenLife } from '../../api/http/serviceaccount.ts';
import type { KubeClient } from '../../kube/client.ts';
import { SERVICE_ACCOUNTS } from '../../kube/core.ts';
import { apiErrorFrom } from '../../kube/errors.ts';
import { pathOf } from '../../kube/objects.ts';
import { checked, type NamespacedRef } from '../callers/objects.ts';

/** Returns a token with the end that the API server gave it. @throws ApiError when the API server refuses. */
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
