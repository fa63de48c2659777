/** Routes for the VMs of a namespace: deployment, lists, power, and work with their disks. */
import * as z from 'zod';
import { inNamespace, MEMBERS, onObject, READERS } from '../own/rights.ts';
import { listQuerySchema } from '../../api/http/request.ts';
import {
  type Command,
  commitBody,
  deleteQuery,
  deployedVMSchema,
  execBody,
  execParams,
  pushBody,
  pushListSchema,
  pushSchema,
  pushStartedSchema,
  resizeBody,
  saveBody,
  vmDeployBody,
  vmDeployQuery,
  vmDetailsSchema,
  vmItemSchema,
  vmListSchema,
} from '../../api/http/vm.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { statusSchema, success } from '../../api/http/status.ts';
import type { App } from '../http/app.ts';
import { listAs } from '../callers/list.ts';
import { createAs, deleteAs, getAs, type NamespacedRef } from '../callers/objects.ts';
import { undefinedIf } from '../../base/errors.ts';
import { isForbidden, isNotFound } from '../../kube/errors.ts';
import { namespaceParams, objectParams } from '../http/namespaces.ts';
import { IMAGES, VM_CONFIGS, VMS } from '../../api/v1alpha1/resources.ts';
import type { Services } from '../services.ts';
import { type Deploys, trimmed, waitingBody } from './deploy.ts';
import { deployedVM, vmDetails, vmItem } from '../../api/http/vmitem.ts';
import { follow } from '../../kube/follow.ts';
import type { Caller, CallerClient } from '../callers/caller.ts';
import { notFound, StatusError } from '../http/errors.ts';
import { WaitEnd, type WaitingRequests } from '../http/waiting.ts';
import { POWER_DIALECT, VM_DIALECT } from '../dialect/fields.ts';
import { SAMPLE } from '../http/samples.ts';
import type { Image } from '../../api/v1alpha1/image.ts';
import { isPush, pushItem } from '../../api/http/imageitem.ts';
import { pushedImage, requestCommit, requestResize, savedImage } from '../../actions/disk.ts';
import { type PowerDetails, requestPower } from '../../actions/power.ts';
import { takePicture } from '../../actions/session.ts';

const VMS_PATH = '/api/v1/namespaces/:namespace/vms';
const VM_PATH = `${VMS_PATH}/:name`;
const vmParams = objectParams('VM', SAMPLE.vm);

/** Parts of the routes for VMs. */
export interface VMParts {
  readonly deploys: Deploys;
  /** Requests for pictures of screens. */
  readonly pictures: WaitingRequests;
}

