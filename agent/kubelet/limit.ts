/** Limits the number of logs and streams that callers have open, and the memory of their commands. */
import { HttpError } from '../../kube/serving/httperror.ts';
import type { Reserve } from '../drivers/driver.ts';

/**
 * Largest number of open logs on this host. Open streams have the same limit. Each open log or stream needs a connection, some open files
 * and, in most cases, up to 1 MiB of memory. There are two exceptions. A `port-forward` needs up to 8 MiB: 64 KiB for each direction of 64
 * connections. An `exec` needs memory for the input and output of its command, which {@link CommandMemory} limits.
 */
const HOST_LIMIT = 64;
/**
 * Share of the host's limit that one namespace can use: half of the part that other namespaces do not use. Thus a few namespaces together
 * cannot block the callers of other namespaces. The first namespace can have 32 open logs or streams, and the next namespace 16. Any
 * namespace can open the last log or stream of a host.
 */
const NAMESPACE_SHARE = 1 / 2;
/**
 * Memory in bytes for the inputs and outputs of all commands on this host, from their arrival until the caller has read the output. One
 * command can need 9 MiB. Most commands need a few KiB. {@link NAMESPACE_SHARE} holds here, too, so a namespace has 32 MiB at most.
 */
const MEMORY_BYTES = 64 * 1024 * 1024;
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
      {
        key: namespace,
        limit: Math.max(1, shareBeside(others, HOST_LIMIT)),
        owner: `On this host, namespace ${namespace}`,
        extent,
      },
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

/** Counts the memory for the inputs and outputs of commands. */
export class CommandMemory {
  /** Used memory in bytes by namespace. */
  readonly #used = new Map<string, number>();

  /**
   * Runs `work` with a function that reserves memory for a command in the namespace. All memory of the command is free again when the work
   * ends.
   */
  async use<T>(namespace: string, work: (reserve: Reserve) => Promise<T>): Promise<T> {
    let own = 0;
    try {
      return await work((bytes) => {
        const isFree = this.#reserve(namespace, bytes);
        own += isFree ? bytes : 0;
        return isFree;
      });
    } finally {
      this.#change(namespace, -own);
    }
  }

  #reserve(namespace: string, bytes: number): boolean {
    const used = this.#used.get(namespace) ?? 0;
    const others = [...this.#used.values()].reduce((sum, one) => sum + one, -used);
    const isFree = used + bytes <= shareBeside(others, MEMORY_BYTES);
    if (isFree) {
      this.#change(namespace, bytes);
    }
    return isFree;
  }

  #change(namespace: string, bytes: number): void {
    const used = (this.#used.get(namespace) ?? 0) + bytes;
    if (used > 0) {
      this.#used.set(namespace, used);
    } else {
      this.#used.delete(namespace);
    }
  }
}

/** Returns the share of a namespace in `limit` if all other namespaces together use `others` of it. */
function shareBeside(others: number, limit: number): number {
  return Math.floor((limit - others) * NAMESPACE_SHARE);
}
