/**
 * Checks the rights of a caller: before the server reads the body of a request, and before it acts with its own identity.
 */
import type { IncomingHttpHeaders } from 'node:http';
import type { FastifyRequest } from 'fastify';
import * as z from 'zod';
import { GROUP } from '../../api/v1alpha1/names.ts';
import type { Authorizer } from '../../kube/serving/authorization.ts';
import { tokenOf } from '../callers/caller.ts';
import type { App } from '../http/app.ts';
import { StatusError } from '../http/errors.ts';

/**
 * Right in a namespace, or in the whole cluster if `namespace` is absent. The resource need not exist as a CRD, because roles can name any
 * resource.
 */
export interface Right {
  readonly verb: 'create' | 'get' | 'list' | 'update' | 'patch' | 'delete';
  /** API group of the resource. The default is the group of Berth. */
  readonly group?: string;
  readonly resource: string;
  readonly subresource?: string;
  readonly namespace?: string;
  readonly name?: string;
}

/** Parameters of a path. */
type PathParams = Readonly<Record<string, string>>;

/** Returns the right that a request needs, from the parameters of its path. */
export type RouteRight = (params: PathParams) => Right;

/** Roles of callers, which administrators bind in a namespace or in the cluster. Cluster administrators are allowed to do everything. */
export const HTTP_ROLES = ['dev', 'admin', 'namespace-admin', 'viewer'] as const;
export type HTTPRole = (typeof HTTP_ROLES)[number];
/** Callers that are allowed to use a route: a list of roles, all callers, or all callers with a token. */
export type HTTPAccess = readonly HTTPRole[] | 'no token' | 'any token';

/** Roles of those who read, who use, who manage a namespace, and who own the namespaces of the cluster. */
export const READERS = ['dev', 'admin', 'viewer'] as const;
export const MEMBERS = ['dev', 'admin'] as const;
export const ADMINS = ['admin'] as const;
export const OWNERS = ['namespace-admin'] as const;

declare module 'fastify' {
  interface FastifySchema {
    /**
     * Callers that are allowed to use the route. The OpenAPI document and the page of rights show them, and a test calls each route as each
     * of them. The rights themselves come from the roles of the chart.
     */
    roles?: HTTPAccess;
  }
  interface FastifyContextConfig {
    /**
     * Right that the caller needs before the body is read. Each route with a body has it. The value `body` means that only the body tells
     * which right is needed. The handler of such a route asks for the right. The value `none` means that everybody may send the body.
     */
    right?: RouteRight | 'body' | 'none';
  }
}

/** Returns the right for a resource in the namespace of the path. */
export function inNamespace(right: Right): RouteRight {
  return ({ namespace = '' }) => ({ ...right, namespace });
}

/** Returns the right for the object that the path names. */
export function onObject(right: Right): RouteRight {
  return ({ namespace = '', name = '' }) => ({ ...right, namespace, name });
}

export class Rights {
  readonly #authorizer: Authorizer;

  constructor(authorizer: Authorizer) {
    this.#authorizer = authorizer;
  }

  /** Checks a right of the caller. @throws StatusError 401 when the API server does not know the caller, 403 when the right is missing. */
  async require(headers: IncomingHttpHeaders, right: Right): Promise<void> {
    const user = await this.#authorizer.authenticate(tokenOf(headers));
    if (user === undefined) {
      throw new StatusError(401, 'Unauthorized');
    }
    if (!(await this.#authorizer.authorize(user, { resourceAttributes: { group: GROUP, ...right } }))) {
      throw new StatusError(403, refusal(user.username ?? '', right));
    }
  }
}

/**
 * Makes the server ask for the right of each route before it reads the body. Call this function before the routes are added.
 *
 * @throws Error when a route with a body states no right.
 */
export function requireRights(app: App, rights: Rights): void {
  app.addHook('onRoute', ({ method, url, schema, config }) => {
    if (schema?.body instanceof z.ZodType && config?.right === undefined) {
      throw new Error(`The route ${String(method)} ${url} has a body and states no right`);
    }
  });
  app.addHook('preParsing', async (request: FastifyRequest) => {
    const { right } = request.routeOptions.config;
    if (typeof right === 'function') {
      await rights.require(request.headers, right(request.params as PathParams));
    }
  });
}

/** Returns the message of a refusal. It is the same as the message of the API server. */
function refusal(user: string, right: Right): string {
  const { verb, group = GROUP, resource, subresource, namespace, name } = right;
  const full = subresource === undefined ? resource : `${resource}/${subresource}`;
  const kind = group === '' ? resource : `${resource}.${group}`;
  const object = name === undefined ? kind : `${kind} "${name}"`;
  const scope = namespace === undefined ? 'at the cluster scope' : `in the namespace "${namespace}"`;
  return `${object} is forbidden: User "${user}" cannot ${verb} resource "${full}" in API group "${group}" ${scope}`;
}