export function addVMRoutes(
  app: App,
  { waiting, config, own }: Services,
  { deploys, pictures }: VMParts,
): void {
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
        description:
          'The item has the address and the ports at which the guest is reached, and the request that deploys the same VM.',
        roles: READERS,
        tags: ['VMs'],
        params: vmParams,
        response: { 200: vmDetailsSchema },
      },
    },
    async ({ caller, params }) =>
      vmDetails(await getAs(caller(), VMS, params), (host) => own.watches.architectureOf(host)),
  );
  app.delete(
    VM_PATH,
    {
      schema: {
        summary: 'Delete a VM',
        description: 'The disk of the VM is lost, unless it was saved or committed before.',
        roles: MEMBERS,
        tags: ['VMs'],
        params: objectParams('VM', SAMPLE.new),
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
  addScreenshotRoute(app, pictures);
  addActionRoutes(app, config.namespaces.system);
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
 * Refuses a VM whose VM config does not exist, before a VM is made whose name nobody chose. A caller without the right to read VM configs of
 * one of the namespaces is not refused, because the operator reads them.
 *
 * @throws StatusError 404 when the VM config is neither in the namespace nor in the default one; ApiError.
 */
async function requireConfig(
  { client }: Caller,
  { namespace, name }: { namespace: string; name: string | undefined },
  defaultNamespace: string,
): Promise<void> {
  if (name === undefined) {
    return;
  }
  for (const one of new Set([namespace, defaultNamespace])) {
    if (await mayExist(getAs(client, VM_CONFIGS, { namespace: one, name }))) {
      return;
    }
  }
  throw notFound('vmconfigs.berth.dev', name);
}

/** Reports whether the object exists, or may exist because the caller must not read it. @throws other errors of the reading. */
async function mayExist(reading: Promise<unknown>): Promise<boolean> {
  try {
    return (await undefinedIf(isNotFound, reading)) !== undefined;
  } catch (error) {
    if (!isForbidden(error)) {
      throw error;
    }
    return true;
  }
}

/**
 * Longest wait in milliseconds for the end of a deletion, without the time that the VM asks for. A host that does not report can delay the
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
  { metadata: from, spec }: VM,
  end: AbortController,
): Promise<void> {
  const { name, namespace = '', uid } = from;
  const { signal } = end;
  const limit = LIMIT_MILLISECONDS + (spec.terminationGracePeriodSeconds ?? 0) * 1_000;
  const timer = setTimeout(() => end.abort(new WaitEnd('late')), limit);
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

/** Largest number of pictures of screens at the same time. Each of them can need 64 MiB of memory, and most need less than one. */
export const PICTURES = 4;
/** Time limit in milliseconds for a host to send the picture, and for a client to read it. */
const PICTURE_MILLISECONDS = 30_000;
const PICTURE_TYPE = 'image/png';
const PICTURE_ANSWER = {
  description: 'The picture, of at most 32 MiB.',
  content: { [PICTURE_TYPE]: { schema: z.any().meta({ type: 'string', format: 'binary' }) } },
};

function addScreenshotRoute(app: App, pictures: WaitingRequests): void {
  app.get(
    `${VM_PATH}/screenshot`,
    {
      config: { right: onObject({ verb: 'get', group: '', resource: 'pods', subresource: 'exec' }) },
      schema: {
        summary: 'Get a picture of the screen of a VM, as PNG',
        description:
          'The VM must run and have a screen. The host makes the picture, so the guest needs no agent.',
        roles: MEMBERS,
        tags,
        params: vmParams,
        response: { 200: PICTURE_ANSWER },
      },
    },
    async ({ fullCaller, params }, reply) => {
      const { client, watches } = fullCaller();
      const user = await client.username();
      await getAs(client, VMS, params);
      const owner = { user, namespace: params.namespace };
      const picture = await pictures.run(
        reply.raw,
        owner,
        async ({ signal }) => await pictureInTime(watches, params, signal),
      );
      // A client that does not read its picture must not keep one of the few places.
      reply.raw.setTimeout(PICTURE_MILLISECONDS);
      return await reply.type(PICTURE_TYPE).send(picture);
    },
  );
}

/** @throws errors of `takePicture`; StatusError 504 when the host is too slow, 503 when the server stops. */
async function pictureInTime(
  watches: Caller['watches'],
  vm: NamespacedRef,
  signal: AbortSignal,
): Promise<Buffer> {
  const late = AbortSignal.timeout(PICTURE_MILLISECONDS);
  try {
    return await takePicture(watches, vm, AbortSignal.any([signal, late]));
  } catch (error) {
    if (late.aborted) {
      throw new StatusError(504, `The host of VM ${vm.name} sent no picture in time`);
    }
    throw error instanceof WaitEnd ? new StatusError(503, 'The HTTP API is stopping. Try again') : error;
  }
}

const NAMESPACE = '/api/v1/namespaces/:namespace';
const tags = ['VMs'];
const succeeds = { 200: statusSchema };

function addActionRoutes(app: App, systemNamespace: string): void {
  addPowerRoutes(app);
  addImageRoutes(app, systemNamespace);
  addPushRoutes(app, systemNamespace);
  app.post(
    `${VM_PATH}/resize`,
    {
      config: { right: onObject({ verb: 'patch', resource: 'vms' }) },
      schema: {
        summary: 'Enlarge the disk of a VM',
        description:
          'The VM must be stopped or must not run yet. The guest enlarges its file systems by itself, or its user does.',
        roles: MEMBERS,
        sample: { size: 8 },
        tags,
        params: vmParams,
        body: resizeBody,
        response: succeeds,
      },
    },
    async ({ caller, params, body }) => {
      const client = caller();
      await requestResize(client, await getAs(client, VMS, params), `${body.size}G`);
      return success();
    },
  );
}

function addPowerRoutes(app: App): void {
  app.post(
    `${VM_PATH}/exec`,
    {
      config: { right: onObject({ verb: 'patch', resource: 'vms' }), dialect: POWER_DIALECT },
      schema: {
        summary: 'Start, stop, suspend, resume or revert a VM',
        description:
          'The answer comes before the machine has changed. The status of the VM shows when it has.',
        roles: MEMBERS,
        sample: { command: 'stop' },
        tags,
        params: vmParams,
        body: execBody,
        response: succeeds,
      },
    },
    async ({ caller, params, body }) => {
      await command(caller(), { ...params, revertTo: body.snapshot }, body.command);
      return success();
    },
  );
  app.post(
    `${VM_PATH}/exec/:command`,
    {
      schema: {
        summary: 'Start, stop, suspend, resume or revert a VM. The request has no body',
        description:
          'This path is for clients that send the command in the path. It does the same as the path without the command.',
        roles: MEMBERS,
        tags,
        params: vmParams.extend(execParams),
        response: succeeds,
      },
    },
    async ({ caller, params: { command: word, ...ref } }) => {
      await command(caller(), ref, word);
      return success();
    },
  );
}

type Target = NamespacedRef & PowerDetails;

async function command(client: CallerClient, { revertTo, ...ref }: Target, word: Command): Promise<void> {
  await requestPower(client, word, async () => await getAs(client, VMS, ref), { revertTo });
}

function addImageRoutes(app: App, systemNamespace: string): void {
  app.post(
    `${VM_PATH}/save`,
    {
      config: { right: inNamespace({ verb: 'create', resource: 'images' }) },
      schema: {
        summary: 'Save the disk of a VM as a new image',
        description: 'The cluster needs an image storage. The answer comes before the image is Ready.',
        roles: MEMBERS,
        sample: { imageName: SAMPLE.saved, description: 'With all updates of May' },
        tags,
        params: vmParams,
        body: saveBody,
        response: succeeds,
      },
    },
    async ({ caller, params, body }) => {
      const client = caller();
      const vm = await getAs(client, VMS, params);
      await createAs(client, IMAGES, await savedImage({ client, systemNamespace }, vm, body));
      return success();
    },
  );
  app.post(
    `${VM_PATH}/commit`,
    {
      config: { right: inNamespace({ verb: 'patch', resource: 'images' }) },
      schema: {
        summary: 'Replace the content of a VM’s image with the disk of the VM',
        description:
          'The cluster needs an image storage. VMs that run keep the content with which they started.',
        roles: MEMBERS,
        sample: { description: 'With all updates of May' },
        tags,
        params: vmParams,
        body: commitBody,
        response: succeeds,
      },
    },
    async ({ caller, params, body }) => {
      const client = caller();
      const vm = await getAs(client, VMS, params);
      await requestCommit({ client, systemNamespace }, vm, body.description);
      return success();
    },
  );
}

function addPushRoutes(app: App, systemNamespace: string): void {
  app.post(
    `${VM_PATH}/push`,
    {
      config: { right: inNamespace({ verb: 'create', resource: 'images' }) },
      schema: {
        summary: 'Push the disk of a VM to a registry',
        description:
          'The answer has the name of the push, which the path /pushes shows. The namespace needs a credential for the registry.',
        roles: MEMBERS,
        sample: { imageReference: SAMPLE.reference },
        tags,
        params: vmParams,
        body: pushBody,
        response: { 200: pushStartedSchema },
      },
    },
    async ({ caller, params, body }) => {
      const client = caller();
      await getAs(client, VMS, params);
      const image = await pushedImage({ client, systemNamespace }, params, body.imageReference);
      const { metadata } = await createAs(client, IMAGES, image);
      return { jobName: metadata.name };
    },
  );
  app.get(
    `${NAMESPACE}/pushes`,
    {
      schema: {
        summary: 'List the pushes of a namespace',
        description: 'A push is shown while its object exists.',
        roles: READERS,
        tags,
        params: namespaceParams,
        response: { 200: pushListSchema },
      },
    },
    async ({ caller, params }) => {
      const itemOf = (image: Image) => (isPush(image) ? pushItem(image) : undefined);
      const { items } = await listAs(caller(), IMAGES, params, itemOf);
      return { items };
    },
  );
  app.get(
    `${NAMESPACE}/pushes/:name`,
    {
      schema: {
        summary: 'Get a push',
        description: 'The item shows the progress, and the reason if the push failed.',
        roles: READERS,
        tags,
        params: objectParams('push', SAMPLE.push),
        response: { 200: pushSchema },
      },
    },
    async ({ caller, params }) => {
      const image = await getAs(caller(), IMAGES, params);
      if (!isPush(image)) {
        throw notFound('pushes', params.name);
      }
      return pushItem(image);
    },
  );
}
