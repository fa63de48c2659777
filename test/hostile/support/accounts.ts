/** Accounts with real tokens. Their requests return refusals as answers. */
import type { KubeClient } from '../../../kube/client.ts';
import type { Method } from '../../../kube/transport.ts';
import type { Cluster } from '../../../hack/cluster/index.ts';
import { requestToken } from '../../../hack/cluster/tokens.ts';
import { clientOf } from './identities.ts';

/** Lifetime of tokens, which is longer than any test. */
const TOKEN_SECONDS = 3600;

export interface Answer {
  /** HTTP status. */
  readonly status: number;
  /** Message of the refusal. It is empty if there is none. */
  readonly message: string;
  readonly body: unknown;
}

export interface Account {
  readonly name: string;
  /** Sends one request, and returns refusals as answers. If `path` has `dryRun=All`, nothing is stored. */
  readonly send: (method: Method, path: string, body?: object) => Promise<Answer>;
  readonly close: () => Promise<void>;
}

/** Returns an account with a token of the ServiceAccount, which it creates if necessary. */
export async function account(cluster: Cluster, namespace: string, name: string): Promise<Account> {
  const admin = cluster.client();
  const { status } = await admin.raw('POST', `/api/v1/namespaces/${namespace}/serviceaccounts`, {
    body: { metadata: { name } },
  });
  if (status !== 201 && status !== 409) {
    throw new Error(`ServiceAccount ${name}: HTTP ${status}`);
  }
  const token = await requestToken(admin, { namespace, name }, TOKEN_SECONDS);
  const client = await clientOf(cluster, { token });
  const close = (): Promise<void> => client.transport.close();
  return accountOf(`system:serviceaccount:${namespace}:${name}`, client, close);
}

/** The administrator of the cluster, in the group system:masters. */
export function administrator(cluster: Cluster): Account {
  // The client belongs to the cluster, which closes it.
  return accountOf('administrator', cluster.client(), async () => {});
}

function accountOf(name: string, client: KubeClient, close: () => Promise<void>): Account {
  return {
    name,
    close,
    async send(method, path, body) {
      const contentType = method === 'PATCH' ? 'application/merge-patch+json' : undefined;
      const answer = await client.raw(method, path, { body, contentType });
      const { message = '' } = answer.status < 400 ? {} : (answer.body as { message?: string });
      return { status: answer.status, message, body: answer.body };
    },
  };
}
