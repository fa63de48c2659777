/**
 * Routes for the VM configs of a namespace. Each namespace also shows the VM configs of the default namespace, because all users can use
 * them.
 */
import { inNamespace, MEMBERS, READERS } from './own/rights.ts';
import { sharedListQuerySchema } from '../api/http/request.ts';
import { success, statusSchema } from '../api/http/status.ts';
import { vmConfigItemSchema, vmConfigListSchema, vmConfigRequestSchema } from '../api/http/vmconfig.ts';
import { listWithShared } from './callers/list.ts';
import { createAs, deleteAs, findAs } from './callers/objects.ts';
import type { App } from './http/app.ts';
import { invalidField } from './http/errors.ts';
import { namespaceParams, objectParams } from './http/namespaces.ts';
import { VM_CONFIGS } from '../api/v1alpha1/resources.ts';
import type { Services } from './services.ts';
import { vmConfigItem } from '../api/http/vmitem.ts';
import { vmConfigSpec } from '../api/http/vmspec.ts';
import { VM_CONFIG_DIALECT } from './dialect/fields.ts';
import { SAMPLE } from './http/samples.ts';

const COLLECTION = '/api/v1/namespaces/:namespace/vmconfigs';
const tags = ['VM configs'];
const configParams = objectParams('VM config', SAMPLE.new);

export function addVMConfigRoutes(app: App, { config: { namespaces, dpiMaximum } }: Services): void {
  app.get(
    COLLECTION,
    {
      schema: {
        summary: 'List the VM configs of a namespace and of the default namespace',
        description: 'A VM config of the namespace hides one of the same name in the default namespace.',
        roles: READERS,
        tags,
        params: namespaceParams,
        querystring: sharedListQuerySchema,
        response: { 200: vmConfigListSchema },
      },
    },
    async ({ caller, params, query }) => {
      const selection = { ...params, ...query };
      return {
        items: await listWithShared(caller(), VM_CONFIGS, selection, namespaces.default, vmConfigItem),
      };
    },
  );
  app.get(
    `${COLLECTION}/:name`,
    {
      schema: {
        summary:
          'Get a VM config. If the namespace has no VM config of this name, the one in the default namespace is returned',
        description: 'A VM config has values for VMs that name it when they are deployed.',
        roles: READERS,
        tags,
        params: configParams,
        response: { 200: vmConfigItemSchema },
      },
    },
    async ({ caller, params }) =>
      vmConfigItem(await findAs(caller(), VM_CONFIGS, params, namespaces.default)),
  );
  app.post(
    COLLECTION,
    {
      config: {
        right: inNamespace({ verb: 'create', resource: 'vmconfigs' }),
        dialect: VM_CONFIG_DIALECT,
      },
      schema: {
        summary: 'Create a VM config',
        description:
          'A VM that names the VM config takes its values for all fields that the request leaves out.',
        roles: MEMBERS,
        sample: { name: SAMPLE.new, image: SAMPLE.image, cpu: 1, memory: 0.25 },
        tags,
        params: namespaceParams,
        body: vmConfigRequestSchema(dpiMaximum),
        response: { 200: vmConfigItemSchema },
      },
    },
    async ({ caller, params: { namespace }, body: { name, namespace: own = namespace, ...wanted } }) => {
      if (own !== namespace) {
        throw invalidField('namespace', `must be the namespace of the path, not ${own}`);
      }
      const spec = vmConfigSpec(wanted);
      return vmConfigItem(await createAs(caller(), VM_CONFIGS, { metadata: { name, namespace }, spec }));
    },
  );
  app.delete(
    `${COLLECTION}/:name`,
    {
      schema: {
        summary: 'Delete a VM config',
        description: 'VMs that were deployed with the VM config stay as they are.',
        roles: MEMBERS,
        tags,
        params: configParams,
        response: { 200: statusSchema },
      },
    },
    async ({ caller, params }) => {
      await deleteAs(caller(), VM_CONFIGS, params);
      return success();
    },
  );
}
