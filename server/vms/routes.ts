/** Routes for the VMs of a namespace. */
import { inNamespace, MEMBERS, READERS } from '../own/rights.ts';
import { listQuerySchema } from '../../api/http/request.ts';
import {
  deleteQuery,
  deployedVMSchema,
  vmDeployBody,
  vmDeployQuery,
  vmItemSchema,
  vmListSchema,
} from '../../api/http/vm.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { statusSchema, success } from '../../api/http/status.ts';
import type { App } from '../http/app.ts';
import { listAs } from '../callers/list.ts';
import { deleteAs, findAs, getAs } from '../callers/objects.ts';
import { undefinedIf } from '../../base/errors.ts';
import { isForbidden } from '../../kube/errors.ts';
import { namespaceParams, objectParams } from '../http/namespaces.ts';
import { VM_CONFIGS, VMS } from '../../api/v1alpha1/resources.ts';
import type { Services } from '../services.ts';
import { addActionRoutes } from './actionroutes.ts';
import { type Deploys, trimmed, waitingBody } from './deploy.ts';
import { deployedVM, vmItem } from '../../api/http/vmitem.ts';
import { follow } from '../../kube/follow.ts';
import type { Caller } from '../callers/caller.ts';
import { StatusError } from '../http/errors.ts';
import { WaitEnd } from '../http/waiting.ts';
import { VM_DIALECT } from '../dialect/fields.ts';
import { SAMPLE } from '../http/samples.ts';

const VMS_PATH = '/api/v1/namespaces/:namespace/vms';
const VM_PATH = `${VMS_PATH}/:name`;
const vmParams = objectParams('VM', SAMPLE.vm);

export function addVMRoutes(app: App, { waiting, config, own }: Services, deploys: Deploys): void {
  const itemOf = (vm: VM) => vmItem(vm, (host) => own.watches.architectureOf(host));
  app.get(
    VMS_PATH,
    {
      schema: {
        summary: 'List the VMs of a namespace',
        description:
          'The list can be read in pages: `limit` sets the size of a page, and `continue` of one answer asks for the next page.',
        roles: READERS,
        tags: ['VMs'],
        params: namespaceParams,
        querystring: listQuerySchema,
        response: { 200: vmListSchema },
      },
      // The items are not checked against the schema of the answer, because `itemOf` already creates them with the right type. A check of a
      // thousand items would take longer than their conversion to JSON.
      serializerCompiler: () => JSON.stringify,
    },
    async ({ caller, params, query }) => await listAs(caller(), VMS, { ...params, ...query }, itemOf),
  );
  app.post(
    VMS_PATH,
    {
      config: { right: inNamespace({ verb: 'create', resource: 'vms' }), dialect: VM_DIALECT },
      schema: {
        summary: 'Deploy a VM and wait until it runs',
        description:
          'The request names an image, an ISO or a VM config. If the VM does not run within the timeout, it is deleted, and the answer says why. With `wait=false`, the answer comes as soon as the VM exists.',
        roles: MEMBERS,
        sample: { name: SAMPLE.new, image: SAMPLE.image, cpu: 1, memory: 0.25 },
        tags: ['VMs'],
        params: namespaceParams,
        querystring: vmDeployQuery,
        body: vmDeployBody(config.dpiMaximum),
        response: { 200: deployedVMSchema, 202: vmItemSchema },
      },
    },
    async (asked, reply) => {
      const {
        query,
        params: { namespace },
      } = asked;
      requireHost(own, namespace, asked.body.node);
      const caller = asked.fullCaller();
      await requireConfig(caller, { namespace, name: asked.body.vmConfig }, config.namespaces.default);
      const request = { caller, namespace, query, body: asked.body };
      // The framework keeps its own request until the answer is sent.
      asked.body = waitingBody(asked.body);
      if (query.wait === 'false') {
        return await reply.code(202).send(itemOf(await deploys.create(request)));
      }
      return await reply.code(200).send(deployedVM(await deploys.deploy(request, reply.raw)));
    },
  );
  app.get(
    VM_PATH,
    {
      schema: {
        summary: 'Get a VM',
        description: 'The item has the address and the ports at which the guest is reached.',
        roles: READERS,
        tags: ['VMs'],
        params: vmParams,
        response: { 200: vmItemSchema },
      },
    },
    async ({ caller, params }) => itemOf(await getAs(caller(), VMS, params)),
  );
  app.delete(
    VM_PATH,
    {
      schema: {
        summary: 'Delete a VM',
        description: 'The disk of the VM is lost, unless it was saved or committed before.',
        roles: MEMBERS,
        tags: ['VMs'],
        params: vmParams,
        querystring: deleteQuery,
        response: { 200: statusSchema },
      },
    },
    async ({ fullCaller, params, query }, reply) => {
      const caller = fullCaller();
      if (query.wait === 'true') {
        const user = await caller.client.username();
        // The VM is read first, because callers without rights in the namespace must not take one of its places for waiting requests.
        const vm = trimmed(await getAs(caller.client, VMS, params));
        await waiting.run(
          reply.raw,
          { user, namespace: params.namespace },
          async (end) => await deleteAndWait(caller, vm, end),
        );
      } else {
        await deleteAs(caller.client, VMS, params);
      }
      return success();
    },
  );
  addActionRoutes(app);
}

/**
 * Refuses a VM whose only allowed host does not exist or is not for the namespace, because the VM would wait for this host forever. `host`
 * is undefined if the request names no host.
 *
 * @throws StatusError 404 when the VM cannot run on the host.
 */
function requireHost({ hosts }: Services['own'], namespace: string, host: string | undefined): void {
  if (host !== undefined) {
    hosts.requireUsable(namespace, host);
  }
}

/**
 * Refuses a VM whose VM config does not exist, before a VM is made whose name nobody chose. A caller without the right to read VM configs is
 * not refused, because the operator reads them.
 *
 * @throws ApiError 404 when the VM config is neither in the namespace nor in the default one.
 */
async function requireConfig(
  { client }: Caller,
  { namespace, name }: { namespace: string; name: string | undefined },
  defaultNamespace: string,
): Promise<void> {
  if (name !== undefined) {
    await undefinedIf(isForbidden, findAs(client, VM_CONFIGS, { namespace, name }, defaultNamespace));
  }
}

/**
 * Longest wait in milliseconds for the end of a deletion. A guest has 30 s to shut down, but a host that does not report can delay the
 * deletion much longer.
 */
const LIMIT_MILLISECONDS = 600_000;

/**
 * Deletes a VM and resolves when the VM no longer exists. The wait ends when the signal of `end` aborts with a {@link WaitEnd}.
 *
 * @throws ApiError when the API server refuses. @throws StatusError 504 when the deletion has not ended in time, 503 when the server stops.
 */
export async function deleteAndWait(
  { client, watches }: Caller,
  { metadata: from }: VM,
  end: AbortController,
): Promise<void> {
  const { name, namespace = '', uid } = from;
  const { signal } = end;
  const timer = setTimeout(() => end.abort(new WaitEnd('late')), LIMIT_MILLISECONDS);
  try {
    await client.delete(VMS, { name, namespace }, { uid });
    const versions = follow({ client, watches, type: VMS, from, trim: trimmed, signal });
    while ((await versions.next()).done !== true) {
      // The iterator yields versions of the VM as long as the VM exists.
    }
  } catch (error) {
    throw error instanceof WaitEnd
      ? new StatusError(error.why === 'stopping' ? 503 : 504, `VM ${name} is still being deleted`)
      : error;
  } finally {
    clearTimeout(timer);
  }
}
