/** Namespaces of Berth. The operator makes the RoleBindings of a new namespace. */
import {
  type NamespaceItem,
  namespaceItemSchema,
  namespaceListSchema,
  namespaceRequestSchema,
} from '../../api/http/namespace.ts';
import { statusSchema, success } from '../../api/http/status.ts';
import { CUSTOM_PODS_LABEL } from '../../api/v1alpha1/names.ts';
import { type Namespace, NAMESPACES } from '../../kube/core.ts';
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
        summary: 'List the namespaces that the caller may see',
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
      const labels = {
        // The Pods of machines use host ports, which need this level. Policies hold the Pods of users to the level "baseline".
        'pod-security.kubernetes.io/enforce': 'privileged',
        ...(enableCustomPods ? { [CUSTOM_PODS_LABEL]: 'true' } : {}),
      };
      await client.create(NAMESPACES, { metadata: { name, labels } });
      return success();
    },
  );
}

function addDeletion(app: App, { config: { namespaces }, own }: Services): void {
  app.delete(
    NAMESPACE_PATH,
    {
      schema: {
        summary: 'Delete a namespace without hosts and VMs, and everything else in it',
        tags,
        params: namespaceParams,
        response: { 200: statusSchema },
      },
    },
    async ({ caller, params: { namespace } }) => {
      const client = caller();
      if ([namespaces.default, namespaces.system].includes(namespace)) {
        throw new StatusError(409, `Namespace ${namespace} belongs to Berth and cannot be deleted`);
      }
      await removeNamespace({ caller: client, own: own.client }, namespace);
      return success();
    },
  );
}

function namespaceItem({ metadata: { name, labels } }: Readonly<Namespace>): NamespaceItem {
  return { name, customPods: labels?.[CUSTOM_PODS_LABEL] === 'true' };
}
