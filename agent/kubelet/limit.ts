/** Limits the logs and streams that callers have open. */
import { HttpError } from '../../kube/serving/httpserver.ts';

/**
 * Limit for this host. Each open log or stream needs a connection, some open files and up to 1 MiB of memory. A `port-forward` or `exec`
 * needs more: 64 KiB for each direction of 64 ports, or the output of a command, together about 8 MiB.
 */
const HOST_LIMIT = 64;
/**
 * Share of one namespace: half of what other namespaces leave of the host's limit. With this share, several namespaces together do not block
 * callers of all others. A namespace alone has 32, the next one 16.
 */
const NAMESPACE_SHARE = 1 / 2;
/** Limit for one Pod. With this limit, callers of one VM do not block callers of other VMs. */
const POD_LIMIT = 16;
/** Key of the count for this host. It is neither a namespace nor a Pod with its namespace. */
const HOST = '';

/** Counts what callers have open of one kind. */
export class OpenLimit {
  readonly #what: 'logs' | 'streams';
  /** Numbers of open logs or streams by Pod with its namespace, by namespace, and of this host. */
  readonly #open = new Map<string, number>();

  constructor(what: 'logs' | 'streams') {
    this.#what = what;
  }

  /**
   * Runs `work` while it counts for the Pod. `name` is the name of the Pod.
   *
   * @throws HttpError 429 when the Pod, its namespace or the host has too many open.
   */
  async count(namespace: string, name: string, work: () => Promise<void>): Promise<void> {
    const pod = `${namespace}/${name}`;
    const others = this.#of(HOST) - this.#of(namespace);
    const why = others === 0 ? 'the maximum' : `the maximum while other namespaces have ${others}`;
    const places = [
      { key: pod, limit: POD_LIMIT, has: `Pod ${pod} has`, why: 'the maximum' },
      { key: HOST, limit: HOST_LIMIT, has: 'This host has', why: 'the maximum' },
      { key: namespace, limit: shareBeside(others), has: `On this host, namespace ${namespace} has`, why },
    ];
    const full = places.find(({ key, limit }) => this.#of(key) >= limit);
    if (full !== undefined) {
      throw new HttpError(
        429,
        `${full.has} ${this.#of(full.key)} open ${this.#what}, ${full.why}; try again later`,
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

  /** Forgets keys that have nothing open, because Pods and namespaces come and go. */
  #end(key: string): void {
    const left = this.#of(key) - 1;
    if (left > 0) {
      this.#open.set(key, left);
    } else {
      this.#open.delete(key);
    }
  }
}

/** Returns the limit of a namespace beside others that have `others` open. Any namespace may use the last free place of a host. */
function shareBeside(others: number): number {
  return Math.max(1, Math.floor((HOST_LIMIT - others) * NAMESPACE_SHARE));
}
