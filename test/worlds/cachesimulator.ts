/**
 * Simulates the work of agents on cached images. The simulator does the tasks of cache Jobs' Pods and lists images in
 * `Node.status.images`. A test can let a host hang, fail or be slow.
 */
import { createHash } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { pino } from 'pino';
import { contentName } from '../../api/v1alpha1/cachetargets.ts';
import { TASK_ANNOTATION, TASK_CONTAINER, WORKLOAD_LABEL } from '../../api/v1alpha1/names.ts';
import { type Task, type TaskReport, taskSchema } from '../../api/v1alpha1/task.ts';
import type { KubeClient } from '../../kube/client.ts';
import { type ContainerState, NODES, type Pod, PODS, type PodPhase } from '../../kube/core.ts';
import { isConflict, isNotFound } from '../../kube/errors.ts';
import { Informer } from '../../kube/informer.ts';

const SIZE_BYTES = 1024 ** 3;

/** Way in which a host does its tasks. */
export interface Conduct {
  delayMilliseconds?: number;
  /** Whether tasks begin and never end. */
  hangs?: boolean;
  /** Reason and message with which tasks fail. */
  fails?: { reason: string; message: string };
}

interface SimulatedHost {
  /** Digest by name of the image. */
  images: Map<string, string>;
  /** Name of the image by entry. */
  holds: Map<string, string>;
  /** The last write of the host's Node. Writes of one Node are sent one after another. */
  writing: Promise<void>;
}

export class CacheSimulator {
  readonly #client: KubeClient;
  readonly #stopping = new AbortController();
  readonly #hosts = new Map<string, SimulatedHost>();
  readonly #conducts = new Map<string, Conduct>();
  readonly #tags = new Map<string, string>();
  readonly #begun = new Set<string>();
  /** All tasks that succeeded, as `cache HOST NAME` or `uncache HOST NAME`. */
  readonly done: string[] = [];
  /** Behaviour of hosts for which a test sets no other behaviour. */
  usual: Conduct = {};

  private constructor(client: KubeClient) {
    this.#client = client;
  }

