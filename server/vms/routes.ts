/** VMs of a namespace. */
import { listQuerySchema, vmItemSchema, vmListSchema } from '../../api/http/vm.ts';
import { deployedVMSchema, vmDeployBody, vmDeployQuery } from '../../api/http/vmdeploy.ts';
import type { App } from '../http/app.ts';
import { listAs } from '../callers/list.ts';
import { namespaceParams } from '../http/params.ts';
import { VMS } from '../resources.ts';
import type { Services } from '../services.ts';
import { deployedVM, vmItem } from './item.ts';

export function addVMRoutes(app: App, { deploys, config }: Services): void {
  app.get(
    '/api/v1/namespaces/:namespace/vms',
    {
      schema: {
        summary: 'List the VMs of a namespace',
        tags: ['VMs'],
        params: namespaceParams,
        querystring: listQuerySchema,
        response: { 200: vmListSchema },
      },
    },
    async ({ caller, params, query }) => await listAs(caller(), VMS, { ...params, ...query }, vmItem),
  );
  app.post(
    '/api/v1/namespaces/:namespace/vms',
    {
      schema: {
        summary: 'Deploy a VM and wait until it runs',
        tags: ['VMs'],
        params: namespaceParams,
        querystring: vmDeployQuery,
        body: vmDeployBody(config.dpiMaximum),
        response: { 200: deployedVMSchema, 202: vmItemSchema },
      },
    },
    async ({ fullCaller, params, query, body }, reply) => {
      const request = { caller: fullCaller(), namespace: params.namespace, query, body };
      if (query.wait === 'false') {
        return await reply.code(202).send(vmItem(await deploys.create(request)));
      }
      return await reply.code(200).send(deployedVM(await deploys.deploy(request, reply.raw)));
    },
  );
}
