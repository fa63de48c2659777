/**
 * Routes for the Images and ISOs of a namespace. All namespaces also show the objects of the default namespace, because all users can use
 * them. Only objects of the namespace itself can be changed.
 */
import { Readable } from 'node:stream';
import multipart from '@fastify/multipart';
import type { FastifySchema } from 'fastify';
import * as z from 'zod';
import { inNamespace, MEMBERS, onObject, READERS } from '../own/rights.ts';
import {
  copyRequestSchema,
  descriptionRequestSchema,
  imageItemSchema,
  imageListSchema,
  imageRequestSchema,
  isoRequestSchema,
} from '../../api/http/image.ts';
import { sharedListQuerySchema } from '../../api/http/request.ts';
import { setDescription } from '../../actions/objects.ts';
import { statusSchema, success } from '../../api/http/status.ts';
import type { Resource } from '../../kube/objects.ts';
import { listAs, listWithShared } from '../callers/list.ts';
import { checked, createAs, deleteAs, findAs } from '../callers/objects.ts';
import type { App } from '../http/app.ts';
import { namespaceParams, objectParams } from '../http/namespaces.ts';
import { IMAGES, ISOS } from '../../api/v1alpha1/resources.ts';
import type { Services } from '../services.ts';
import { contentSpec, copySpec, imageItem, isPush, type StoredContent } from '../../api/http/imageitem.ts';
import { allowLongBody } from '../../kube/serving/httpserver.ts';
import { StatusError } from '../http/errors.ts';
import { lengthOf, readForm, UPLOAD_LIMITS, uploadTextsSchema } from './uploadform.ts';
import type { Downloads } from './downloads.ts';
import type { Uploads } from './uploads.ts';
import { COPY_DIALECT, IMAGE_DIALECT } from '../dialect/fields.ts';
import { SAMPLE } from '../http/samples.ts';

/** Uploads and downloads of files. */
export interface FileTransfers {
  readonly uploads: Uploads;
  readonly downloads: Downloads;
}

/** Type of the objects. `one` is the word that the summaries of routes use for an object of this type. */
interface Kind {
  readonly type: Resource<StoredContent>;
  readonly one: string;
}

export function addImageRoutes(app: App, services: Services, transfers: FileTransfers): void {
  for (const kind of [
    { type: IMAGES, one: 'image' },
    { type: ISOS, one: 'ISO' },
  ]) {
    addReadRoutes(app, kind, services);
    addDescriptionRoute(app, kind);
    addCopyRoute(app, kind, services);
    addDeleteRoute(app, kind);
  }
  addCreateRoutes(app);
  addTransferRoutes(app, services, transfers);
}

function addReadRoutes(app: App, { type, one }: Kind, { config: { namespaces } }: Services): void {
  app.get(
    collection(type),
    {
      schema: {
        summary: `List the ${one}s of a namespace and of the default namespace`,
        description: 'The item shows whether the content is ready, and the reason if it failed.',
        roles: READERS,
        tags: tagsOf(one),
        params: namespaceParams,
        querystring: sharedListQuerySchema,
        response: { 200: imageListSchema },
      },
    },
    async ({ caller, params, query }) => {
      const itemOf = (object: StoredContent) => (isPush(object) ? undefined : imageItem(object));
      const selection = { ...params, ...query };
      return { items: await listWithShared(caller(), type, selection, namespaces.default, itemOf) };
    },
  );
  app.get(
    `${collection(type)}/:name`,
    {
      schema: {
        summary: `Get an ${one}. If the namespace has no ${one} of this name, the one in the default namespace is returned`,
        description: 'The item shows whether the content is ready, and the reason if it failed.',
        roles: READERS,
        tags: tagsOf(one),
        params: paramsOf(one),
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
        description: 'An empty text removes the description.',
        roles: MEMBERS,
        sample: { description: 'For the build of the desktop app' },
        tags: tagsOf(one),
        params: paramsOf(one),
        body: descriptionRequestSchema,
        response: { 200: statusSchema },
      },
    },
    async ({ caller, params, body: { description } }) => {
      await setDescription(caller(), type, checked(type, params), description);
      return success();
    },
  );
}