  static async start(client: KubeClient): Promise<CacheSimulator> {
    const simulator = new CacheSimulator(client);
    const pods = new Informer(client, PODS, {
      logger: pino({ level: 'silent' }),
      labelSelector: `${WORKLOAD_LABEL}=cache`,
    });
    pods.cache.onChange(({ type, object }) => {
      if (type !== 'deleted') {
        simulator.#see(object);
      }
    });
    pods.start(simulator.#stopping.signal);
    await pods.synced;
    return simulator;
  }

  stop(): void {
    this.#stopping.abort(new Error('the test is over'));
  }

  /** Sets the behaviour of a host, from the next task on. */
  conduct(host: string, conduct: Conduct): void {
    this.#conducts.set(host, conduct);
  }

  /** Lets the registry's tag name another image from now on. */
  moveTag(name: string, version: string): void {
    this.#tags.set(name, version);
  }

  digest(name: string): string {
    const content = `${name} ${this.#tags.get(name) ?? ''}`;
    return `sha256:${createHash('sha256').update(content).digest('hex')}`;
  }

  /** Returns the uids of entries for which the host keeps an image. */
  holds(host: string): string[] {
    return [...this.#host(host).holds.keys()];
  }

  /** Adds an image to a host, as the deployment of a VM does. */
  async pull(host: string, name: string): Promise<void> {
    this.#host(host).images.set(name, this.digest(name));
    await this.#writeNode(host);
  }

  /** Removes the image from the host, even if an entry keeps it. */
  async lose(host: string, name: string): Promise<void> {
    this.#host(host).images.delete(name);
    await this.#writeNode(host);
  }

  #host(name: string): SimulatedHost {
    const known = this.#hosts.get(name);
    const host = known ?? { images: new Map(), holds: new Map(), writing: Promise.resolve() };
    this.#hosts.set(name, host);
    return host;
  }

  #see(pod: Readonly<Pod>): void {
    const { uid = '', deletionTimestamp, annotations } = pod.metadata;
    const { nodeName } = pod.spec;
    if (nodeName === undefined || deletionTimestamp !== undefined || this.#begun.has(uid)) {
      return;
    }
    if (pod.status?.phase !== 'Pending') {
      return;
    }
    this.#begun.add(uid);
    const task = taskSchema.parse(JSON.parse(annotations?.[TASK_ANNOTATION] ?? ''));
    this.#work(pod, nodeName, task).catch((error: unknown) => {
      if (!isGone(error) && !this.#stopping.signal.aborted) {
        process.stderr.write(`simulated host ${nodeName}: ${String(error)}\n`);
      }
    });
  }

  async #work(pod: Readonly<Pod>, host: string, task: Task): Promise<void> {
    const conduct = this.#conducts.get(host) ?? this.usual;
    if (conduct.hangs === true) {
      await this.#report(pod, 'Running', { running: { startedAt: now() } });
      return;
    }
    if (conduct.delayMilliseconds !== undefined) {
      await sleep(conduct.delayMilliseconds);
    }
    const times = { startedAt: now(), finishedAt: now() };
    if (conduct.fails !== undefined) {
      await this.#report(pod, 'Failed', { terminated: { exitCode: 1, ...conduct.fails, ...times } });
      return;
    }
    const report = await this.#do(host, task);
    const message = JSON.stringify(report);
    await this.#report(pod, 'Succeeded', {
      terminated: { exitCode: 0, reason: 'Completed', message, ...times },
    });
  }

  async #do(host: string, task: Task): Promise<TaskReport> {
    const { images, holds } = this.#host(host);
    if (task.type === 'uncache') {
      const name = holds.get(task.entry) ?? '';
      holds.delete(task.entry);
      if (![...holds.values()].includes(name)) {
        images.delete(name);
      }
      await this.#writeNode(host);
      this.done.push(`uncache ${host} ${name}`);
      return {};
    }
    if (task.type !== 'cache') {
      throw new Error(`no cache Job does ${task.type}`);
    }
    const name = nameOf(task);
    const digest = task.refresh ? this.digest(name) : (images.get(name) ?? this.digest(name));
    images.set(name, digest);
    holds.set(task.entry, name);
    await this.#writeNode(host);
    this.done.push(`cache ${host} ${name}`);
    return { digest, sizeBytes: SIZE_BYTES, storageBytes: SIZE_BYTES };
  }

  async #writeNode(name: string): Promise<void> {
    const host = this.#host(name);
    const write = async (): Promise<void> => {
      const images = [...host.images.values()].map((digest) => ({
        // Agents list only the digest of an image for which a registry asks for credentials.
        names: [contentName(digest)],
        sizeBytes: SIZE_BYTES,
      }));
      await this.#client.mergePatch(NODES, { name }, { status: { images } }, { subresource: 'status' });
    };
    const written = host.writing.then(write);
    host.writing = written.catch(() => undefined);
    await written;
  }

  async #report(pod: Readonly<Pod>, phase: PodPhase, state: ContainerState): Promise<void> {
    const { name, namespace = '', uid } = pod.metadata;
    const container = {
      name: TASK_CONTAINER,
      image: pod.spec.containers[0]?.image ?? '',
      imageID: '',
      ready: phase === 'Running',
      restartCount: 0,
      state,
    };
    const status = { phase, startTime: now(), containerStatuses: [container] };
    await this.#client.mergePatch(
      PODS,
      { namespace, name },
      { metadata: { uid }, status },
      { subresource: 'status' },
    );
  }
}

function nameOf({ image }: Task & { type: 'cache' }): string {
  if (image.name !== undefined) {
    return image.name;
  }
  if (image.source.type !== 'registry') {
    throw new Error(`no name for a source ${image.source.type}`);
  }
  return image.source.reference;
}

/** Reports whether the Pod was deleted during its work. Real agents see the same errors. */
function isGone(error: unknown): boolean {
  return isNotFound(error) || isConflict(error);
}

/** Returns the time without fractions of a second, as `metav1.Time` requires. */
function now(): string {
  return new Date().toISOString().replace(/\.\d{3}Z$/, 'Z');
}
