/** Namespaces: those that the caller may see, and their creation and deletion. */
import PQueue from 'p-queue';
import { namespaceItemSchema, namespaceListSchema, namespaceRequestSchema } from '../api/http/namespace.ts';
import { createNamespace, deleteNamespace, NAMED } from '../actions/namespaces.ts';
import { namespaceItem } from '../api/http/namespaceitem.ts';
import { statusSchema, success } from '../api/http/status.ts';
import { type Namespace, NAMESPACES } from '../kube/core.ts';
import type { App } from './http/app.ts';
import { invalidField, StatusError } from './http/errors.ts';
import { namespaceParams, NAMESPACES_PATH } from './http/namespaces.ts';
import type { Services } from './services.ts';
import { GROUP, isServedNamespace } from '../api/v1alpha1/names.ts';
import type { KubeClient } from '../kube/client.ts';
import type { KubeObject } from '../kube/objects.ts';
import { callerMay } from './callers/objects.ts';
import type { CallerClient } from './callers/caller.ts';
import { listAs } from './callers/list.ts';
import { VMS } from '../api/v1alpha1/resources.ts';
import { undefinedIf } from '../base/errors.ts';
import { isForbidden } from '../kube/errors.ts';
import type { ServerWatches } from './own/watches.ts';
import { SAMPLE } from './http/samples.ts';
import { HTTP_ROLES, OWNERS } from './own/rights.ts';

const NAMESPACE_PATH = `${NAMESPACES_PATH}/:namespace`;
const tags = ['Namespaces'];

export function addNamespaceRoutes(app: App, services: Services): void {
  addReads(app, services);
  addCreation(app, services);
  addDeletion(app, services);
}

function addReads(app: App, { config: { namespaces }, own }: Services): void {
  const visible = new VisibleNamespaces(own.watches, (name) => isServedNamespace(name, namespaces));
  app.get(
    NAMESPACES_PATH,
    {
      schema: {
        summary: 'List the namespaces that the caller can see',
        description: 'A caller sees a namespace if the caller may list its VMs.',
        roles: 'any token',
        tags,
        response: { 200: namespaceListSchema },
      },
    },
    async ({ caller }) => ({ items: (await visible.list(caller())).map(namespaceItem) }),
  );
  app.get(
    NAMESPACE_PATH,
    {
      schema: {
        summary: 'Get a namespace',
        description: 'The answer says whether the namespace allows Pods of users.',
        roles: HTTP_ROLES,
        tags,
        params: namespaceParams,
        response: { 200: namespaceItemSchema },
      },
    },
    async ({ caller, params }) => namespaceItem(await visible.find(caller(), params.namespace)),
  );
}

function addCreation(app: App, { config: { namespaces } }: Services): void {
  app.post(
    NAMESPACES_PATH,
    {
      config: { right: () => ({ verb: 'create', group: '', resource: 'namespaces' }) },
      schema: {
        summary: 'Create a namespace',
        description:
          'The name must begin with the prefix of the installation. The default prefix is platform-.',
        roles: OWNERS,
        sample: { name: SAMPLE.newNamespace },
        tags,
        body: namespaceRequestSchema,
        response: { 200: statusSchema },
      },
    },
    async ({ caller, body: { name, enableCustomPods = false } }) => {
      const client = caller();
      if (!isServedNamespace(name, namespaces)) {
        throw invalidField('name', `must begin with ${namespaces.prefix}`);
      }
      await createNamespace(client, name, { customPods: enableCustomPods });
      return success();
    },
  );
}

function addDeletion(app: App, { config: { namespaces }, own }: Services): void {
  app.delete(
    NAMESPACE_PATH,
    {
      config: {
        right: ({ namespace = '' }) => ({ verb: 'delete', resource: 'namespaces', name: namespace }),
      },
      schema: {
        summary: 'Delete a namespace and all its objects. It must have no hosts and no VMs',
        description: 'The namespaces of the installation itself cannot be deleted.',
        roles: OWNERS,
        tags,
        params: namespaceParams.extend({
          namespace: namespaceParams.shape.namespace.meta({ examples: [SAMPLE.newNamespace] }),
        }),
        response: { 200: statusSchema },
      },
    },
    async ({ caller, params: { namespace } }) => {
      const client = caller();
      const listVMs = async () => await remainingVMs({ caller: client, own: own.client }, namespace);
      // The caller has the right to delete namespaces with the HTTP API, and the HTTP API has the right to delete them.
      await deleteNamespace(own.client, namespace, { namespaces, listVMs });
      return success();
    },
  );
}

