/**
 * Insecure connections to a registry, which do not prove the identity of the registry. A namespace can allow insecure connections for its
 * own Pods. On such a connection, an attacker in the network can choose which image a tag names, and who has access to the image. Therefore
 * all data from such a connection is stored under names that contain the namespace. Requests over a secure connection never use such names,
 * so they do not find this data.
 */
import type { Server } from '../../../api/v1alpha1/registrycredentials.ts';

/** An insecure connection: without TLS (`http`), or with TLS but without a check of the certificate (`https`). */
export interface InsecureRoute {
  readonly scheme: Server['scheme'];
  readonly namespace: string;
}

/** Servers that the Pods of one namespace may reach over an insecure connection. */
export interface InsecureServers {
  readonly namespace: string;
  readonly servers: readonly Server[];
}

/**
 * Returns the prefix for the names and keys of data from a registry. The prefix is `insecure!NAMESPACE/` for an insecure connection, and
 * empty for a secure one. The name of a namespace contains no slash, so two namespaces never share a name or key. No reference can contain
 * `!`, so a reference without the prefix never equals a name with the prefix.
 */
export function scopeOf(route: InsecureRoute | undefined): string {
  return route === undefined ? '' : `insecure!${route.namespace}/`;
}
