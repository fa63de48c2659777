/**
 * The parts of the server that act with its own identity. Before each action, the server checks a right of the caller: see {@link Rights}.
 */
import type { Logger } from 'pino';
import { KubeClient } from '../../kube/client.ts';
import type { Authorizer } from '../../kube/serving/authorization.ts';
import type { ServerConfig } from '../config.ts';
import { UploadedCertificate } from './certificate.ts';
import { Rights } from './rights.ts';
import { ServerWatches } from './watches.ts';
import { apiErrorFrom } from '../../kube/errors.ts';
import type { Answer } from '../../kube/transport.ts';
import { notFound, OwnRefusalError, StatusError } from '../http/errors.ts';
import { type Namespace, NAMESPACES, type Node } from '../../kube/core.ts';
import type { App } from '../http/app.ts';
import { hostsOf, ownerOfHost } from '../../api/v1alpha1/hosts.ts';

class Hosts {
  readonly #watches: ServerWatches;
  readonly #defaultNamespace: string;

  constructor(watches: ServerWatches, defaultNamespace: string) {
    this.#watches = watches;
    this.#defaultNamespace = defaultNamespace;
  }

  /** Returns the namespace whose administrators change the host. */
  namespaceOf(node: Readonly<Node>): string {
    return ownerOfHost(node, this.#defaultNamespace);
  }

  /**
   * Returns the hosts that VMs of the namespace can run on, in the order of their names.
   *
   * @throws StatusError 404 when the namespace does not exist.
   */
  of(namespace: string): readonly Readonly<Node>[] {
    return hostsOf(this.requireNamespace(namespace), this.#watches.hosts());
  }

  /**
   * Returns the host, to change it. A host of a deleted namespace is found, too, so that it can be moved to another namespace.
   *
   * @throws StatusError 404 when the host does not exist or is not for the namespace, and 403 when it is shared with other namespaces.
   */
  find(namespace: string, name: string): Readonly<Node> {
    const host = this.#watches.host(name);
    if (host !== undefined && this.namespaceOf(host) === namespace) {
      return host;
    }
    if (this.of(namespace).some(({ metadata }) => metadata.name === name)) {
      const owner = this.#defaultNamespace;
      throw new StatusError(
        403,
        `Host ${name} is shared. Only administrators of namespace ${owner} change it`,
      );
    }
    throw hostNotFound(name);
  }

  /** Checks that the host belongs to the namespace. @throws StatusError 404 when it does not. */
  requireHost(node: Readonly<Node>, namespace: string): void {
    if (this.namespaceOf(node) !== namespace) {
      throw hostNotFound(node.metadata.name);
    }
  }

  /** Checks that VMs of the namespace can run on the host. @throws StatusError 404 when they cannot, or the host does not exist. */
  requireUsable(namespace: string, name: string): void {
    if (!this.of(namespace).some(({ metadata }) => metadata.name === name)) {
      throw hostNotFound(name);
    }
  }

  /** Checks that the namespace exists. @throws StatusError 404 when it does not. */
  requireNamespace(name: string): Readonly<Namespace> {
    const namespace = this.#watches.namespace(name);
    if (namespace === undefined) {
      throw notFound('namespaces', name);
    }
    return namespace;
  }

  /** Checks that hosts can be moved into the namespace. @throws StatusError 404 when it does not exist, 409 while it is being deleted. */
  requireTarget(name: string): void {
    if (this.requireNamespace(name).metadata.deletionTimestamp !== undefined) {
      throw new StatusError(409, `Namespace ${name} is being deleted. Move the host to another namespace`);
    }
  }
}

function hostNotFound(name: string): StatusError {
  return notFound('nodes', name);
}

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
