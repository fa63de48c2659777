/** All objects of one kind in the chosen namespace, kept up to date. */
import { Collection } from '../model/collection.ts';
import type { KindTable } from '../model/columns.ts';
import type { Api } from './api.ts';
import { followObjects, type Freshness } from './follow.ts';
import { Views } from './views.ts';

export class LiveObjects {
  readonly table: KindTable;
  /** Namespace of the objects. It is undefined if all namespaces are shown, or if the kind has no namespaces. */
  readonly namespace: string | undefined;
  readonly objects = new Collection();
  readonly views = new Views();
  freshness: Freshness = { state: 'loading' };
  readonly #api: Api;
  readonly #end = new AbortController();

  constructor(api: Api, table: KindTable, namespace: string | undefined) {
    this.#api = api;
    this.table = table;
    this.namespace = table.namespaced ? namespace : undefined;
  }

  start(): void {
    const scope = this.namespace === undefined ? '' : `namespaces/${encodeURIComponent(this.namespace)}/`;
    const onChange = (freshness: Freshness) => {
      this.freshness = freshness;
      this.views.changed();
    };
    const path = `${scope}${this.table.plural}`;
    void followObjects({
      api: this.#api,
      path,
      collection: this.objects,
      onChange,
      signal: this.#end.signal,
    });
  }

  /** Ends all requests. */
  stop(): void {
    this.#end.abort();
  }
}
