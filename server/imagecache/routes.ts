/**
 * Routes for the image cache of a namespace's hosts. The server changes ImageCacheEntries with its own rights. It cannot use the caller's
 * rights: ImageCacheEntries are cluster-scoped, and a role in a namespace gives no right to them.
 */
import { inNamespace, MEMBERS } from '../own/rights.ts';
import type { FastifyRequest } from 'fastify';
import * as z from 'zod';
import { cacheChange, isOneSelection } from '../../api/http/cachechange.ts';
import { infoItems, listItems, objectInfoItems } from '../../api/http/cacheinfo.ts';
import {
  cacheInfoSchema,
  cacheListSchema,
  cacheRemovalSchema,
  cacheResultSchema,
  type CacheResult,
  type CacheSelection,
  cacheSelectionSchema,
} from '../../api/http/imagecache.ts';
import type { App } from '../http/app.ts';
import { notFound, StatusError } from '../http/errors.ts';
import { decodedImageName, splitImagePath } from '../dialect/imagename.ts';
import { namespaceParams } from '../http/namespaces.ts';
import { isServedNamespace } from '../../api/v1alpha1/names.ts';
import type { Services } from '../services.ts';
import { Entries } from './entries.ts';
import { cachedImage, imageToCache, type Named } from './image.ts';
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
const CHANGE = { verb: 'update', resource: 'hosts', subresource: 'imagecache' } as const;

type Action = 'add' | 'remove';
type Request = Pick<FastifyRequest, 'headers' | 'caller'>;

/** Handlers of the routes. Reads first check the rights of the caller. The route of a change states its right. */
class ImageCache {
  readonly #services: Services;
  readonly #entries: Entries;

  constructor(services: Services) {
    this.#services = services;
    this.#entries = new Entries(services.own.client, services.own.watches);
  }

  get #defaultNamespace(): string {
    return this.#services.config.namespaces.default;
  }

  async list({ headers }: Request, namespace: string) {
    const { rights, hosts } = this.#services.own;
    await rights.require(headers, { verb: 'list', resource: 'hosts', namespace });
    return { items: listItems(hosts.of(namespace), namespace, this.#defaultNamespace) };
  }

  async info({ headers }: Request, named: Named) {
    const { namespace } = named;
    const { rights, hosts } = this.#services.own;
    await rights.require(headers, { verb: 'list', resource: 'hosts', namespace });
    const { reference } = cachedImage(named, this.#entries, this.#defaultNamespace);
    const own = hosts.of(namespace);
    const entryFor = (one: string) => this.#entries.find(one);
    if (reference !== undefined) {
      return { image: reference, items: infoItems(reference, own, entryFor(reference)) };
    }
    // The answer names an Image object without its namespace, as the list of cached images does.
    const { image } = named;
    const namespaces = { own: namespace, default: this.#defaultNamespace };
    return { image, items: objectInfoItems(image, namespaces, own, entryFor) };
  }

  async change(
    { caller }: Pick<Request, 'caller'>,
    action: Action,
    named: Named,
    selection: CacheSelection,
  ): Promise<CacheResult> {
    const { namespace } = named;
    const { hosts } = this.#services.own;
    if (!isOneSelection(selection)) {
      throw new StatusError(400, 'exactly one of the fields `nodes`, `tags` and `all` must be set');
    }
    const source =
      action === 'remove'
        ? cachedImage(named, this.#entries, this.#defaultNamespace)
        : await imageToCache(named, caller(), this.#defaultNamespace);
    const exists = (name: string) => hosts.exists(name);
    const change = cacheChange(action, { own: hosts.of(namespace), exists }, selection);
    await this.#entries.change(source, change.own, change.change);
    return change.result();
  }
}

export function addImageCacheRoutes(app: App, services: Services): void {
  const cache = new ImageCache(services);
  addReads(app, cache);
  addChanges(app, cache);
  addPathsWithSlashes(app, cache);
  addRemovals(app, cache, services);
}

function addReads(app: App, cache: ImageCache): void {
  app.get(
    IMAGES_PATH,
    {
      schema: {
        summary: 'List the images on the hosts of a namespace',
        description: 'Each item has the number of hosts that have the image.',
        roles: MEMBERS,
        tags,
        params: namespaceParams,
        response: { 200: cacheListSchema },
      },
    },
    async (request) => await cache.list(request, request.params.namespace),
  );
  app.get(
    `${IMAGES_PATH}/:image`,
    {
      schema: {
        summary: 'List the hosts of a namespace that have an image',
        description: 'Each item shows whether the image is ready on the host, and the reason if it failed.',
        roles: MEMBERS,
        tags,
        params: imageParams,
        response: { 200: cacheInfoSchema },
      },
    },
    async (request) => await cache.info(request, namedIn(request.params)),
  );
}

function addChanges(app: App, cache: ImageCache): void {
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
        return await cache.change(request, action, namedIn(request.params), request.body);
      },
    );
  }
}

/** Adds routes for image names whose slashes are not percent-encoded. */
function addPathsWithSlashes(app: App, cache: ImageCache): void {
  app.get(
    `${IMAGES_PATH}/*`,
    { schema: { hide: true, params: restParams, response: { 200: cacheInfoSchema } } },
    async (request) => {
      const { namespace, '*': rest } = request.params;
      return await cache.info(request, { namespace, image: decodedImageName(rest) });
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
      return await cache.change(request, action, { namespace, image }, request.body);
    },
  );
}

/** Adds the routes for a removal whose image is named in the body and not in the path. */
function addRemovals(app: App, cache: ImageCache, { config: { namespaces }, own }: Services): void {
  for (const path of ['/api/v1/imagecache/remove', '/v1/imagecache/remove']) {
    app.post(
      path,
      {
        config: { right: 'body' },
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
        const {
          image,
          imageName,
          imageReference,
          namespace = namespaces.default,
          ...selection
        } = request.body;
        if (!isServedNamespace(namespace, namespaces)) {
          throw notFound('namespaces', namespace);
        }
        await own.rights.require(request.headers, { ...CHANGE, namespace });
        const named = { namespace, image: image ?? imageName ?? imageReference ?? '' };
        reply.code(MULTI_STATUS);
        return await cache.change(request, 'remove', named, selection);
      },
    );
  }
}

function namedIn({ namespace, image }: Named): Named {
  return { namespace, image: decodedImageName(image) };
}
