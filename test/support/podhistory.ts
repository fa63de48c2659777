/** Everything that ever happened to Pods, from a watch that began before the first of them. */
import { pino } from 'pino';
import type { KubeClient } from '../../kube/client.ts';
import { type Pod, PODS } from '../../kube/core.ts';
import { Informer } from '../../kube/informer.ts';
import { keyOf } from '../../kube/objects.ts';

export class PodHistory {
  readonly #stopping = new AbortController();
  readonly #holders = new Map<string, Set<string>>();
  readonly #uids = new Map<string, Set<string>>();
  #most = 0;

  static async start(client: KubeClient): Promise<PodHistory> {
    const history = new PodHistory();
    const informer = new Informer(client, PODS, { logger: pino({ level: 'silent' }) });
    informer.cache.onChange(({ type, object }) => history.#record(type === 'deleted', object));
    informer.start(history.#stopping.signal);
    await informer.synced;
    return history;
  }

  /** The greatest number of machines that any host had at any moment: bound, not ended, not deleted. */
  mostOnOneHost(): number {
    return this.#most;
  }

  /** How many Pods of this name there ever were. */
  createdAs(namespace: string, name: string): number {
    return this.#uids.get(`${namespace}/${name}`)?.size ?? 0;
  }

  stop(): void {
    this.#stopping.abort(new Error('the test is over'));
  }

  #record(isDeleted: boolean, pod: Readonly<Pod>): void {
    const { uid = '' } = pod.metadata;
    const key = keyOf(pod);
    this.#uids.set(key, (this.#uids.get(key) ?? new Set()).add(uid));
    const { nodeName } = pod.spec;
    if (nodeName === undefined) return;
    const onHost = this.#holders.get(nodeName) ?? new Set();
    this.#holders.set(nodeName, onHost);
    const ended = pod.status?.phase === 'Failed' || pod.status?.phase === 'Succeeded';
    if (isDeleted || ended) onHost.delete(uid);
    else onHost.add(uid);
    this.#most = Math.max(this.#most, onHost.size);
  }
}
