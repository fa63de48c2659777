/**
 * The parts of the server that act with its own identity. Before each action, the server checks a right of the caller: see {@link Rights}.
 */
import type { Logger } from 'pino';
import { KubeClient } from '../../kube/client.ts';
import type { Authorizer } from '../../kube/serving/authorization.ts';
import type { ServerConfig } from '../config.ts';
import { UploadedCertificate } from './certificate.ts';
import { Hosts } from './hosts.ts';
import { Rights } from './rights.ts';
import { ServerWatches } from './watches.ts';
import { apiErrorFrom } from '../../kube/errors.ts';
import type { Answer } from '../../kube/transport.ts';
import { notFound, OwnRefusalError } from '../http/errors.ts';
import { NAMESPACES } from '../../kube/core.ts';
import type { App } from '../http/app.ts';

export interface Own {
  readonly client: KubeClient;
  readonly rights: Rights;
  readonly watches: ServerWatches;
  readonly hosts: Hosts;
  readonly certificate: UploadedCertificate;
}

export interface OwnOptions {
  readonly client: KubeClient;
  readonly authorizer: Authorizer;
  readonly logger: Logger;
  readonly namespaces: ServerConfig['namespaces'];
}

export function createOwn({ client, authorizer, logger, namespaces }: OwnOptions): Own {
  const watches = new ServerWatches(client, logger);
  return {
    client,
    watches,
    rights: new Rights(authorizer),
    hosts: new Hosts(watches, namespaces.default),
    certificate: new UploadedCertificate({ client, logger, namespace: namespaces.system }),
  };
}

/**
 * Pattern of the API server's message if this server lacks a right. The message of a refusal by admission does not match. A refusal by
 * admission concerns the object that the caller chose, so the caller gets this refusal as the answer.
 */
const LACKS_RIGHT = /forbidden: User "/;

export class OwnClient extends KubeClient {
  /** Sends a request. @throws OwnRefusalError when the API server does not know this server, or when this server lacks a right. */
  override async raw(...request: Parameters<KubeClient['raw']>): Promise<Answer> {
    const answer = await super.raw(...request);
    if (answer.status === 401 || answer.status === 403) {
      const error = apiErrorFrom(answer.body, answer.status, answer.retryAfterMilliseconds);
      if (error.status === 401 || LACKS_RIGHT.test(error.message)) {
        throw new OwnRefusalError(error.message, error);
      }
    }
    return answer;
  }
}

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
