/** Decides which namespaces Berth serves. For the HTTP API, all other namespaces do not exist, even if the caller has rights in them. */
import type { ServerConfig } from '../config.ts';
import type { App } from './app.ts';
import { notFound } from './errors.ts';

type Namespaces = ServerConfig['namespaces'];

/**
 * Reports whether the namespace is served. The system namespace is not served, because users with rights in it could act as the operator.
 */
export function isServed(name: string, namespaces: Namespaces): boolean {
  return name !== namespaces.system && (name === namespaces.default || name.startsWith(namespaces.prefix));
}

/** Answers a request with 404 if Berth does not serve its namespace. */
export function refuseOtherNamespaces(app: App, namespaces: Namespaces): void {
  app.addHook('onRequest', (request, _reply, next) => {
    const { namespace } = request.params as { namespace?: string };
    if (namespace !== undefined && !isServed(namespace, namespaces)) {
      throw notFound('namespaces', namespace);
    }
    next();
  });
}
