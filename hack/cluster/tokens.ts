/**
 * Requests tokens of ServiceAccounts for components outside the cluster, where no kubelet renews tokens. The harness renews the operator's
 * token while the harness's process lives. The process of `make cluster-up` ends at once, so its clusters get a token with a long validity.
 */
import type { KubeClient } from '../../kube/client.ts';
import { requestToken as request } from '../../kube/accounttoken.ts';

export { SERVICE_ACCOUNTS } from '../../kube/core.ts';

/** Returns a token of the account that is valid for this number of seconds, at least 600. @throws ApiError when the API server refuses. */
export async function requestToken(
  client: KubeClient,
  account: { namespace: string; name: string },
  expirationSeconds: number,
): Promise<string> {
  return (await request(client, account, expirationSeconds)).token;
}

const NAMESPACE = 'berth-system';
/** Validity of a token that is renewed, the same as that of a Pod's projected token. */
const RENEWED_SECONDS = 3600;
/** Validity of a token for clusters that outlive this process. */
const LASTING_SECONDS = 30 * 24 * 3600;
/** Interval between renewals. It is so short that several consecutive failures do no harm. */
const RENEWAL_MILLISECONDS = 15 * 60_000;

/** Requests a token of a ServiceAccount in `berth-system`. */
export async function componentToken(client: KubeClient, name: string, lasting: boolean): Promise<string> {
  const seconds = lasting ? LASTING_SECONDS : RENEWED_SECONDS;
  return await requestToken(client, { namespace: NAMESPACE, name }, seconds);
}

/**
 * Calls `renew` at each interval until the returned function is called. A failure is reported to `onError`, and the next interval tries
 * again.
 */
export function renewRegularly(renew: () => Promise<void>, onError: (error: unknown) => void): () => void {
  const timer = setInterval(() => {
    renew().catch(onError);
  }, RENEWAL_MILLISECONDS);
  timer.unref();
  return () => clearInterval(timer);
}
