/**
 * Changes of the console beside those of the HTTP API, with the token of the caller: the fields of a VM that users can change, the number of
 * VMs of a pool, and the power of a server. No other field of these kinds, and no other kind, can be changed here.
 */
import * as z from 'zod';
import { changeObject } from '../../actions/change.ts';
import { requestServerPower } from '../../actions/serverpower.ts';
import { statusSchema, success } from '../../api/http/status.ts';
import { formSchemas, poolPatchSchema, type VMPatch, vmPatchSchema } from '../../api/http/forms.ts';
import type { DisplayDpiMaximum } from '../../api/v1alpha1/fields.ts';
import { SERVERS, VM_POOLS, VMS } from '../../api/v1alpha1/resources.ts';
import { POWER_ACTIONS } from '../../api/v1alpha1/server.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { undefinedIf } from '../../base/errors.ts';
import { isConflict } from '../../kube/errors.ts';
import type { CallerClient } from '../callers/caller.ts';
import { checked, getAs, type NamespacedRef } from '../callers/objects.ts';
import type { App } from '../http/app.ts';
import { StatusError } from '../http/errors.ts';
import { objectParams } from '../http/namespaces.ts';
import { SAMPLE } from '../http/samples.ts';
import { onObject } from '../own/rights.ts';

const OBJECTS_PATH = '/console/objects';
const FORMS_PATH = '/console/forms';

const powerSchema = z.object({ action: z.enum(POWER_ACTIONS) });

/** `hide` keeps the routes out of the OpenAPI document: they serve only the page of the same release. */
const hidden = { hide: true, response: { 200: statusSchema } } as const;

/** Adds the routes, and the schemas of the forms. `dpiMaximum` is the largest allowed DPI of the display. */
export function addConsoleChanges(app: App, dpiMaximum: DisplayDpiMaximum): void {
  const forms = JSON.stringify(formSchemas(dpiMaximum));
  // The schemas say nothing about the cluster, and the OpenAPI document has most of them.
  app.get(
    FORMS_PATH,
    { exposeHeadRoute: false, schema: { hide: true, security: [], response: { 200: z.any() } } },
    async (_request, reply) => await reply.type('application/json').send(forms),
  );
  app.patch(
    `${OBJECTS_PATH}/namespaces/:namespace/vms/:name`,
    {
      config: { right: onObject({ verb: 'patch', resource: VMS.plural }) },
      schema: { ...hidden, params: objectParams('VM', SAMPLE.vm), body: vmPatchSchema(dpiMaximum) },
    },
    async ({ caller, params, body }) => {
      await changeVM(caller(), params, body);
      return success();
    },
  );
  app.patch(
    `${OBJECTS_PATH}/namespaces/:namespace/vmpools/:name`,
    {
      config: { right: onObject({ verb: 'patch', resource: VM_POOLS.plural }) },
      schema: { ...hidden, params: objectParams('pool', SAMPLE.pool), body: poolPatchSchema },
    },
    async ({ caller, params, body: { replicas } }) => {
      await caller().mergePatch(VM_POOLS, checked(VM_POOLS, params), { spec: { replicas } });
      return success();
    },
  );
  app.patch(
    `${OBJECTS_PATH}/servers/:name`,
    {
      config: { right: ({ name = '' }) => ({ verb: 'patch', resource: SERVERS.plural, name }) },
      schema: { ...hidden, params: objectParams('server', 'rack-1').pick({ name: true }), body: powerSchema },
    },
    async ({ caller, params: { name }, body: { action } }) => {
      const client = caller();
      const ref = checked(SERVERS, { namespace: '', name });
      await changeObject(
        () => `server ${name}`,
        async () => {
          const server = await client.get(SERVERS, { name: ref.name });
          return await undefinedIf(isConflict, requestServerPower(client, server, action));
        },
      );
      return success();
    },
  );
}

/**
 * Writes the change into the VM, if the VM still has the generation that the user has seen.
 *
 * @throws StatusError 409 when somebody else has changed the VM since then; ApiError.
 */
async function changeVM(
  client: CallerClient,
  ref: NamespacedRef,
  { generation, set = {}, remove = [] }: VMPatch,
): Promise<void> {
  const removed = Object.fromEntries(remove.map((name) => [name, null]));
  await changeObject(
    () => `VM ${ref.name}`,
    async () => {
      const { metadata } = await getAs(client, VMS, ref);
      if (metadata.generation !== generation) {
        throw new StatusError(409, `VM ${ref.name} was changed by somebody else. Look at it again`);
      }
      const { uid, resourceVersion } = metadata;
      const patch = { metadata: { uid, resourceVersion }, spec: { ...removed, ...set } };
      return await undefinedIf(isConflict, client.mergePatch<VM>(VMS, ref, patch));
    },
  );
}