function addCopyRoute(app: App, { type, one }: Kind, { config: { namespaces } }: Services): void {
  app.post(
    `${collection(type)}/:name/copy`,
    {
      config: { right: inNamespace({ verb: 'create', resource: type.plural }), dialect: COPY_DIALECT },
      schema: {
        summary: `Copy an ${one}. If the namespace has no ${one} of this name, the one in the default namespace is copied`,
        description: 'The copy has the same content. Later changes of the source do not change the copy.',
        roles: MEMBERS,
        sample: { imageName: SAMPLE.copy },
        tags: tagsOf(one),
        params: paramsOf(one),
        body: copyRequestSchema,
        response: { 200: imageItemSchema },
      },
    },
    async ({ caller, params, body }) => {
      const client = caller();
      const source = await findAs(client, type, params, namespaces.default);
      const { namespace } = params;
      const metadata = { name: body.imageName, namespace };
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
        description: 'VMs that use it keep their disks. Its content is removed from the image storage.',
        roles: MEMBERS,
        tags: tagsOf(one),
        params: objectParams(one, SAMPLE.new),
        response: { 200: statusSchema },
      },
    },
    async ({ caller, params }) => {
      await deleteAs(caller(), type, params);
      return success();
    },
  );
}

const SAMPLE_FILE = { url: 'https://images.example/installer.iso', sha256: 'a'.repeat(64) };

interface Creation extends Kind {
  readonly body: typeof imageRequestSchema | typeof isoRequestSchema;
  readonly sample: object;
}

const CREATIONS: readonly Creation[] = [
  { type: IMAGES, one: 'image', body: imageRequestSchema, sample: { size: '1G' } },
  { type: ISOS, one: 'ISO', body: isoRequestSchema, sample: SAMPLE_FILE },
];

function addCreateRoutes(app: App): void {
  for (const { type, one, body, sample } of CREATIONS) {
    app.post(
      collection(type),
      {
        config: { right: inNamespace({ verb: 'create', resource: type.plural }), dialect: IMAGE_DIALECT },
        schema: {
          summary: `Make an ${one} from a registry, a web server or a shared file${one === 'image' ? ', or an empty disk' : ''}`,
          description:
            'The answer does not wait for the content. Read the object until its state is Ready or Failed. Other paths make copies, and take uploads and the disks of VMs.',
          roles: MEMBERS,
          sample: { imageName: SAMPLE.new, ...sample },
          tags: tagsOf(one),
          params: namespaceParams,
          body,
          response: { 200: imageItemSchema },
        },
      },
      async ({ caller, params: { namespace }, body: { imageName, ...request } }) => {
        const metadata = { name: imageName, namespace };
        return imageItem(await createAs(caller(), type, { metadata, spec: contentSpec(request) }));
      },
    );
  }
}

function collection({ plural }: Resource<StoredContent>): string {
  return `/api/v1/namespaces/:namespace/${plural}`;
}

function paramsOf(one: string) {
  return objectParams(one, one === 'image' ? SAMPLE.image : SAMPLE.new);
}

function tagsOf(one: string): string[] {
  return [one === 'image' ? 'Images' : 'ISOs'];
}

const NAMESPACE = '/api/v1/namespaces/:namespace';
const FILE_TYPE = 'application/octet-stream';
const FILE_ANSWER = {
  description: 'The file',
  content: { [FILE_TYPE]: { schema: z.any().meta({ type: 'string', format: 'binary' }) } },
};
const NO_REMOTE =
  'Remote images are not supported. Use an OCI reference as the image, or add the reference to the image cache';

export function addTransferRoutes(app: App, services: Services, { uploads, downloads }: FileTransfers): void {
  addUploadRoutes(app, services, uploads);
  addDownloadRoutes(app, services, downloads);
  app.get(
    `${NAMESPACE}/remoteimages`,
    {
      schema: {
        summary: 'List remote images. The list is always empty',
        description:
          'This path is for clients of other platforms. Berth uses images in registries by their references.',
        roles: READERS,
        tags: ['Images'],
        params: namespaceParams,
        response: { 200: imageListSchema },
      },
    },
    async ({ caller, params }) => {
      // This request only checks the rights: the API server refuses it if the caller is not allowed to list the images of the namespace.
      await listAs(caller(), IMAGES, { ...params, limit: 1 }, ({ metadata }) => metadata.name);
      return { items: [] };
    },
  );
  for (const [one, tag] of [
    ['image', 'Images'],
    ['iso', 'ISOs'],
  ] as const) {
    refuse(app, 'POST', `/remote${one}s/:name/pull`, {
      summary: 'Pull a remote image. This is not supported, so the answer is always 501',
      description: 'This path is for clients of other platforms, which get the reason in the answer.',
      roles: 'any token',
      params: objectParams('remote image', SAMPLE.image),
      tags: [tag],
      message: NO_REMOTE,
    });
  }
}

