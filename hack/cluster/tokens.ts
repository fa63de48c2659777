/**
 * Tokens of ServiceAccounts for components outside the cluster, where no kubelet renews them. The harness renews the
 * operator's while its process lives; the process of `make cluster-up` ends at once, and its clusters get a token that
 * outlasts them instead of a process for renewals.
 */
import type { KubeClient } from '../../kube/client.ts';
import { requestToken } from './serviceaccounts.ts';

const NAMESPACE = 'berth-system';
/** What a Pod's projected token has. */
const RENEWED_SECONDS = 3600;
/** For clusters that outlive this process. */
const LASTING_SECONDS = 30 * 24 * 3600;
/** Often enough that several failures in a row do no harm. */
const RENEWAL_MILLISECONDS = 15 * 60_000;

/** Asks for a token of a ServiceAccount in `berth-system`. */
export async function componentToken(client: KubeClient, name: string, lasting: boolean): Promise<string> {
  const seconds = lasting ? LASTING_SECONDS : RENEWED_SECONDS;
  return await requestToken(client, { namespace: NAMESPACE, name }, seconds);
}

/** Calls `renew` now and then until the returned function is called. A failure is told, and tried again. */
export function renewRegularly(renew: () => Promise<void>, onError: (error: unknown) => void): () => void {
  const timer = setInterval(() => {
    renew().catch(onError);
  }, RENEWAL_MILLISECONDS);
  timer.unref();
  return () => clearInterval(timer);
}
