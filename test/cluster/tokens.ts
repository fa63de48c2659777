/**
 * The operator's token. Outside a Pod nothing renews it, so the harness does while its process lives; the process of
 * `make cluster-up` ends at once, and its clusters get a token that outlasts them instead of a process for renewals.
 */
import type { KubeClient } from '../../kube/client.ts';
import { SERVICE_ACCOUNTS, type TokenRequest } from '../../kube/core.ts';
import { writeFileAtomically } from './kubeconfig.ts';

const OPERATOR = { namespace: 'berth-system', name: 'berth-operator' };
/** What a Pod's projected token has. */
const RENEWED_SECONDS = 3600;
/** For clusters that outlive this process. */
const LASTING_SECONDS = 30 * 24 * 3600;
/** Often enough that several failures in a row do no harm. */
const RENEWAL_MILLISECONDS = 15 * 60_000;

/** Asks for a token of the operator's ServiceAccount. */
export async function requestToken(client: KubeClient, lasting: boolean): Promise<string> {
  const answer = await client.createSubresource<object, TokenRequest>(SERVICE_ACCOUNTS, OPERATOR, 'token', {
    apiVersion: 'authentication.k8s.io/v1',
    kind: 'TokenRequest',
    spec: { expirationSeconds: lasting ? LASTING_SECONDS : RENEWED_SECONDS },
  });
  const token = answer.status?.token;
  if (token === undefined) throw new Error(`TokenRequest for ${OPERATOR.name} answered without a token`);
  return token;
}

/** Renews the token in the file until the returned function is called. A failure is told, and tried again. */
export function renewToken(client: KubeClient, path: string, onError: (error: unknown) => void): () => void {
  const timer = setInterval(() => {
    requestToken(client, false).then((token) => writeFileAtomically(path, token), onError);
  }, RENEWAL_MILLISECONDS);
  timer.unref();
  return () => clearInterval(timer);
}
