/** The cache of images on the hosts of a namespace. ImageCacheEntries belong to no namespace, so the server changes them itself. */
import type { FastifyRequest } from 'fastify';
import * as z from 'zod';
import {
  cacheInfoSchema,
  cacheListSchema,
  cacheRemovalSchema,
  cacheResultSchema,
  type CacheResult,
  type CacheSelection,
  cacheSelectionSchema,
} from '../../api/http/imagecache.ts';
import { referenceOf } from '../../api/v1alpha1/cachetargets.ts';
import type { App } from '../http/app.ts';
import { decodedImageName, splitImagePath } from '../http/imagename.ts';
import { namespaceParams } from '../http/params.ts';
import type { Services } from '../services.ts';
import { addToHosts, removeFromHosts } from './changes.ts';
import { Entries } from './entries.ts';
import { cachedImage, imageToCache, type Named } from './image.ts';
import { infoItems, listItems } from './info.ts';

const IMAGES_PATH = '/api/v1/namespaces/:namespace/cache/images';
const tags = ['Image cache'];
const imageParams = namespaceParams.extend({ image: z.string().min(1) });
/** The rest of a path, with an image name whose slashes are not encoded. */
const restParams = namespaceParams.extend({ '*': z.string().min(1) });
/** Some hosts may fail and others not, so the answer has a status for each host. */
const MULTI_STATUS = 207;

type Action = 'add' | 'remove';
type Request = Pick<FastifyRequest, 'headers' | 'caller'>;

/** Answers requests. The rights of the caller are checked first. */
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
    const source = cachedImage(named, this.#entries, this.#defaultNamespace);
    const reference = referenceOf({ spec: source });
    return {
      // The list of cached images also names an Image object without its namespace.
      image: source.imageRef?.name ?? reference,
      items: infoItems(reference, hosts.of(namespace), this.#entries.find(reference)),
    };
  }

  async change(
    { headers, caller }: Request,
    action: Action,
    named: Named,
    selection: CacheSelection,
  ): Promise<CacheResult> {
    const { namespace } = named;
    const { rights, hosts } = this.#services.own;
    await rights.require(headers, {
      verb: 'update',
      resource: 'hosts',
      subresource: 'imagecache',
      namespace,
    });
    if (action === 'remove') {
      const source = cachedImage(named, this.#entries, this.#defaultNamespace);
      return await removeFromHosts(this.#entries, hosts, { source, namespace, selection });
    }
    const source = await imageToCache(named, caller(), this.#defaultNamespace);
    return await addToHosts(this.#entries, hosts, { source, namespace, selection });
  }
}

export function addImageCacheRoutes(app: App, services: Services): void {
  const cache = new ImageCache(services);
  addReads(app, cache);
  addChanges(app, cache);
  addPathsWithSlashes(app, cache);
  addRemovals(app, cache, services.config.namespaces.default);
}

function addReads(app: App, cache: ImageCache): void {
  app.get(
    IMAGES_PATH,
    {
      schema: {
        summary: 'List the images on the hosts of a namespace',
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
        summary: 'Read on which hosts of a namespace an image is',
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
    ['/:image', 'add', 'Keep an image on hosts of a namespace. It is the same as the path with /add'],
    ['/:image/add', 'add', 'Keep an image on hosts of a namespace'],
    ['/:image/remove', 'remove', 'Remove an image from hosts of a namespace'],
  ] as const) {
    app.post(
      IMAGES_PATH + path,
      {
        schema: {
          summary,
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

/** Accepts image names whose slashes are not encoded. */
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

/** Accepts the removal with the image in the body. */
function addRemovals(app: App, cache: ImageCache, defaultNamespace: string): void {
  for (const path of ['/api/v1/imagecache/remove', '/v1/imagecache/remove']) {
    app.post(
      path,
      {
        schema: {
          summary: 'Remove an image from hosts of a namespace, by default of the default namespace',
          tags,
          body: cacheRemovalSchema,
          response: { [MULTI_STATUS]: cacheResultSchema },
        },
      },
      async (request, reply) => {
        const { image, imageName, imageReference, namespace = defaultNamespace, ...selection } = request.body;
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
