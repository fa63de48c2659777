/**
 * Remembers the names for which the operator has approved a host's certificate. A Node with such a name becomes a host when it appears. The
 * stored names survive a restart of the operator. They also let a host create its deleted Node again.
 *
 * The names are in a ConfigMap in the operator's own namespace. The conditions of certificate requests cannot replace this ConfigMap,
 * because everybody who is allowed to approve requests of nodes can write the same conditions. The control plane also removes approved
 * requests after an hour.
 *
 * The operator keeps a name until the last approved certificate for the name expires, because the host can return until then. After that
 * time, the name needs another approval.
 */
import type { KubeClient } from '../../kube/client.ts';
import { Consistency } from '../../kube/consistency.ts';
import { patchOrCreate } from '../../kube/configmapdata.ts';
import type { ConfigMap } from '../../kube/core.ts';
import type { Informer, InformerOptions } from '../../kube/informer.ts';
import { keyOf, type Ref } from '../../kube/objects.ts';
import type { OperatorConfig } from '../config/config.ts';
import { FIELD_MANAGER } from '../objects/writer.ts';

export const APPROVALS_NAME = 'berth-hosts';

/** Returns options for an informer that watches only the ConfigMap with the approved names. */
export function approvalsSelector(namespace: string): InformerOptions<ConfigMap> {
  return { namespace, fieldSelector: `metadata.name=${APPROVALS_NAME}` };
}

export interface HostApprovalsOptions {
  readonly client: KubeClient;
  readonly approvals: Informer<ConfigMap>;
  readonly config: Pick<OperatorConfig, 'namespaces'>;
  /** Returns the current time in milliseconds since the epoch. */
  readonly clock: () => number;
}

export class HostApprovals {
  readonly #options: HostApprovalsOptions;
  readonly #consistency = new Consistency();

  constructor(options: HostApprovalsOptions) {
    this.#options = options;
  }

  /** Returns true while a certificate that the operator approved for this name might still be valid. */
  has(name: string): boolean {
    const until = this.#data()[name];
    return until !== undefined && Date.parse(until) > this.#options.clock();
  }

  /** Returns true when the cache shows the last stored name. If the next name is stored earlier, the API server answers 409. */
  ready(): boolean {
    return this.#consistency.ready(APPROVALS_NAME);
  }

  /**
   * Stores the name of a host. The operator must wait until the returned promise resolves before it approves a certificate for this name.
   * The request contains the cache's resourceVersion, so that it cannot remove a name whose new approval the cache does not show yet.
   * @param until latest possible expiry of the certificate, in milliseconds since the epoch
   * @throws ApiError (a conflict) when the cache lags behind the stored names
   */
  async remember(name: string, until: number): Promise<void> {
    const { client, approvals } = this.#options;
    const ref = this.#ref();
    const resourceVersion = this.#cached()?.metadata.resourceVersion;
    const known = Date.parse(this.#data()[name] ?? '');
    const latest = Number.isNaN(known) ? until : Math.max(known, until);
    const added = { [name]: new Date(latest).toISOString() };
    const patch = { metadata: { resourceVersion }, data: { ...this.#ended(), ...added } };
    const stored = await patchOrCreate(client, ref, patch, added, { fieldManager: FIELD_MANAGER });
    this.#consistency.wrote(APPROVALS_NAME, approvals, stored.metadata.resourceVersion ?? '');
  }

  /** Returns the part of a merge patch that removes expired approvals. Without it, the ConfigMap would grow without a limit. */
  #ended(): Record<string, null> {
    const ended = Object.keys(this.#data()).filter((name) => !this.has(name));
    return Object.fromEntries(ended.map((name) => [name, null]));
  }

  #data(): Record<string, string> {
    return this.#cached()?.data ?? {};
  }

  #cached(): Readonly<ConfigMap> | undefined {
    return this.#options.approvals.cache.get(keyOf({ metadata: this.#ref() }));
  }

  #ref(): Ref & { namespace: string } {
    return { namespace: this.#options.config.namespaces.system, name: APPROVALS_NAME };
  }
}
