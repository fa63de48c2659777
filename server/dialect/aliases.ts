/**
 * Names as clients send them: aliases, and names of images in paths. Each alias in a request is replaced with the real name. An alias is a
 * name that is fixed in the code of clients. If a request has the alias of a namespace in its path or body, the answer has the same alias.
 * Without the setting `http.aliases`, there are no aliases. An image reference contains slashes, which clients encode once, twice or not at
 * all. Some proxies also decode a path before they pass it on.
 */
import type { FastifyRequest } from 'fastify';
import { DEV_ROLE } from '../../api/v1alpha1/names.ts';
import { aliasNames } from '../../api/http/namespaceitem.ts';
import type { ServerConfig } from '../config.ts';
import type { App } from '../http/app.ts';
import { NAMESPACES_PATH } from '../http/namespaces.ts';
import { StatusError } from '../http/errors.ts';

type Settings = Pick<ServerConfig, 'http' | 'namespaces'>;
type Fields = Record<string, unknown>;

export function addAliases(app: App, { http: { aliases }, namespaces }: Settings): void {
  const { namespacePrefix, devRoleBinding } = aliases;
  app.addHook('onRequest', (request, _reply, next) => {
    rename(request.params, 'binding', (name) => (name === devRoleBinding ? DEV_ROLE : name));
    next();
  });
  if (namespacePrefix !== undefined) {
    addNamespaceAliases(app, namespacePrefix, namespaces);
  }
}

function addNamespaceAliases(app: App, alias: string, namespaces: ServerConfig['namespaces']): void {
  const names = aliasNames(alias, namespaces);
  /** Requests in which the alias was found. Their answers must contain the alias, too. */
  const aliased = new WeakSet<FastifyRequest>();
  const realIn = (request: FastifyRequest) => (name: string) => {
    const real = names.real(name);
    if (real !== name) {
      aliased.add(request);
    }
    return real;
  };
  app.addHook('onRequest', (request, _reply, next) => {
    rename(request.params, 'namespace', realIn(request));
    next();
  });
  app.addHook('preValidation', (request, _reply, next) => {
    const change = realIn(request);
    rename(request.body, request.routeOptions.url === NAMESPACES_PATH ? 'name' : 'namespace', change);
    renameEach((request.body as Fields | undefined)?.['serviceaccounts'], change);
    next();
  });
  app.addHook('preSerialization', (request, _reply, payload, next) => {
    if (aliased.has(request)) {
      const isNamespace = request.routeOptions.url === `${NAMESPACES_PATH}/:namespace`;
      rename(payload, isNamespace ? 'name' : 'namespace', names.shown);
      renameEach((payload as Fields)['items'], names.shown);
    }
    next(null, payload);
  });
}

/** Changes the field of an object if its value is a text. Other values stay, and the validation of the request refuses them. */
function rename(object: unknown, field: string, change: (name: string) => string): void {
  const value = (object as Fields | null | undefined)?.[field];
  if (typeof value === 'string') {
    (object as Fields)[field] = change(value);
  }
}

function renameEach(objects: unknown, change: (name: string) => string): void {
  if (Array.isArray(objects)) {
    objects.forEach((one) => rename(one, 'namespace', change));
  }
}

/** Largest number of times that a parameter is decoded after the router has decoded it once. */
const ENCODINGS = 2;
const ENCODED = /%[0-9a-f]{2}/i;

/**
 * Returns the image name in a parameter of a path. The router has already decoded the parameter once. Image names contain no percent sign,
 * so a percent sign means that the client encoded the name more than once.
 *
 * @throws StatusError 400 when the encoding is not valid.
 */
export function decodedImageName(parameter: string): string {
  let name = parameter;
  for (let round = 0; round < ENCODINGS && ENCODED.test(name); round += 1) {
    try {
      name = decodeURIComponent(name);
    } catch {
      throw new StatusError(400, 'the image name in the path has an invalid encoding');
    }
  }
  return name;
}

/**
 * Separates an image name with unencoded slashes from the action after it. If the path does not end with an action, `action` is undefined.
 * An image name that itself ends like an action, for example with `/add`, must have percent-encoded slashes. Such an encoded name is one
 * part of the path, so another route handles it, and this function is not called.
 *
 * @throws StatusError 400 when an encoding in the path is not valid.
 */
export function splitImagePath<Action extends string>(
  path: string,
  actions: readonly Action[],
): { image: string; action: Action | undefined } {
  const action = actions.find((word) => path.endsWith(`/${word}`));
  const name = action === undefined ? path : path.slice(0, -(action.length + 1));
  return { image: decodedImageName(name), action };
}
