/** The snapshots of the VMs of a namespace. A VM is reset to one by the command `revert` of the VM. */
import { success, statusSchema } from '../api/http/status.ts';
import { listQuerySchema } from '../api/http/request.ts';
import {
  vmSnapshotItem,
  vmSnapshotItemSchema,
  vmSnapshotListSchema,
  vmSnapshotRequestSchema,
} from '../api/http/vmsnapshot.ts';
import { VM_SNAPSHOTS, VMS } from '../api/v1alpha1/resources.ts';
import { listAs } from './callers/list.ts';
import { createAs, deleteAs, getAs } from './callers/objects.ts';
import type { App } from './http/app.ts';
import { namespaceParams, objectParams } from './http/namespaces.ts';
import { SAMPLE } from './http/samples.ts';
import { inNamespace, MEMBERS, READERS } from './own/rights.ts';

const COLLECTION = '/api/v1/namespaces/:namespace/vmsnapshots';
const tags = ['VMs'];
const snapshotParams = objectParams('snapshot', SAMPLE.new);

export function addVMSnapshotRoutes(app: App): void {
  app.get(
    COLLECTION,
    {
      schema: {
        summary: 'List the snapshots of the VMs of a namespace',
        description: 'The list can be read in pages, as the list of VMs.',
        roles: READERS,
        tags,
        params: namespaceParams,
        querystring: listQuerySchema,
        response: { 200: vmSnapshotListSchema },
      },
    },
    async ({ caller, params, query }) =>
      await listAs(caller(), VM_SNAPSHOTS, { ...params, ...query }, vmSnapshotItem),
  );
  app.get(
    `${COLLECTION}/:name`,
    {
      schema: {
        summary: 'Get a snapshot',
        description: 'The status is Ready when the host has taken the snapshot.',
        roles: READERS,
        tags,
        params: snapshotParams,
        response: { 200: vmSnapshotItemSchema },
      },
    },
    async ({ caller, params }) => vmSnapshotItem(await getAs(caller(), VM_SNAPSHOTS, params)),
  );
  app.post(
    COLLECTION,
    {
      config: { right: inNamespace({ verb: 'create', resource: 'vmsnapshots' }) },
      schema: {
        summary: 'Keep the disk of a VM as it is now',
        description:
          'The VM runs on. The answer comes before the host has taken the snapshot. A snapshot is deleted together with its VM.',
        roles: MEMBERS,
        sample: { name: SAMPLE.new, vm: SAMPLE.vm },
        tags,
        params: namespaceParams,
        body: vmSnapshotRequestSchema,
        response: { 200: vmSnapshotItemSchema },
      },
    },
    async ({ caller, params: { namespace }, body: { name, vm: vmName, memory } }) => {
      const client = caller();
      await getAs(client, VMS, { namespace, name: vmName });
      const snapshot = { metadata: { name, namespace }, spec: { vmName, memory } };
      return vmSnapshotItem(await createAs(client, VM_SNAPSHOTS, snapshot));
    },
  );
  app.delete(
    `${COLLECTION}/:name`,
    {
      schema: {
        summary: 'Delete a snapshot',
        description: 'The host removes its data when no disk and no later snapshot needs them.',
        roles: MEMBERS,
        tags,
        params: snapshotParams,
        response: { 200: statusSchema },
      },
    },
    async ({ caller, params }) => {
      await deleteAs(caller(), VM_SNAPSHOTS, params);
      return success();
    },
  );
}
