/** Finds the hosts of a namespace. */
import { hostsOf, ownerOfHost } from '../../api/v1alpha1/hosts.ts';
import type { Namespace, Node } from '../../kube/core.ts';
import { notFound, StatusError } from '../http/errors.ts';
import type { ServerWatches } from './watches.ts';

export class Hosts {
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

  /** Reports whether the host exists, in any namespace. */
  exists(name: string): boolean {
    return this.#watches.host(name) !== undefined;
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
