/** Routes for actions on one VM: power, and work with its disk. */
import { inNamespace, MEMBERS, onObject, READERS } from '../own/rights.ts';
import {
  commitBody,
  execBody,
  execParams,
  pushBody,
  pushListSchema,
  pushSchema,
  pushStartedSchema,
  resizeBody,
  saveBody,
} from '../../api/http/vm.ts';
import { statusSchema, success } from '../../api/http/status.ts';
import type { Image } from '../../api/v1alpha1/image.ts';
import { listAs } from '../callers/list.ts';
import { createAs, getAs, type NamespacedRef } from '../callers/objects.ts';
import type { App } from '../http/app.ts';
import { notFound } from '../http/errors.ts';
import { namespaceParams, objectParams } from '../http/namespaces.ts';
import { IMAGES, VMS } from '../../api/v1alpha1/resources.ts';
import { isPush, pushItem } from '../../api/http/imageitem.ts';
import { pushedImage, requestCommit, requestResize, savedImage } from '../../actions/disk.ts';
import { requestPower } from '../../actions/power.ts';
import type { Command } from '../../api/http/vm.ts';
import type { CallerClient } from '../callers/caller.ts';
import { POWER_DIALECT } from '../dialect/fields.ts';
import { SAMPLE } from '../http/samples.ts';

const NAMESPACE = '/api/v1/namespaces/:namespace';
const VM = `${NAMESPACE}/vms/:name`;
const tags = ['VMs'];
const vmParams = objectParams('VM', SAMPLE.vm);
const succeeds = { 200: statusSchema };

export function addActionRoutes(app: App): void {
  addPowerRoutes(app);
  addImageRoutes(app);
  addPushRoutes(app);
  app.post(
    `${VM}/resize`,
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
    `${VM}/exec`,
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
      await command(caller(), params, body.command);
      return success();
    },
  );
  app.post(
    `${VM}/exec/:command`,
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

async function command(client: CallerClient, ref: NamespacedRef, word: Command): Promise<void> {
  await requestPower(client, word, async () => await getAs(client, VMS, ref));
}

function addImageRoutes(app: App): void {
  app.post(
    `${VM}/save`,
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
      await getAs(client, VMS, params);
      await createAs(client, IMAGES, savedImage(params, body));
      return success();
    },
  );
  app.post(
    `${VM}/commit`,
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
      await requestCommit(client, await getAs(client, VMS, params), body.description);
      return success();
    },
  );
}

function addPushRoutes(app: App): void {
  app.post(
    `${VM}/push`,
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
      const { metadata } = await createAs(client, IMAGES, pushedImage(params, body.imageReference));
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
