/**
 * Routes for the Images and ISOs of a namespace. All namespaces also show the objects of the default namespace, because all users can use
 * them. Only objects of the namespace itself can be changed.
 */
import { inNamespace, onObject } from '../own/rights.ts';
import {
  copyRequestSchema,
  descriptionRequestSchema,
  generateRequestSchema,
  imageItemSchema,
  imageListSchema,
  nameIn,
} from '../../api/http/image.ts';
import { sharedListQuerySchema } from '../../api/http/request.ts';
import { statusSchema, success } from '../../api/http/status.ts';
import type { Resource } from '../../kube/objects.ts';
import { listWithShared } from '../callers/list.ts';
import { checked, createAs, deleteAs, findAs } from '../callers/objects.ts';
import type { App } from '../http/app.ts';
import { namespaceParams, objectParams } from '../http/params.ts';
import { IMAGES, ISOS } from '../../api/v1alpha1/resources.ts';
import type { Services } from '../services.ts';
import { copySpec, emptySpec, imageItem, isPush, type Stored } from '../../api/http/imageitem.ts';
import { addTransferRoutes } from './transfers.ts';

/** Type of the objects. `one` is the word that the summaries of routes use for an object of this type. */
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
  addTransferRoutes(app, services);
}

function addReadRoutes(app: App, { type, one }: Kind, { config: { namespaces } }: Services): void {
  app.get(
    collection(type),
    {
      schema: {
        summary: `List the ${one}s of a namespace and of the default namespace`,
        tags: tagsOf(one),
        params: namespaceParams,
        querystring: sharedListQuerySchema,
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
        summary: `Get an ${one}. If the namespace has no ${one} of this name, the one in the default namespace is returned`,
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
      config: { right: onObject({ verb: 'patch', resource: type.plural }) },
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
      config: { right: inNamespace({ verb: 'create', resource: type.plural }) },
      schema: {
        summary: `Copy an ${one}. If the namespace has no ${one} of this name, the one in the default namespace is copied`,
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
      const spec = copySpec(source, namespace, body.description);
      return imageItem(await createAs(client, type, { metadata, spec }));
    },
  );
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
      config: { right: inNamespace({ verb: 'create', resource: 'images' }) },
      schema: {
        summary: 'Make an image with an empty disk',
        tags: tagsOf('image'),
        params: namespaceParams,
        body: generateRequestSchema,
        response: { 200: imageItemSchema },
      },
    },
    async ({ caller, params: { namespace }, body }) => {
      const metadata = { name: nameIn(body), namespace };
      return imageItem(await createAs(caller(), IMAGES, { metadata, spec: emptySpec(body) }));
    },
  );
}

function collection({ plural }: Resource<Stored>): string {
  return `/api/v1/namespaces/:namespace/${plural}`;
}

function tagsOf(one: string): string[] {
  return [one === 'image' ? 'Images' : 'ISOs'];
}
