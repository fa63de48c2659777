/**
 * Ways to a registry that prove nothing about it. A namespace may allow them for its own Pods. Somebody between the host and the
 * registry can then choose what a tag names, and who may have it. So everything that is learned on such a way is kept apart: it has
 * the name of the namespace before its own, and no reader of the shared store finds it.
 */
import type { Server } from '../../../api/v1alpha1/registrycredentials.ts';

/** Without TLS (`http`), or with TLS whose certificate is not checked (`https`). */
export interface InsecureRoute {
  readonly scheme: Server['scheme'];
  readonly namespace: string;
}

/** Servers that the Pods of one namespace may reach in this way. */
export interface InsecureServers {
  readonly namespace: string;
  readonly servers: readonly Server[];
}

/**
 * Returns the prefix of names and keys for what is learned on a route; empty for the usual, checked way. No reference can begin with
 * it, because `insecure:` is no registry. A namespace has no slash, so two namespaces never share a name.
 */
export function scopeOf(route: InsecureRoute | undefined): string {
  return route === undefined ? '' : `insecure:${route.namespace}/`;
}
