/** Limits the number of logs and streams that callers have open. */
import { HttpError } from '../../kube/serving/httpserver.ts';

/**
 * Largest number of open logs on this host. Open streams have the same limit. Each open log or stream needs a connection, some open files
 * and, in most cases, up to 1 MiB of memory. There are two exceptions. A `port-forward` needs up to 8 MiB: 64 KiB for each direction of 64
 * connections. An `exec` needs up to 8 MiB for the output of its command.
 */
const HOST_LIMIT = 64;
/**
 * Share of the host's limit that one namespace can use: half of the part that other namespaces do not use. Thus a few namespaces together
 * cannot block the callers of other namespaces. The first namespace can have 32 open logs or streams, and the next namespace 16.
 */
const NAMESPACE_SHARE = 1 / 2;
/** Largest number of open logs or streams of one Pod. With this limit, callers of one VM do not block callers of other VMs. */
const POD_LIMIT = 16;
/** Key under which all open logs or streams of this host are counted. No namespace and no Pod has this key. */
const HOST = '';

/** Counts the open logs or the open streams of callers. */
export class OpenLimit {
  readonly #what: 'logs' | 'streams';
  /** Number of open logs or streams by key. A key is a Pod with its namespace, a namespace, or {@link HOST}. */
  readonly #open = new Map<string, number>();

  constructor(what: 'logs' | 'streams') {
    this.#what = what;
  }

  /**
   * Runs `work`. Until the work ends, it counts as an open log or stream of the Pod. `name` is the name of the Pod.
   *
   * @throws HttpError 429 when the Pod, its namespace or the host has too many open logs or streams.
   */
  async count(namespace: string, name: string, work: () => Promise<void>): Promise<void> {
    const pod = `${namespace}/${name}`;
    const others = this.#of(HOST) - this.#of(namespace);
    const extent =
      others === 0 ? 'the maximum' : `the maximum while other namespaces have ${others} open ${this.#what}`;
    const places = [
      { key: pod, limit: POD_LIMIT, owner: `Pod ${pod}`, extent: 'the maximum' },
      { key: HOST, limit: HOST_LIMIT, owner: 'This host', extent: 'the maximum' },
      { key: namespace, limit: shareBeside(others), owner: `On this host, namespace ${namespace}`, extent },
    ];
    const full = places.find(({ key, limit }) => this.#of(key) >= limit);
    if (full !== undefined) {
      throw new HttpError(
        429,
        `${full.owner} has ${this.#of(full.key)} open ${this.#what}, ${full.extent}; try again later`,
      );
    }
    for (const { key } of places) {
      this.#open.set(key, this.#of(key) + 1);
    }
    try {
      await work();
    } finally {
      for (const { key } of places) {
        this.#end(key);
      }
    }
  }

  #of(key: string): number {
    return this.#open.get(key) ?? 0;
  }

  /**
   * Subtracts one open log or stream from the count of a key. If the count is then 0, removes the key, because its Pod or namespace might
   * no longer exist.
   */
  #end(key: string): void {
    const left = this.#of(key) - 1;
    if (left > 0) {
      this.#open.set(key, left);
    } else {
      this.#open.delete(key);
    }
  }
}

/**
 * Returns the limit of a namespace if all other namespaces together have `others` open logs or streams. The limit is at least 1, so any
 * namespace can open the last log or stream of a host.
 */
function shareBeside(others: number): number {
  return Math.max(1, Math.floor((HOST_LIMIT - others) * NAMESPACE_SHARE));
}
