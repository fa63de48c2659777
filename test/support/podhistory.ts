/** A record of all changes of Pods, from a watch that begins before the first Pod. */
import { randomBytes } from 'node:crypto';
import { pino } from 'pino';
import type { KubeClient } from '../../kube/client.ts';
import { type Pod, PODS } from '../../kube/core.ts';
import { Informer } from '../../kube/informer.ts';
import { keyOf } from '../../kube/objects.ts';
import { waitFor } from '../../hack/wait.ts';

/** Namespace of marker Pods. Berth does not serve this namespace, so its policies allow Pods of any user. */
const MARKER_NAMESPACE = 'default';

export class PodHistory {
  readonly #client: KubeClient;
  readonly #stopping = new AbortController();
  readonly #holders = new Map<string, Set<string>>();
  readonly #uids = new Map<string, Set<string>>();
  #most = 0;

  private constructor(client: KubeClient) {
    this.#client = client;
  }

  static async start(client: KubeClient): Promise<PodHistory> {
    const history = new PodHistory(client);
    const informer = new Informer(client, PODS, { logger: pino({ level: 'silent' }) });
    informer.cache.onChange(({ type, object }) => history.#record(type === 'deleted', object));
    informer.start(history.#stopping.signal);
    await informer.synced;
    return history;
  }

  /**
   * Returns the largest number of machines that any host had at the same time until now. A machine counts if its Pod is bound,
   * not ended and not deleted.
   */
  async mostOnOneHost(): Promise<number> {
    await this.#catchUp();
    return this.#most;
  }

  /** Returns the number of Pods with this name that were created until now. */
  async createdAs(namespace: string, name: string): Promise<number> {
    await this.#catchUp();
    return this.#uids.get(`${namespace}/${name}`)?.size ?? 0;
  }

  stop(): void {
    this.#stopping.abort(new Error('the test is over'));
  }

  /**
   * Resolves when all changes until now are recorded. It creates a Pod and waits until the watch delivers it, because the watch
   * delivers changes in order.
   */
  async #catchUp(): Promise<void> {
    const marker = { namespace: MARKER_NAMESPACE, name: `marker-${randomBytes(4).toString('hex')}` };
    const containers = [{ name: 'none', image: 'registry.example/none' }];
    await this.#client.create(PODS, { metadata: marker, spec: { schedulerName: 'nobody', containers } });
    try {
      await waitFor('the watch of Pods to catch up', () =>
        this.#uids.has(`${marker.namespace}/${marker.name}`),
      );
    } finally {
      await this.#client.delete(PODS, marker);
    }
  }

  #record(isDeleted: boolean, pod: Readonly<Pod>): void {
    const { uid = '' } = pod.metadata;
    const key = keyOf(pod);
    this.#uids.set(key, (this.#uids.get(key) ?? new Set()).add(uid));
    const { nodeName } = pod.spec;
    if (nodeName === undefined) {
      return;
    }
    const onHost = this.#holders.get(nodeName) ?? new Set();
    this.#holders.set(nodeName, onHost);
    const ended = pod.status?.phase === 'Failed' || pod.status?.phase === 'Succeeded';
    if (isDeleted || ended) {
      onHost.delete(uid);
    } else {
      onHost.add(uid);
    }
    this.#most = Math.max(this.#most, onHost.size);
  }
}
