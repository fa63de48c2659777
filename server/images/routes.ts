/**
 * Images and ISOs of a namespace. All users may use those of the default namespace, so each namespace shows them too. Changes are for the
 * objects of the namespace alone.
 */
import {
  copyRequestSchema,
  descriptionRequestSchema,
  generateRequestSchema,
  imageItemSchema,
  imageListQuerySchema,
  imageListSchema,
  nameIn,
} from '../../api/http/image.ts';
import { statusSchema, success } from '../../api/http/status.ts';
import type { Resource } from '../../kube/objects.ts';
import { listWithShared } from '../callers/list.ts';
import { checked, createAs, deleteAs, findAs } from '../callers/objects.ts';
import type { App } from '../http/app.ts';
import { namespaceParams, objectParams } from '../http/params.ts';
import { IMAGES, ISOS } from '../resources.ts';
import type { Services } from '../services.ts';
import { isPush } from '../vms/pushes.ts';
import { imageItem, type Stored } from './item.ts';
import { addTransferRoutes } from './transfers.ts';

/** Resource type, and its name in summaries. */
interface Kind {
  readonly type: Resource<Stored>;
  readonly one: string;
}

export function addImageRoutes(app: App, services: Services): void {
  for (const kind of [
    { type: IMAGES, one: 'image' },
    { type: ISOS, one: 'ISO' },
  ]) {
    addReadRoutes(app, kind, services);
    addDescriptionRoute(app, kind);
    addCopyRoute(app, kind, services);
    addDeleteRoute(app, kind);
  }
  addGenerateRoute(app);
  addTransferRoutes(app);
}

function addReadRoutes(app: App, { type, one }: Kind, { config: { namespaces } }: Services): void {
  app.get(
    collection(type),
    {
      schema: {
        summary: `List the ${one}s of a namespace and of the default namespace`,
        tags: tagsOf(one),
        params: namespaceParams,
        querystring: imageListQuerySchema,
        response: { 200: imageListSchema },
      },
    },
    async ({ caller, params, query }) => {
      const itemOf = (object: Stored) => (isPush(object) ? undefined : imageItem(object));
      const selection = { ...params, ...query };
      return { items: await listWithShared(caller(), type, selection, namespaces.default, itemOf) };
    },
  );
  app.get(
    `${collection(type)}/:name`,
    {
      schema: {
        summary: `Get an ${one} of a namespace, or else of the default namespace`,
        tags: tagsOf(one),
        params: objectParams,
        response: { 200: imageItemSchema },
      },
    },
    async ({ caller, params }) => imageItem(await findAs(caller(), type, params, namespaces.default)),
  );
}

function addDescriptionRoute(app: App, { type, one }: Kind): void {
  app.post(
    `${collection(type)}/:name/description`,
    {
      schema: {
        summary: `Set the description of an ${one}`,
        tags: tagsOf(one),
        params: objectParams,
        body: descriptionRequestSchema,
        response: { 200: statusSchema },
      },
    },
    async ({ caller, params, body: { description } }) => {
      const spec = { description: description === '' ? null : description };
      await caller().mergePatch(type, checked(type, params), { spec });
      return success();
    },
  );
}

function addCopyRoute(app: App, { type, one }: Kind, { config: { namespaces } }: Services): void {
  app.post(
    `${collection(type)}/:name/copy`,
    {
      schema: {
        summary: `Copy an ${one} of the namespace, or else of the default namespace`,
        tags: tagsOf(one),
        params: objectParams,
        body: copyRequestSchema,
        response: { 200: imageItemSchema },
      },
    },
    async ({ caller, params, body }) => {
      const client = caller();
      const source = await findAs(client, type, params, namespaces.default);
      const { namespace } = params;
      const metadata = { name: nameIn(body), namespace };
      const spec = copyOf(source, namespace);
      return imageItem(
        await createAs(client, type, {
          metadata,
          spec: { ...spec, description: body.description ?? spec.description },
        }),
      );
    },
  );
}

/** Returns the spec of a copy. It leaves out the pull secrets of another namespace, which do not exist in this one. */
function copyOf({ metadata, spec }: Stored, namespace: string): Stored['spec'] {
  const { description, architecture, os, format, imagePullSecrets } = spec;
  return {
    description,
    source: { copyOf: { name: metadata.name, namespace: metadata.namespace } },
    architecture,
    os,
    format,
    imagePullSecrets: metadata.namespace === namespace ? imagePullSecrets : undefined,
  };
}

function addDeleteRoute(app: App, { type, one }: Kind): void {
  app.delete(
    `${collection(type)}/:name`,
    {
      schema: {
        summary: `Delete an ${one}`,
        tags: tagsOf(one),
        params: objectParams,
        response: { 200: statusSchema },
      },
    },
    async ({ caller, params }) => {
      await deleteAs(caller(), type, params);
      return success();
    },
  );
}

function addGenerateRoute(app: App): void {
  app.post(
    collection(IMAGES),
    {
      schema: {
        summary: 'Make an image with an empty disk',
        tags: tagsOf('image'),
        params: namespaceParams,
        body: generateRequestSchema,
        response: { 200: imageItemSchema },
      },
    },
    async ({ caller, params: { namespace }, body }) => {
      const { size, description, type: architecture } = body;
      const metadata = { name: nameIn(body), namespace };
      const spec = { description, architecture, source: { empty: { size } } };
      return imageItem(await createAs(caller(), IMAGES, { metadata, spec }));
    },
  );
}

function collection({ plural }: Resource<Stored>): string {
  return `/api/v1/namespaces/:namespace/${plural}`;
}

function tagsOf(one: string): string[] {
  return [one === 'image' ? 'Images' : 'ISOs'];
}
