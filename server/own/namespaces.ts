/** Answers with 404 if a request lists objects in a namespace that does not exist. The API server would answer with an empty list. */
import { NAMESPACES } from '../../kube/core.ts';
import type { App } from '../http/app.ts';
import { notFound } from '../http/errors.ts';
import type { Own } from './own.ts';

interface Item {
  readonly namespace?: string;
}

/**
 * Answers a request for a list with 404 if its namespace does not exist. This check begins after the API server has allowed the request, so
 * that callers without rights do not learn whether the namespace exists. A list that contains objects needs no check, because the objects
 * prove that the namespace exists.
 */
export function refuseMissingNamespaces(app: App, own: Pick<Own, 'client' | 'watches'>): void {
  app.addHook('preSerialization', async (request, _reply, payload) => {
    const { namespace } = request.params as { namespace?: string };
    const { items } = (payload ?? {}) as { items?: readonly Item[] };
    const isProof = items?.some((item) => (item.namespace ?? namespace) === namespace) ?? true;
    if (namespace !== undefined && !isProof && !(await exists(own, namespace))) {
      throw notFound('namespaces', namespace);
    }
    return payload;
  });
}

/** Reports whether the namespace exists. The watch might not show a new namespace yet, so the API server is asked, too. */
async function exists({ client, watches }: Pick<Own, 'client' | 'watches'>, name: string): Promise<boolean> {
  if (watches.namespace(name) !== undefined) {
    return true;
  }
  const { items } = await client.list(NAMESPACES, { fieldSelector: `metadata.name=${name}` });
  return items.length > 0;
}
