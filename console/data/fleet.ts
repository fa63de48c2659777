/** The VMs and hosts that the pages show, kept up to date. */
import type { NodeItem } from '../../api/http/node.ts';
import type { Emulator } from '../../api/v1alpha1/emulator.ts';
import type { Server } from '../../api/v1alpha1/server.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { Node } from '../../kube/core.ts';
import type { KubeObject } from '../../kube/objects.ts';
import { Collection } from '../model/collection.ts';
import { hostsOfItems, hostsOfNodes, type Occupant, pierList, type Pier } from '../model/harbour.ts';
import { holdsSlot } from '../model/vms.ts';
import { phaseOf } from '../../actions/diagnosis.ts';
import type { Api } from './api.ts';
import { followObjects, freshnessAfter, type Freshness } from './follow.ts';
import { Views } from './views.ts';
import { pauseFor, whenShown } from './waits.ts';

/** Facts about the user, from the server. */
export interface ConsoleSession {
  readonly username: string;
  /** Namespace of requests that name none. */
  readonly defaultNamespace: string;
  /** What the user may watch in the whole cluster. */
  readonly mayWatch: { readonly vms: boolean; readonly hosts: boolean; readonly servers: boolean };
}

/** Interval in milliseconds between two reads of the hosts of a namespace. The HTTP API has no watch for them. */
const HOSTS_MILLISECONDS = 10_000;

const LOADING: Freshness = { state: 'loading' };

/** The fleet in a namespace, or in all namespaces if `namespace` is undefined. */
export class LiveFleet {
  readonly namespace: string | undefined;
  readonly vms = new Collection<VM>();
  readonly views = new Views();
  /** Freshness of the VMs and of the hosts. */
  freshness: { vms: Freshness; hosts: Freshness } = { vms: LOADING, hosts: LOADING };
  readonly #emulators = new Collection<Emulator>();
  readonly #nodes = new Collection<Node>();
  readonly #servers = new Collection<Server>();
  #items: readonly NodeItem[] = [];
  readonly #api: Api;
  readonly #session: ConsoleSession;
  readonly #end = new AbortController();
  constructor(api: Api, session: ConsoleSession, namespace: string | undefined) {
    this.#api = api;
    this.#session = session;
    this.namespace = namespace;
  }

  start(): void {
    const scope = this.namespace === undefined ? '' : `namespaces/${encodeURIComponent(this.namespace)}/`;
    this.#follow(`${scope}vms`, this.vms, 'vms');
    this.#follow(`${scope}emulators`, this.#emulators);
    if (this.namespace !== undefined) {
      void this.#pollHosts(this.namespace);
      return;
    }
    this.#follow('nodes', this.#nodes, 'hosts');
    if (this.#session.mayWatch.servers) {
      this.#follow('servers', this.#servers);
    }
  }

  /** Ends all requests. */
  stop(): void {
    this.#end.abort();
  }

  /** Returns the hosts with their machines. */
  piers(): Pier[] {
    const hosts =
      this.namespace === undefined
        ? hostsOfNodes(this.#nodes.all, this.#servers.all, this.#session.defaultNamespace)
        : hostsOfItems(this.#items);
    return pierList(hosts, this.#occupants(), { knowsOthers: this.namespace !== undefined });
  }

  #occupants(): Occupant[] {
    const vms = this.vms.all.filter(holdsSlot).map((vm) => occupantOf('VM', vm, phaseOf(vm)));
    const emulators = this.#emulators.all
      .filter(({ status }) => status?.nodeName !== undefined && status.phase !== 'Failed')
      .map((emulator) => occupantOf('Emulator', emulator, emulator.status?.phase ?? 'Pending'));
    return [...vms, ...emulators];
  }

  #follow<T extends KubeObject>(path: string, collection: Collection<T>, part?: 'vms' | 'hosts'): void {
    const onChange = (freshness: Freshness) => this.#changed(part, freshness);
    void followObjects({ api: this.#api, path, collection, onChange, signal: this.#end.signal });
  }

  async #pollHosts(namespace: string): Promise<void> {
    const { signal } = this.#end;
    const path = `/api/v1/namespaces/${encodeURIComponent(namespace)}/nodes`;
    for (; !signal.aborted; await pauseFor(HOSTS_MILLISECONDS, signal)) {
      await whenShown(signal);
      try {
        this.#items = (await this.#api.get<{ items: NodeItem[] }>(path, signal)).items;
        this.#changed('hosts', { state: 'live' });
      } catch (error) {
        const freshness = freshnessAfter(error);
        this.#changed('hosts', freshness);
        if (freshness.state === 'refused') {
          return;
        }
      }
    }
  }

  #changed(part: 'vms' | 'hosts' | undefined, freshness: Freshness): void {
    if (part !== undefined) {
      this.freshness = { ...this.freshness, [part]: freshness };
    }
    this.views.changed();
  }
}

function occupantOf(
  kind: Occupant['kind'],
  { metadata, status }: { metadata: KubeObject['metadata']; status?: { nodeName?: string | undefined } },
  phase: string,
): Occupant {
  return {
    kind,
    name: metadata.name,
    namespace: metadata.namespace ?? '',
    host: status?.nodeName ?? '',
    phase,
  };
}