function addUploadRoutes(app: App, { config: { namespaces } }: Services, uploads: Uploads): void {
  // The plugin for multipart bodies is registered in this scope only, because no other route here needs it.
  void app.register(async (scope: App) => {
    await scope.register(multipart, { limits: UPLOAD_LIMITS });
    for (const { one, tag, type } of [
      { one: 'image', tag: 'Images', type: IMAGES },
      { one: 'ISO', tag: 'ISOs', type: ISOS },
    ]) {
      scope.post(
        `${NAMESPACE}/upload/${one.toLowerCase()}`,
        {
          schema: {
            summary: `Upload a file as a new ${one}. In the body, all texts must come before the file`,
            sample: { imageName: SAMPLE.new, description: 'With all updates of May' },
            description:
              'The cluster needs an image storage. The answer comes when the content is stored, so it can take minutes.',
            roles: MEMBERS,
            tags: [tag],
            params: namespaceParams,
            response: { 200: imageItemSchema },
          },
          config: { files: ['file'], texts: uploadTextsSchema },
        },
        async (request, reply) => {
          const { namespace } = request.params;
          const caller = request.fullCaller();
          const bytes = lengthOf(request);
          const read = async () => {
            const form = await readForm(request);
            // The transfer of the file has no time limit. The texts before the file have a time limit, so that a slow client does not take
            // one of the few places for uploads for long.
            allowLongBody(request.raw, reply.raw);
            return form;
          };
          try {
            const upload = { caller, type, namespace, systemNamespace: namespaces.system, bytes, read };
            return imageItem(await uploads.upload(upload, reply.raw));
          } finally {
            // The rest of the body is read and dropped, because clients read the answer only after they have sent everything.
            request.raw.unpipe().resume();
          }
        },
      );
    }
  });
}

function addDownloadRoutes(app: App, { config: { namespaces } }: Services, downloads: Downloads): void {
  for (const { one, tag, type, ending } of [
    { one: 'image', tag: 'Images', type: IMAGES, ending: 'qcow2' },
    { one: 'ISO', tag: 'ISOs', type: ISOS, ending: 'iso' },
  ]) {
    app.get(
      `${NAMESPACE}/${type.plural}/:name/download`,
      {
        schema: {
          summary: `Download an ${one} as a file. If the namespace has no ${one} of this name, the one in the default namespace is sent`,
          description: 'The cluster needs an image storage, and the content must be ready.',
          roles: MEMBERS,
          tags: [tag],
          params: paramsOf(one),
          response: { 200: FILE_ANSWER },
        },
      },
      async (request, reply) => {
        const ref = request.params;
        const asked = { caller: request.fullCaller(), type, ref, namespaces };
        const object = await downloads.find(asked);
        // A HEAD request must not begin a download. Its answer lacks the length, because the length is known only after the start of a
        // download.
        const isHead = request.method === 'HEAD';
        const download = isHead ? undefined : await downloads.open(asked, object, reply.raw);
        const length = download && { 'content-length': download.bytes };
        const disposition = `attachment; filename="${ref.name}.${ending}"`;
        void reply.headers({ 'content-type': FILE_TYPE, 'content-disposition': disposition, ...length });
        return await reply.send(download?.file ?? Readable.from([]));
      },
    );
  }
}

interface Refusal extends FastifySchema {
  readonly message: string;
}

/** Adds a route that answers 501. The answer does not wait for the body, because the body can be a whole disk. */
function refuse(app: App, method: 'GET' | 'POST', path: string, { message, ...schema }: Refusal): void {
  const answer = () => {
    throw new StatusError(501, message);
  };
  app.route({
    method,
    url: `${NAMESPACE}${path}`,
    schema: { ...schema, response: { 501: statusSchema } },
    onRequest: answer,
    handler: answer,
  });
}
