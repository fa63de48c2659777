/**
 * Grants the right to read the credentials of the image storage to the hosts that need it now. One RoleBinding of the system namespace has
 * as subjects the hosts with an unfinished task that writes to the registry. Its Secret is never copied to a namespace of users.
 */
import type { Logger } from 'pino';
import { STORAGE_SECRET, STORAGE_WRITERS } from '../../api/v1alpha1/names.ts';
import type { KubeClient } from '../../kube/client.ts';
import type { Consistency } from '../../kube/consistency.ts';
import type { Controller, Result } from '../../kube/controller.ts';
import { type Job, type Pod, ROLE_BINDINGS, type RoleBinding, type Subject } from '../../kube/core.ts';
import type { Informer } from '../../kube/informer.ts';
import { keyOf } from '../../kube/objects.ts';
import type { OperatorConfig } from '../config/config.ts';
import { Writer } from '../objects/writer.ts';
import { taskOf } from '../tasks/job.ts';
import { jobOf } from '../tasks/owner.ts';

const RBAC_GROUP = 'rbac.authorization.k8s.io';
const ENDED: ReadonlySet<string | undefined> = new Set(['Succeeded', 'Failed']);

export interface WriterSources {
  readonly jobs: Informer<Job>;
  readonly taskPods: Informer<Pod>;
  /** The one RoleBinding, in the system namespace. */
  readonly storageWriters: Informer<RoleBinding>;
}

export interface StorageWritersOptions extends WriterSources {
  readonly client: KubeClient;
  readonly config: OperatorConfig;
  readonly consistency: Consistency;
}

export class StorageWritersReconciler {
  readonly #options: StorageWritersOptions;
  readonly #bindings: Writer<RoleBinding>;

  constructor(options: StorageWritersOptions) {
    const { client, consistency, storageWriters } = options;
    this.#options = options;
    this.#bindings = new Writer({ client, consistency, type: ROLE_BINDINGS, informer: storageWriters });
  }

  /** Sets the subjects. `key` is that of the RoleBinding, which the chart makes. */
  async reconcile(key: string, { logger }: { logger: Logger }): Promise<Result> {
    const { storageWriters, taskPods, jobs } = this.#options;
    const binding = storageWriters.cache.get(key);
    if (binding === undefined) {
      return undefined;
    }
    const subjects = writingHosts(taskPods.cache.list(), (pod) => jobOf(pod, jobs)).map(hostSubject);
    if (JSON.stringify(subjects.map(nameOf)) !== JSON.stringify((binding.subjects ?? []).map(nameOf))) {
      logger.info({ hosts: subjects.map(nameOf) }, 'setting the hosts that may write to the image storage');
      await this.#bindings.patch(key, binding, { subjects });
    }
    return undefined;
  }
}

/** Returns the names of the hosts with an unfinished task that writes to the registry of the image storage, in alphabetical order. */
export function writingHosts(
  pods: readonly Readonly<Pod>[],
  jobFor: (pod: Readonly<Pod>) => Readonly<Job> | undefined,
): string[] {
  const writing = pods.filter((pod) => {
    const job = ENDED.has(pod.status?.phase) ? undefined : jobFor(pod);
    return job !== undefined && writes(job);
  });
  return [...new Set(writing.flatMap(({ spec }) => spec.nodeName ?? []))].toSorted();
}

function writes(job: Readonly<Job>): boolean {
  const task = taskOf(job);
  const target = task !== undefined && 'target' in task ? task.target : undefined;
  return target?.type === 'registry';
}

function hostSubject(host: string): Subject {
  return { kind: 'User', apiGroup: RBAC_GROUP, name: `system:node:${host}` };
}

function nameOf({ name }: Subject): string {
  return name;
}

/** Enqueues the RoleBinding when it changes, and when the Pod of a task changes. */
export function enqueueStorageWriters(
  controller: Controller,
  { jobs, taskPods, storageWriters, config }: WriterSources & { config: OperatorConfig },
): void {
  const key = keyOf({ metadata: { namespace: config.namespaces.system, name: STORAGE_WRITERS } });
  const enqueue = (): void => controller.enqueue(key);
  storageWriters.cache.onChange(enqueue);
  taskPods.cache.onChange(({ object }) => {
    if (object.spec.imagePullSecrets?.some(({ name }) => name === STORAGE_SECRET) === true) {
      enqueue();
    }
  });
  // A Pod can be seen before its Job.
  jobs.cache.onChange(({ type }) => {
    if (type === 'added') {
      enqueue();
    }
  });
}
