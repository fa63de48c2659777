/**
 * Passes reads of the console on to the API server, with the token of the caller. The routes of this file, `logs.ts` and `streams.ts` are the
 * whole list of what the console can read there: objects of Berth's kinds, hosts, the Events of one object, and logs. No other path is passed on.
 */
import { Readable } from 'node:stream';
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
import { query } from '../../kube/client.ts';
import { EVENTS, type Node, NODES } from '../../kube/core.ts';
import { type KubeObject, pathOf, type Resource } from '../../kube/objects.ts';
import { accountNamespaceOf } from '../../kube/serving/connections.ts';
import { listObjectsAs } from '../callers/list.ts';
import { callerMay } from '../callers/objects.ts';
import type { App } from '../http/app.ts';
import { limitReading } from '../http/answers.ts';
import { namespaceParams } from '../http/namespaces.ts';
import type { WaitingRequests } from '../http/waiting.ts';
import type { Services } from '../services.ts';

/** Paths of the reads: lists, watches, and facts about the caller. */
const OBJECTS_PATH = '/console/objects';
const WATCH_PATH = '/console/watch';
const SESSION_PATH = '/console/session';

/** Largest number of watches of one user: six open pages with four each. A page that nobody sees has none. */
export const USER_WATCHES = 24;
/** Largest number of objects in one answer, and the default. A page of VMs then has about 2 MB. */
const PAGE_OBJECTS = 500;
/**
 * Time in seconds after which a watch ends, and the page begins the next one. The API server checks a token only when a watch begins, so a
 * token that was withdrawn reads no longer than this.
 */
const WATCH_SECONDS = 300;
/** Time in milliseconds after which a watch is cut whose client does not read the end of it. */
const WATCH_MILLISECONDS = (WATCH_SECONDS + 30) * 1000;
/** Largest number of bytes of one watch. After them the page begins the next watch, so that each client is admitted again. */
const WATCH_BYTES = 64 * 1024 * 1024;

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

/** A type of objects that a route reads. */
interface Target {
  readonly type: Resource<KubeObject>;
  readonly labelSelector?: string;
  /** Makes a listed object smaller. Watches pass objects on unchanged. */
  readonly trim?: (object: KubeObject) => KubeObject;
}

const CLUSTER_WIDE: readonly Target[] = [
  ...NAMESPACED.map((type) => ({ type })),
  { type: SERVERS },
  { type: NODES, labelSelector: HOSTS_SELECTOR, trim: withoutImages },
];

/** The page asks for a smaller `limit` when its objects are together too large for one answer. */
const listQuery = listQuerySchema.pick({ limit: true, continue: true });
const watchQuery = z.object({
  resourceVersion: z.string().regex(/^\d{1,20}$/, 'must be the resourceVersion of a list, a whole number'),
});
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

/** Adds the routes. `watching` counts the watches. */
export function addConsoleReads(app: App, { config }: Services, watching: WaitingRequests): void {
  addSession(app, config.namespaces.default);
  for (const target of CLUSTER_WIDE) {
    addList(app, target, `${OBJECTS_PATH}/${target.type.plural}`);
    addWatch(app, watching, target, `${WATCH_PATH}/${target.type.plural}`);
  }
  for (const type of NAMESPACED) {
    const scope = `namespaces/:namespace/${type.plural}`;
    addList(app, { type }, `${OBJECTS_PATH}/${scope}`);
    addWatch(app, watching, { type }, `${WATCH_PATH}/${scope}`);
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

function addList(app: App, { type, labelSelector, trim }: Target, path: string): void {
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

function addWatch(app: App, watching: WaitingRequests, { type, labelSelector }: Target, path: string): void {
  const params = path.includes(':namespace') ? { params: namespaceParams } : {};
  app.get(
    path,
    { exposeHeadRoute: false, schema: { ...hidden, ...params, querystring: watchQuery } },
    async (request, reply) => {
      const { namespace } = request.params as { namespace?: string };
      const { client, pages } = request.fullCaller();
      const scope = namespace === undefined ? {} : { namespace };
      const parameters = {
        watch: true,
        allowWatchBookmarks: true,
        labelSelector,
        resourceVersion: request.query.resourceVersion,
        timeoutSeconds: WATCH_SECONDS,
      };
      const user = await client.username();
      // Members of a namespace can create any number of service accounts, so their watches also have a limit together.
      const accounts = accountNamespaceOf(user);
      const owner = accounts === undefined ? { user } : { user, namespace: accounts };
      return await watching.run(reply.raw, owner, async ({ signal }) => {
        const events = await pages.stream(pathOf(type, scope) + query(parameters), signal);
        limitReading(reply.raw, WATCH_MILLISECONDS, () => undefined);
        return await reply.type('application/json').send(Readable.from(limitBytes(events)));
      });
    },
  );
}

/**
 * Ends a watch after {@link WATCH_BYTES}. The page does not use a line without an end. The first line is empty, because Node.js sends the
 * headers of an answer together with its first bytes, and the first event can take long.
 */
async function* limitBytes(events: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
  yield Buffer.from('\n');
  let bytes = 0;
  for await (const chunk of events) {
    yield chunk;
    bytes += chunk.length;
    if (bytes >= WATCH_BYTES) {
      return;
    }
  }
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