/** Returns the first VMs of the namespace, read with the rights of `own`. They are hidden if `caller` has no right to list VMs. */
async function remainingVMs({ caller, own }: { caller: CallerClient; own: KubeClient }, namespace: string) {
  const { items: vms } = await listAs(caller, VMS, { namespace, limit: NAMED + 1 }, nameOf, own);
  return { vms, areHidden: vms.length > 0 && !(await isMember(caller, namespace)) };
}

function nameOf({ metadata: { name } }: KubeObject): { metadata: { name: string } } {
  return { metadata: { name } };
}

/**
 * Largest number of access reviews that run at the same time, for all callers. In an access review, the API server says whether a caller
 * has a right. A list of namespaces needs one access review for each namespace. The limit leaves connections for other work.
 */
const QUESTIONS = 16;
/**
 * Limit for the waiting access reviews of all callers. If more are waiting, the server refuses a list of namespaces to a caller without the
 * right to list all namespaces. Such a list needs access reviews.
 */
const QUESTIONS_WAITING = 8_192;
/**
 * Limit for the unfinished access reviews of one user. If a user has more, the server refuses further lists of namespaces to this user, but
 * not to other users.
 */
const USER_QUESTIONS_WAITING = QUESTIONS_WAITING / 8;

export class VisibleNamespaces {
  readonly #watches: Pick<ServerWatches, 'namespaces' | 'namespace'>;
  readonly #isServed: (name: string) => boolean;
  readonly #questions = new PQueue({ concurrency: QUESTIONS });
  /** Number of access reviews of each user that wait or run. */
  readonly #asking = new Map<string, number>();

  constructor(watches: Pick<ServerWatches, 'namespaces' | 'namespace'>, isServed: (name: string) => boolean) {
    this.#watches = watches;
    this.#isServed = isServed;
  }

  /**
   * Returns the served namespaces that the caller sees, in the order of their names.
   *
   * @throws ApiError when the API server refuses. @throws StatusError 429 when too many access reviews wait.
   */
  async list(client: CallerClient): Promise<Readonly<Namespace>[]> {
    const { items } = (await undefinedIf(isForbidden, listAs(client, NAMESPACES, {}, trimmed))) ?? {};
    const all = items ?? this.#watches.namespaces();
    const served = all
      .filter(({ metadata }) => this.#isServed(metadata.name))
      .toSorted((a, b) => (a.metadata.name < b.metadata.name ? -1 : 1));
    if (items !== undefined) {
      return served;
    }
    const seen = await this.#ask(
      client,
      served.map(({ metadata }) => metadata.name),
    );
    return served.filter((_namespace, index) => seen[index] === true);
  }

  /** Returns for each namespace whether the caller sees it. If the client closes the connection, no further access reviews are sent. */
  async #ask(client: CallerClient, namespaces: readonly string[]): Promise<boolean[]> {
    const user = await client.username();
    const asking = this.#asking.get(user) ?? 0;
    if (this.#questions.size > QUESTIONS_WAITING || asking > USER_QUESTIONS_WAITING) {
      throw new StatusError(429, 'Too many lists of namespaces are being read. Try again later');
    }
    this.#asking.set(user, asking + namespaces.length);
    try {
      const questions = namespaces.map((name) => async () => await isMember(client, name));
      return await this.#questions.addAll(questions, { signal: client.ended });
    } finally {
      const left = (this.#asking.get(user) ?? 0) - namespaces.length;
      this.#asking.set(user, left);
      if (left === 0) {
        this.#asking.delete(user);
      }
    }
  }

  /** Returns the namespace. @throws ApiError when the caller does not see it, or when it does not exist. */
  async find(client: KubeClient, name: string): Promise<Readonly<Namespace>> {
    try {
      return await client.get(NAMESPACES, { name });
    } catch (error) {
      const known = isForbidden(error) ? this.#watches.namespace(name) : undefined;
      if (known === undefined || !(await isMember(client, name))) {
        throw error;
      }
      return known;
    }
  }
}

/** Keeps only the fields of a namespace that the HTTP API shows. */
function trimmed({ apiVersion, kind, metadata: { name, labels = {} } }: Namespace): Namespace {
  return { apiVersion, kind, metadata: { name, labels } };
}

async function isMember(client: KubeClient, namespace: string): Promise<boolean> {
  return await callerMay(client, { verb: 'list', group: GROUP, resource: VMS.plural, namespace });
}
