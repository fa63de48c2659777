/** Namespaces and names of objects in the paths of requests. */
import * as z from 'zod';
import type { App } from './app.ts';
import { StatusError } from './errors.ts';
import { isServedNamespace, type ServedNamespaces } from '../../api/v1alpha1/names.ts';
import { LABEL, text } from '../../api/v1alpha1/schema.ts';
import { SAMPLE } from './samples.ts';

/** Answers a request with 404 if Berth does not serve its namespace. */
export function refuseOtherNamespaces(app: App, namespaces: ServedNamespaces): void {
  app.addHook('onRequest', (request, _reply, next) => {
    const { namespace } = request.params as { namespace?: string };
    if (namespace !== undefined) {
      requireServed(namespace, namespaces);
    }
    next();
  });
}

/** Checks that Berth serves the namespace. @throws StatusError 404 when it does not. The message tells which namespaces it serves. */
export function requireServed(namespace: string, namespaces: ServedNamespaces): void {
  if (!isServedNamespace(namespace, namespaces)) {
    const served = `Berth serves only ${namespaces.default} and namespaces whose names begin with ${namespaces.prefix}`;
    throw new StatusError(404, `namespaces ${JSON.stringify(namespace)} not found: ${served}`);
  }
}

export const NAMESPACES_PATH = '/api/v1/namespaces';

/** Schema of the name of a namespace. It refuses a slash, which would change the path of the request to the API server. */
export const namespaceParams = z.object({
  namespace: text('Namespace.', 63, LABEL).meta({ examples: [SAMPLE.namespace] }),
});

/**
 * Returns the schema of the names of a namespace and of an object in it. This schema accepts an object name that no object can have. A
 * request with such a name then gets the same answer as a request for a missing object. `one` is the word for an object of this type, and
 * `example` is a name. Where the request deletes the object, this is {@link SAMPLE}.new, which another sample has made.
 */
export function objectParams(one: string, example: string) {
  const name = z
    .string()
    .min(1)
    .meta({ description: `Name of the ${one}.`, examples: [example] });
  return namespaceParams.extend({ name });
}
