/**
 * Passes reads of the console on to the API server, with the token of the caller. The routes of this file, `watches.ts`, `logs.ts` and
 * `streams.ts` are the whole list of what the console can read there: objects of Berth's kinds, hosts, the Events of one object, and logs. No other path is passed on.
 */
import * as z from 'zod';
import { HOSTS_SELECTOR } from '../../api/http/host.ts';
import { listQuerySchema } from '../../api/http/request.ts';
import { GROUP } from '../../api/v1alpha1/names.ts';
import {
  EMULATORS,
  IMAGE_CACHE_ENTRIES,
  IMAGES,
  ISOS,
  RUNNER_SETS,
  SERVERS,
  VM_CONFIGS,
  VM_POOLS,
  VM_SNAPSHOTS,
  VMS,
} from '../../api/v1alpha1/resources.ts';
import { EVENTS, type Node, NODES } from '../../kube/core.ts';
import type { KubeObject, Resource } from '../../kube/objects.ts';
import { listObjectsAs } from '../callers/list.ts';
import { callerMay } from '../callers/objects.ts';
import type { App } from '../http/app.ts';
import { namespaceParams } from '../http/namespaces.ts';
import type { Services } from '../services.ts';

/** Paths of the reads: lists, and facts about the caller. */
const OBJECTS_PATH = '/console/objects';
const SESSION_PATH = '/console/session';

/** Largest number of objects in one answer, and the default. A page of VMs then has about 2 MB. */
const PAGE_OBJECTS = 500;
/** Kinds of which a caller can read objects in a namespace, or in all. */
const NAMESPACED: readonly Resource<KubeObject>[] = [
  VMS,
  VM_CONFIGS,
  VM_SNAPSHOTS,
  VM_POOLS,
  IMAGES,
  ISOS,
  IMAGE_CACHE_ENTRIES,
  EMULATORS,
  RUNNER_SETS,
];

/** A type of objects that the console reads. */
export interface ReadTarget {
  readonly type: Resource<KubeObject>;
  readonly labelSelector?: string;
  /** Makes a listed object smaller. Watches pass objects on unchanged. */
  readonly trim?: (object: KubeObject) => KubeObject;
}

/** Types that the console reads in the whole cluster. */
const CLUSTER_WIDE: readonly ReadTarget[] = [
  ...NAMESPACED.map((type) => ({ type })),
  { type: SERVERS },
  { type: NODES, labelSelector: HOSTS_SELECTOR, trim: withoutImages },
];

/** Returns the type with this plural name that the console reads in one namespace or in the whole cluster. */
export function findTarget(plural: string, namespace: string | undefined): ReadTarget | undefined {
  return CLUSTER_WIDE.find(
    ({ type }) => type.plural === plural && (namespace === undefined || NAMESPACED.includes(type)),
  );
}

/** The page asks for a smaller `limit` when its objects are together too large for one answer. */
const listQuery = listQuerySchema.pick({ limit: true, continue: true });
const eventQuery = z.object({
  regarding: z
    .string()
    .min(1)
    .max(253)
    .regex(/^[-a-z0-9.]+$/, 'must be the name of an object'),
});

/** `hide` keeps the routes out of the OpenAPI document: they serve only the page of the same release. */
const hidden = { hide: true, response: { 200: z.any() } } as const;
/** The objects are valid already, and a check of each one would take longer than its conversion. */
const serializerCompiler = () => JSON.stringify;

/** Adds the routes. */
export function addConsoleReads(app: App, { config }: Services): void {
  addSession(app, config.namespaces.default);
  for (const target of CLUSTER_WIDE) {
    addList(app, target, `${OBJECTS_PATH}/${target.type.plural}`);
  }
  for (const type of NAMESPACED) {
    addList(app, { type }, `${OBJECTS_PATH}/namespaces/:namespace/${type.plural}`);
  }
  addEvents(app);
}

/** Adds the route with which the page learns whose token it has, and which scope it can show. */
function addSession(app: App, defaultNamespace: string): void {
  app.get(SESSION_PATH, { exposeHeadRoute: false, schema: hidden }, async ({ caller }) => {
    const client = caller();
    const username = await client.username();
    const [vms, hosts, servers] = await Promise.all([
      callerMay(client, { verb: 'watch', group: GROUP, resource: VMS.plural }),
      callerMay(client, { verb: 'watch', group: '', resource: NODES.plural }),
      callerMay(client, { verb: 'watch', group: GROUP, resource: SERVERS.plural }),
    ]);
    return { username, defaultNamespace, mayWatch: { vms, hosts, servers } };
  });
}

function addList(app: App, { type, labelSelector, trim }: ReadTarget, path: string): void {
  const params = path.includes(':namespace') ? { params: namespaceParams } : {};
  app.get(
    path,
    { exposeHeadRoute: false, schema: { ...hidden, ...params, querystring: listQuery }, serializerCompiler },
    async (request) => {
      const { namespace } = request.params as { namespace?: string };
      const { limit = PAGE_OBJECTS, continue: position } = request.query;
      const scope = namespace === undefined ? {} : { namespace };
      const selection = { ...scope, labelSelector, limit, continue: position };
      return await listObjectsAs(request.caller(), type, selection, trim);
    },
  );
}

function addEvents(app: App): void {
  app.get(
    `${OBJECTS_PATH}/namespaces/:namespace/events`,
    {
      exposeHeadRoute: false,
      schema: { ...hidden, params: namespaceParams, querystring: eventQuery },
      serializerCompiler,
    },
    async ({ caller, params: { namespace }, query: { regarding } }) => {
      const fieldSelector = `regarding.name=${regarding}`;
      return await listObjectsAs(caller(), EVENTS, { namespace, fieldSelector, limit: PAGE_OBJECTS });
    },
  );
}

/** Returns the Node without the images of its host, which are most of its size. */
function withoutImages(object: KubeObject): KubeObject {
  const { status = {}, ...node } = object as Node;
  const { images: _, ...rest } = status;
  return { ...node, status: rest } as Node;
}
