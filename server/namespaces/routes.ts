/** Routes for the namespaces that Berth serves. The operator creates the RoleBindings of a new namespace. */
import {
  namespaceItemSchema,
  namespaceListSchema,
  namespaceRequestSchema,
} from '../../api/http/namespace.ts';
import { namespaceItem, namespaceLabels, ownNamespace } from '../../api/http/namespaceitem.ts';
import { statusSchema, success } from '../../api/http/status.ts';
import { NAMESPACES } from '../../kube/core.ts';
import type { App } from '../http/app.ts';
import { invalidField, StatusError } from '../http/errors.ts';
import { isServed } from '../http/namespaces.ts';
import { namespaceParams, NAMESPACES_PATH } from '../http/params.ts';
import type { Services } from '../services.ts';
import { removeNamespace } from './remove.ts';
import { VisibleNamespaces } from './visible.ts';

const NAMESPACE_PATH = `${NAMESPACES_PATH}/:namespace`;
const tags = ['Namespaces'];

export function addNamespaceRoutes(app: App, services: Services): void {
  addReads(app, services);
  addCreation(app, services);
  addDeletion(app, services);
}

function addReads(app: App, { config: { namespaces }, own }: Services): void {
  const visible = new VisibleNamespaces(own.watches, (name) => isServed(name, namespaces));
  app.get(
    NAMESPACES_PATH,
    {
      schema: {
        summary: 'List the namespaces that the caller can see',
        tags,
        response: { 200: namespaceListSchema },
      },
    },
    async ({ caller }) => ({ items: (await visible.list(caller())).map(namespaceItem) }),
  );
  app.get(
    NAMESPACE_PATH,
    {
      schema: {
        summary: 'Get a namespace',
        tags,
        params: namespaceParams,
        response: { 200: namespaceItemSchema },
      },
    },
    async ({ caller, params }) => namespaceItem(await visible.find(caller(), params.namespace)),
  );
}

function addCreation(app: App, { config: { namespaces } }: Services): void {
  app.post(
    NAMESPACES_PATH,
    {
      config: { right: () => ({ verb: 'create', group: '', resource: 'namespaces' }) },
      schema: {
        summary: 'Create a namespace',
        tags,
        body: namespaceRequestSchema,
        response: { 200: statusSchema },
      },
    },
    async ({ caller, body: { name, enableCustomPods = false } }) => {
      const client = caller();
      if (!isServed(name, namespaces)) {
        throw invalidField('name', `must begin with ${namespaces.prefix}`);
      }
      const labels = namespaceLabels({ customPods: enableCustomPods });
      await client.create(NAMESPACES, { metadata: { name, labels } });
      return success();
    },
  );
}

function addDeletion(app: App, { config: { namespaces }, own }: Services): void {
  app.delete(
    NAMESPACE_PATH,
    {
      config: {
        right: ({ namespace = '' }) => ({ verb: 'delete', resource: 'namespaces', name: namespace }),
      },
      schema: {
        summary: 'Delete a namespace and all its objects. It must have no hosts and no VMs',
        tags,
        params: namespaceParams,
        response: { 200: statusSchema },
      },
    },
    async ({ caller, params: { namespace } }) => {
      if ([namespaces.default, namespaces.system].includes(namespace)) {
        throw new StatusError(409, ownNamespace(namespace));
      }
      await removeNamespace({ caller: caller(), own: own.client }, namespace);
      return success();
    },
  );
}
