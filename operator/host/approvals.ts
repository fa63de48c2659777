/**
 * Which names the operator has approved a host's certificate for, so that a Node of such a name becomes a host when it
 * comes, also after a restart of the operator, and again when it was deleted and its host made it anew.
 *
 * Kept in a ConfigMap of the operator's own namespace. The conditions of certificate requests would not do: whoever may
 * approve requests for nodes can write the same words, and the control plane removes approved requests after an hour.
 * Each name is kept for as long as a certificate that was approved for it may be valid: until then its host can come
 * back, and after that it needs another approval.
 */
import type { KubeClient } from '../../kube/client.ts';
import { CONFIG_MAPS, type ConfigMap } from '../../kube/core.ts';
import { isAlreadyExists, isNotFound } from '../../kube/errors.ts';
import type { Informer, InformerOptions } from '../../kube/informer.ts';
import { keyOf, type Ref } from '../../kube/objects.ts';
import type { OperatorConfig } from '../config/config.ts';
import { FIELD_MANAGER } from '../objects/resources.ts';

export const APPROVALS_NAME = 'berth-hosts';

/** The selector of the informer that shows the ConfigMap and nothing else. */
export function approvalsSelector(namespace: string): InformerOptions<ConfigMap> {
  return { namespace, fieldSelector: `metadata.name=${APPROVALS_NAME}` };
}

export interface HostApprovalsOptions {
  readonly client: KubeClient;
  readonly approvals: Informer<ConfigMap>;
  readonly config: Pick<OperatorConfig, 'namespaces'>;
  /** Milliseconds since the epoch. */
  readonly clock: () => number;
}

export class HostApprovals {
  readonly #options: HostApprovalsOptions;

  constructor(options: HostApprovalsOptions) {
    this.#options = options;
  }

  /** Whether a certificate that the operator approved for this name may still be valid. */
  has(name: string): boolean {
    const until = this.#data()[name];
    return until !== undefined && Date.parse(until) > this.#options.clock();
  }

  /**
   * Writes down that a certificate for this name is about to be approved. Resolves when it is stored.
   * @param until when the certificate ends at the latest, in milliseconds since the epoch
   */
  async remember(name: string, until: number): Promise<void> {
    const { client } = this.#options;
    const ref = this.#ref();
    const known = Date.parse(this.#data()[name] ?? '');
    const latest = Number.isNaN(known) ? until : Math.max(known, until);
    const added = { [name]: new Date(latest).toISOString() };
    const patch = { data: { ...this.#ended(), ...added } };
    try {
      await client.mergePatch(CONFIG_MAPS, ref, patch, { fieldManager: FIELD_MANAGER });
    } catch (error) {
      if (!isNotFound(error)) {
        throw error;
      }
      await this.#create(added, patch);
    }
  }

  async #create(data: Record<string, string>, patch: object): Promise<void> {
    const { client } = this.#options;
    const ref = this.#ref();
    try {
      await client.create(CONFIG_MAPS, { metadata: ref, data }, { fieldManager: FIELD_MANAGER });
    } catch (error) {
      if (!isAlreadyExists(error)) {
        throw error;
      }
      await client.mergePatch(CONFIG_MAPS, ref, patch, { fieldManager: FIELD_MANAGER });
    }
  }

  /** The part of a merge patch that removes ended approvals, so that the ConfigMap does not grow without end. */
  #ended(): Record<string, null> {
    const ended = Object.keys(this.#data()).filter((name) => !this.has(name));
    return Object.fromEntries(ended.map((name) => [name, null]));
  }

  #data(): Record<string, string> {
    return this.#options.approvals.cache.get(keyOf({ metadata: this.#ref() }))?.data ?? {};
  }

  #ref(): Ref & { namespace: string } {
    return { namespace: this.#options.config.namespaces.system, name: APPROVALS_NAME };
  }
}
