/** VMs of a namespace. */
import { listQuerySchema, vmListSchema } from '../../api/http/vm.ts';
import type { App } from '../http/app.ts';
import { listAs } from '../callers/list.ts';
import { namespaceParams } from '../http/params.ts';
import { VMS } from '../resources.ts';
import { vmItem } from './item.ts';

export function addVMRoutes(app: App): void {
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
}
