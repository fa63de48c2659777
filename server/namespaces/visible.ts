/**
 * Determines which namespaces a caller sees. A caller who may list namespaces sees all, and others see those in which they may list VMs.
 */
import PQueue from 'p-queue';
import { GROUP } from '../../api/v1alpha1/names.ts';
import { undefinedIf } from '../../base/errors.ts';
import type { KubeClient } from '../../kube/client.ts';
import { type Namespace, NAMESPACES } from '../../kube/core.ts';
import { isForbidden } from '../../kube/errors.ts';
import type { Watches } from '../own/watches.ts';
import { callerMay } from '../callers/access.ts';
import type { CallerClient } from '../callers/caller.ts';
import { listAs } from '../callers/list.ts';
import { StatusError } from '../http/errors.ts';
import { VMS } from '../resources.ts';

/** Limit of questions at once, for all callers. A list asks one question for each namespace, and must leave connections to others. */
const QUESTIONS = 16;
/** Limit of waiting questions. A longer queue comes from callers who do not wait for their answers. */
const QUESTIONS_WAITING = 8_192;

export class VisibleNamespaces {
  readonly #watches: Pick<Watches, 'namespaces' | 'namespace'>;
  readonly #isServed: (name: string) => boolean;
  readonly #questions = new PQueue({ concurrency: QUESTIONS });

  constructor(watches: Pick<Watches, 'namespaces' | 'namespace'>, isServed: (name: string) => boolean) {
    this.#watches = watches;
    this.#isServed = isServed;
  }

  /** Returns the served namespaces that the caller sees, by name. @throws ApiError when the API server refuses. @throws StatusError 429. */
  async list(client: CallerClient): Promise<Readonly<Namespace>[]> {
    const { items } = (await undefinedIf(isForbidden, listAs(client, NAMESPACES, {}, trimmed))) ?? {};
    const all = items ?? this.#watches.namespaces();
    const served = all
      .filter(({ metadata }) => this.#isServed(metadata.name))
      .toSorted((a, b) => (a.metadata.name < b.metadata.name ? -1 : 1));
    if (items !== undefined) {
      return served;
    }
    if (this.#questions.size > QUESTIONS_WAITING) {
      throw new StatusError(429, 'Too many callers list namespaces: try again later');
    }
    const seen = await this.#questions.addAll(
      served.map(
        ({ metadata }) =>
          async () =>
            await isMember(client, metadata.name),
      ),
    );
    return served.filter((_namespace, index) => seen[index] === true);
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

/** Keeps what the HTTP API shows. */
function trimmed({ apiVersion, kind, metadata: { name, labels = {} } }: Namespace): Namespace {
  return { apiVersion, kind, metadata: { name, labels } };
}

async function isMember(client: KubeClient, namespace: string): Promise<boolean> {
  return await callerMay(client, { verb: 'list', group: GROUP, resource: VMS.plural, namespace });
}
