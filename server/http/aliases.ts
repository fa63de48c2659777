/**
 * Aliases: names that are fixed in the code of clients. If a request uses an alias in its path or body, the answer uses it too. Without the
 * setting `http.aliases` there are none.
 */
import type { FastifyRequest } from 'fastify';
import { DEV_ROLE } from '../../api/v1alpha1/names.ts';
import type { ServerConfig } from '../config.ts';
import type { App } from './app.ts';
import { NAMESPACES_PATH } from './params.ts';

type Settings = Pick<ServerConfig, 'http' | 'namespaces'>;
type Fields = Record<string, unknown>;

/** Text after the alias of the prefix that stands for the default namespace. */
const DEFAULT = 'default';

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
  /** Requests that use the alias, so that their answers use it too. */
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

interface AliasNames {
  /** Returns the name of the namespace that a client means. */
  readonly real: (name: string) => string;
  /** Returns the name of a namespace for a client that uses the alias. */
  readonly shown: (name: string) => string;
}

/** Returns the names for the alias of the prefix of namespaces. The alias followed by `default` stands for the default namespace. */
function aliasNames(alias: string, namespaces: ServerConfig['namespaces']): AliasNames {
  const { prefix } = namespaces;
  return {
    real: (name) => {
      if (!name.startsWith(alias)) {
        return name;
      }
      const rest = name.slice(alias.length);
      return rest === DEFAULT ? namespaces.default : prefix + rest;
    },
    shown: (name) => {
      if (name === namespaces.default) {
        return alias + DEFAULT;
      }
      return name.startsWith(prefix) ? alias + name.slice(prefix.length) : name;
    },
  };
}

/** Changes the field of an object if it is a text. The validation judges all other values. */
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
