/** Decides which namespaces Berth serves. All other namespaces do not exist for the HTTP API, whatever rights a caller has. */
import type { ServerConfig } from '../config.ts';
import type { App } from './app.ts';
import { notFound } from './errors.ts';

type Namespaces = ServerConfig['namespaces'];

/**
 * Returns true if the namespace is served. The system namespace is not served, because users with rights in it could act as the operator.
 */
export function isServed(name: string, namespaces: Namespaces): boolean {
  return name !== namespaces.system && (name === namespaces.default || name.startsWith(namespaces.prefix));
}

/** Answers requests in other namespaces with 404. */
export function refuseOtherNamespaces(app: App, namespaces: Namespaces): void {
  app.addHook('onRequest', (request, _reply, next) => {
    const { namespace } = request.params as { namespace?: string };
    if (namespace !== undefined && !isServed(namespace, namespaces)) {
      throw notFound('namespaces', namespace);
    }
    next();
  });
}
