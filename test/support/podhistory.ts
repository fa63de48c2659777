/** Everything that ever happened to Pods, from a watch that began before the first of them. */
import { randomBytes } from 'node:crypto';
import { pino } from 'pino';
import type { KubeClient } from '../../kube/client.ts';
import { type Pod, PODS } from '../../kube/core.ts';
import { Informer } from '../../kube/informer.ts';
import { keyOf } from '../../kube/objects.ts';
import { waitFor } from '../../hack/wait.ts';

/** Served to nobody's machines: anybody's Pods are taken there. */
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

  /** The greatest number of machines that any host had at any moment until now: bound, not ended, not deleted. */
  async mostOnOneHost(): Promise<number> {
    await this.#catchUp();
    return this.#most;
  }

  /** How many Pods of this name there ever were until now. */
  async createdAs(namespace: string, name: string): Promise<number> {
    await this.#catchUp();
    return this.#uids.get(`${namespace}/${name}`)?.size ?? 0;
  }

  stop(): void {
    this.#stopping.abort(new Error('the test is over'));
  }

  /** All that has happened until now is recorded: the watch brings a Pod that is made now after it. */
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
