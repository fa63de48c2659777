/** Routes for the image cache of a namespace. The caller's own rights to ImageCacheEntries and Images decide. */
import { inNamespace, MEMBERS } from '../own/rights.ts';
import type { FastifyRequest } from 'fastify';
import * as z from 'zod';
import { type CacheAccess, changeCache, isOneSelection } from '../../actions/cache.ts';
import { cacheInfo, cacheList } from '../../actions/cacheinfo.ts';
import {
  cacheInfoSchema,
  cacheListSchema,
  cacheRemovalSchema,
  cacheResultSchema,
  type CacheSelection,
  cacheSelectionSchema,
} from '../../api/http/imagecache.ts';
import type { App } from '../http/app.ts';
import { StatusError } from '../http/errors.ts';
import { CACHE_DIALECT } from '../dialect/fields.ts';
import { decodedImageName, splitImagePath } from '../dialect/aliases.ts';
import { namespaceParams, requireServed } from '../http/namespaces.ts';
import type { Services } from '../services.ts';
import { SAMPLE } from '../http/samples.ts';

const IMAGES_PATH = '/api/v1/namespaces/:namespace/cache/images';
const tags = ['Image cache'];
const imageParams = namespaceParams.extend({
  image: z
    .string()
    .min(1)
    .meta({
      description: 'Name of an Image, or an OCI reference. Slashes are percent-encoded.',
      examples: [SAMPLE.image],
    }),
});
/**
 * Parameters of a path in which the slashes of the image name are not encoded. The parameter `*` contains the image name, and the action if
 * the path ends with an action.
 */
const restParams = namespaceParams.extend({ '*': z.string().min(1) });
/** Status code of answers that contain a status for each host, because the work can fail on some hosts and succeed on others. */
const MULTI_STATUS = 207;

/** Right to change which hosts keep images. */
const CHANGE = { verb: 'patch', resource: 'imagecacheentries' } as const;

type Action = 'add' | 'remove';
type Request = Pick<FastifyRequest, 'headers' | 'caller'>;

/** Image as a path or body names it. */
interface Named {
  readonly namespace: string;
  readonly image: string;
}

/** Returns the cache of the namespace. @throws StatusError 403 when the caller may not list hosts, and 404 when there is no namespace. */
async function accessTo(
  { own, config }: Services,
  { headers, caller }: Request,
  namespace: string,
): Promise<CacheAccess> {
  // Nodes belong to no namespace, so the server reads them with its own identity.
  await own.rights.require(headers, { verb: 'list', resource: 'hosts', namespace });
  const { default: defaultNamespace } = config.namespaces;
  return { client: caller(), namespace, defaultNamespace, hosts: own.hosts.of(namespace) };
}

export function addImageCacheRoutes(app: App, services: Services): void {
  addReads(app, services);
  addChanges(app, services);
  addPathsWithSlashes(app, services);
  addRemovals(app, services);
}

function addReads(app: App, services: Services): void {
  app.get(
    IMAGES_PATH,
    {
      schema: {
        summary: 'List the images in the cache of a namespace, and on its hosts',
        description: 'Each item has the number of hosts that have the image, and its status on all of them.',
        roles: MEMBERS,
        tags,
        params: namespaceParams,
        response: { 200: cacheListSchema },
      },
    },
    async (request) => await cacheList(await accessTo(services, request, request.params.namespace)),
  );
  app.get(
    `${IMAGES_PATH}/:image`,
    {
      schema: {
        summary: 'List the hosts of a namespace that have an image',
        description:
          'Each item shows whether the image is ready on the host, and the reason if it failed. The image can also be a digest (`sha256:…`): `imageId` in the list.',
        roles: MEMBERS,
        tags,
        params: imageParams,
        response: { 200: cacheInfoSchema },
      },
    },
    async (request) => await info(services, request, namedIn(request.params)),
  );
}

