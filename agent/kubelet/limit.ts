/** Limits the logs and streams that callers have open. */
import { HttpError } from '../../kube/serving/httpserver.ts';

/** Limit for this host. Each open log or stream needs a connection, some open files and about 1 MiB. */
const HOST_LIMIT = 64;
/** Limit for one Pod. With this limit, callers of one VM do not block callers of other VMs. */
const POD_LIMIT = 16;

/** Counts what callers have open of one kind. */
export class OpenLimit {
  readonly #what: 'logs' | 'streams';
  readonly #pods = new Map<string, number>();
  #all = 0;

  constructor(what: 'logs' | 'streams') {
    this.#what = what;
  }

  /** Runs `work` while it counts for the Pod. @throws HttpError 429 when the Pod or the host has too many open. */
  async count(pod: string, work: () => Promise<void>): Promise<void> {
    const ofPod = this.#pods.get(pod) ?? 0;
    if (ofPod >= POD_LIMIT || this.#all >= HOST_LIMIT) {
      const [where, limit] = ofPod >= POD_LIMIT ? [`Pod ${pod}`, POD_LIMIT] : ['This host', HOST_LIMIT];
      throw new HttpError(429, `${where} has ${limit} open ${this.#what}, the maximum; try again later`);
    }
    this.#pods.set(pod, ofPod + 1);
    this.#all += 1;
    try {
      await work();
    } finally {
      this.#all -= 1;
      const left = (this.#pods.get(pod) ?? 1) - 1;
      if (left > 0) {
        this.#pods.set(pod, left);
      } else {
        this.#pods.delete(pod);
      }
    }
  }
}
