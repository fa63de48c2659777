/** A model of the API server for the Pods of one host. It has only the functions that an agent uses. Each answer comes immediately. */
import { PassThrough } from 'node:stream';
import type { KubeClient } from '../../kube/client.ts';
import type { Pod, PodStatus } from '../../kube/core.ts';
import { ApiError } from '../../kube/errors.ts';
import { createMetrics, runtimeMetrics } from '../../kube/metrics.ts';
import { keyOf, type Ref, type Unsaved } from '../../kube/objects.ts';

const INITIAL_EVENTS_END = 'k8s.io/initial-events-end';

export class PodApi {
  readonly #pods = new Map<string, Pod>();
  readonly #watches = new Set<PassThrough>();
  readonly #metrics = runtimeMetrics(createMetrics());
  #version = 0;

  /** Client of an agent. It has only what agents call for Pods. */
  get client(): KubeClient {
    const client = {
      transport: { metrics: this.#metrics, stream: async (_: string, end: AbortSignal) => this.#watch(end) },
      apply: async (_: unknown, pod: Pod) => this.#apply(pod),
      delete: async (_: unknown, ref: Ref, { uid }: { uid: string }) => this.#finish(ref, uid),
    };
    return client as unknown as KubeClient;
  }

  get pods(): Pod[] {
    return [...this.#pods.values()];
  }

  create(pod: Unsaved<Pod>, uid: string): Pod {
    const { name = '' } = pod.metadata;
    return this.#put('ADDED', {
      apiVersion: 'v1',
      kind: 'Pod',
      ...pod,
      metadata: { ...pod.metadata, name, uid },
    });
  }

  annotate(pod: Pod, annotations: Record<string, string>): void {
    const { metadata } = pod;
    this.#put('MODIFIED', {
      ...pod,
      metadata: { ...metadata, annotations: { ...metadata.annotations, ...annotations } },
    });
  }

  /** Deletes a Pod as a user does: it stays until its agent has ended it. A Pod that is deleted by force stays because of its finalizer. */
  delete(pod: Pod, graceSeconds = 30): void {
    if (pod.metadata.deletionTimestamp === undefined) {
      const deletion = {
        deletionTimestamp: new Date().toISOString(),
        deletionGracePeriodSeconds: graceSeconds,
      };
      this.#put('MODIFIED', { ...pod, metadata: { ...pod.metadata, ...deletion } });
    }
  }

  /** Removes the finalizer of a Pod that is being deleted, as the operator does. The Pod is then gone. */
  release(pod: Pod): void {
    this.#finish(pod.metadata, pod.metadata.uid ?? '');
  }

  #put(type: 'ADDED' | 'MODIFIED', pod: Pod): Pod {
    const stored = { ...pod, metadata: { ...pod.metadata, resourceVersion: this.#nextVersion() } };
    this.#pods.set(keyOf(stored), stored);
    this.#tell(type, stored);
    return stored;
  }

  #nextVersion(): string {
    this.#version += 1;
    return String(this.#version);
  }

  #tell(type: string, object: object): void {
    for (const watch of this.#watches) {
      watch.write(`${JSON.stringify({ type, object })}\n`);
    }
  }

  #watch(end: AbortSignal): PassThrough {
    const watch = new PassThrough();
    for (const object of this.#pods.values()) {
      watch.write(`${JSON.stringify({ type: 'ADDED', object })}\n`);
    }
    const metadata = {
      resourceVersion: String(this.#version),
      annotations: { [INITIAL_EVENTS_END]: 'true' },
    };
    watch.write(`${JSON.stringify({ type: 'BOOKMARK', object: { metadata } })}\n`);
    this.#watches.add(watch);
    const onEnd = (): void => {
      this.#watches.delete(watch);
      watch.destroy();
    };
    end.addEventListener('abort', onEnd, { once: true });
    return watch;
  }

  #apply({ metadata, status = {} }: Pod): Pod {
    const pod = this.#get(metadata, metadata.uid);
    return this.#put('MODIFIED', { ...pod, status: merged(pod.status, status) });
  }

  #finish(ref: Ref, uid: string): void {
    const pod = this.#get(ref, uid);
    this.#pods.delete(keyOf(pod));
    this.#tell('DELETED', { ...pod, metadata: { ...pod.metadata, resourceVersion: this.#nextVersion() } });
  }

  /** @throws ApiError when the Pod does not exist, or another Pod has its name. */
  #get({ namespace, name }: Ref, uid: string | undefined): Pod {
    const pod = this.#pods.get(`${namespace}/${name}`);
    if (pod === undefined) {
      throw new ApiError(`pods ${name} not found`, { status: 404, reason: 'NotFound' });
    }
    if (pod.metadata.uid !== uid) {
      throw new ApiError(`pods ${name} has another uid`, { status: 409, reason: 'Conflict' });
    }
    return pod;
  }
}

function merged(before: PodStatus = {}, after: PodStatus): PodStatus {
  const { conditions = [] } = after;
  const others = (before.conditions ?? []).filter(({ type }) => conditions.every((one) => one.type !== type));
  return { ...before, ...after, conditions: [...others, ...conditions] };
}