async function info(services: Services, request: Request, { namespace, image }: Named) {
  return await cacheInfo(await accessTo(services, request, namespace), image);
}

/** Changes the cache as the caller. The route states the right. */
async function change(
  services: Services,
  request: Request,
  { namespace, image }: Named,
  { action, selection }: { action: Action; selection: CacheSelection },
) {
  if (!isOneSelection(selection)) {
    throw new StatusError(400, 'exactly one of the fields `nodes`, `tags` and `all` must be set');
  }
  const access = await accessTo(services, request, namespace);
  return await changeCache(access, { action, image, selection });
}

function addChanges(app: App, services: Services): void {
  for (const [path, action, summary] of [
    [
      '/:image',
      'add',
      'Keep an image on hosts for a namespace. This path has the same effect as the path that ends with /add',
    ],
    ['/:image/add', 'add', 'Keep an image on hosts for a namespace'],
    ['/:image/remove', 'remove', 'Remove an image from hosts for a namespace'],
  ] as const) {
    app.post(
      IMAGES_PATH + path,
      {
        config: { right: inNamespace(CHANGE) },
        schema: {
          summary,
          description:
            'Exactly one of `nodes`, `tags` and `all` selects the hosts. The answer has a status for each host.',
          roles: MEMBERS,
          sample: { nodes: [SAMPLE.host] },
          tags,
          params: imageParams,
          body: cacheSelectionSchema,
          response: { [MULTI_STATUS]: cacheResultSchema },
        },
      },
      async (request, reply) => {
        reply.code(MULTI_STATUS);
        return await change(services, request, namedIn(request.params), { action, selection: request.body });
      },
    );
  }
}

/** Adds routes for image names whose slashes are not percent-encoded. */
function addPathsWithSlashes(app: App, services: Services): void {
  app.get(
    `${IMAGES_PATH}/*`,
    { schema: { hide: true, params: restParams, response: { 200: cacheInfoSchema } } },
    async (request) => {
      const { namespace, '*': rest } = request.params;
      return await info(services, request, { namespace, image: decodedImageName(rest) });
    },
  );
  app.post(
    `${IMAGES_PATH}/*`,
    {
      config: { right: inNamespace(CHANGE) },
      schema: {
        hide: true,
        params: restParams,
        body: cacheSelectionSchema,
        response: { [MULTI_STATUS]: cacheResultSchema },
      },
    },
    async (request, reply) => {
      const { namespace, '*': rest } = request.params;
      const { image, action = 'add' } = splitImagePath<Action>(rest, ['add', 'remove']);
      reply.code(MULTI_STATUS);
      return await change(services, request, { namespace, image }, { action, selection: request.body });
    },
  );
}

/** Adds the routes for a removal whose image is named in the body and not in the path. */
function addRemovals(app: App, services: Services): void {
  const { namespaces } = services.config;
  for (const path of ['/api/v1/imagecache/remove', '/v1/imagecache/remove']) {
    app.post(
      path,
      {
        config: { right: 'body', dialect: CACHE_DIALECT },
        schema: {
          summary:
            'Remove an image from hosts for a namespace. If the request names no namespace, the default namespace is used',
          description: 'This path is for clients that name the image in the body.',
          roles: MEMBERS,
          sample: { image: SAMPLE.image, namespace: SAMPLE.namespace, nodes: [SAMPLE.host] },
          tags,
          body: cacheRemovalSchema,
          response: { [MULTI_STATUS]: cacheResultSchema },
        },
      },
      async (request, reply) => {
        const { image, namespace = namespaces.default, ...selection } = request.body;
        requireServed(namespace, namespaces);
        await services.own.rights.require(request.headers, { ...CHANGE, namespace });
        reply.code(MULTI_STATUS);
        return await change(services, request, { namespace, image }, { action: 'remove', selection });
      },
    );
  }
}

function namedIn({ namespace, image }: Named): Named {
  return { namespace, image: decodedImageName(image) };
}
