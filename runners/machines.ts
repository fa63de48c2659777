/** Makes and deletes the VMs of a set, each with its runner at GitHub and its Secret. */
import { randomInt } from 'node:crypto';
import { SCALE_SET_LABEL, USER_DATA_SECRET_TYPE } from '../api/v1alpha1/names.ts';
import { RUNNER_SETS, VMS } from '../api/v1alpha1/resources.ts';
import type { RunnerSet } from '../api/v1alpha1/runnerset.ts';
import type { VM } from '../api/v1alpha1/vm.ts';
import { undefinedIf } from '../base/errors.ts';
import { timestamp } from '../base/time.ts';
import type { KubeClient } from '../kube/client.ts';
import { conditionIn } from '../kube/conditions.ts';
import { type Secret, SECRETS } from '../kube/core.ts';
import { isConflict, unlessMissing } from '../kube/errors.ts';
import type { Condition, OwnerReference, Ref, Unsaved } from '../kube/objects.ts';
import type { GitHub } from './github/client.ts';
import { ALIVE_MILLISECONDS, IDLE_MILLISECONDS, type RunnerVM } from './plan.ts';

/** Name of this program's field manager. */
export const FIELD_MANAGER = 'berth-runners';
/** Key of the JIT configuration in the Secret of a VM. */
const JIT_KEY = 'jitconfig';
/** Longest time in seconds of a job on a runner of one's own: five days. GitHub ends longer ones. */
const JOB_SECONDS = 432_000;
/** Longest run of a VM in seconds: it waits for a job, and then has the longest job. A VM with a job ends in no other way. */
const RUN_SECONDS = (2 * IDLE_MILLISECONDS) / 1000 + JOB_SECONDS;
const NAME_CHARACTERS = 'bcdfghjklmnpqrstvwxz2456789';
/** Number of random characters in a name. Two of a million names are equal with a probability of one in a thousand billions. */
const RANDOM_CHARACTERS = 7;
/** Number of characters in a name that are the same for all VMs of one RunnerSet. */
const OWNER_CHARACTERS = 5;

/**
 * Returns the beginning of the names of the VMs and runners of a set. It is different for another RunnerSet of the same name, also in another
 * cluster with the same organization, because it has a part of the uid.
 */
export function namePrefix({ metadata: { name, uid = '' } }: Readonly<RunnerSet>): string {
  return `${name}-${uid.replaceAll('-', '').slice(0, OWNER_CHARACTERS)}`;
}

/** Returns the name of the scale set at GitHub. */
export function scaleSetName({ spec, metadata }: Readonly<RunnerSet>): string {
  return spec.github.name ?? metadata.name;
}

function newName(set: Readonly<RunnerSet>): string {
  const random = Array.from(
    { length: RANDOM_CHARACTERS },
    () => NAME_CHARACTERS[randomInt(NAME_CHARACTERS.length)],
  );
  return namePrefix(set) + random.join('');
}

/** Returns what a VM shows of its runner. */
export function readVM({ metadata, spec, status }: Readonly<VM>): RunnerVM {
  const ready = conditionIn(status, 'Ready');
  return {
    name: metadata.name,
    createdAt: Date.parse(metadata.creationTimestamp ?? ''),
    runningAt: timeOf(status?.firstRunningTime),
    readyAt: ready?.status === 'True' ? timeOf(ready.lastTransitionTime) : undefined,
    aliveUntil: timeOf(spec.aliveUntil),
    isPlaced: status?.nodeName !== undefined,
    obstacle: status?.nodeName === undefined ? obstacleOf(ready) : undefined,
    isEnding: metadata.deletionTimestamp !== undefined || hasEnded(status?.phase),
  };
}

function hasEnded(phase: string | undefined): boolean {
  return phase === 'Stopped' || phase === 'Failed';
}

function obstacleOf(ready: Condition | undefined): string | undefined {
  return ready?.status === 'False' ? `${ready.reason}: ${ready.message}` : undefined;
}

function timeOf(text: string | undefined): number | undefined {
  return text === undefined ? undefined : Date.parse(text);
}

function newVM(set: Readonly<RunnerSet>, name: string, now: number): Unsaved<VM> & { metadata: Ref } {
  const { namespace = '', name: setName, uid = '' } = set.metadata;
  const owner: OwnerReference = {
    apiVersion: RUNNER_SETS.apiVersion,
    kind: RUNNER_SETS.kind,
    name: setName,
    uid,
    controller: true,
  };
  const { configRef, template } = set.spec;
  const { labels, annotations } = template?.metadata ?? {};
  return {
    metadata: {
      namespace,
      name,
      labels: { ...labels, [SCALE_SET_LABEL]: scaleSetName(set) },
      ...(annotations && { annotations: { ...annotations } }),
      ownerReferences: [owner],
    },
    spec: {
      ...(template?.spec ?? (configRef && { configRef })),
      userDataSecretRef: { name, key: JIT_KEY },
      ttlSecondsAfterFinished: 0,
      aliveUntil: timestamp(now + ALIVE_MILLISECONDS),
      activeDeadlineSeconds: RUN_SECONDS,
    },
  };
}

/** The Secret belongs to its VM, so that Kubernetes removes it with the VM. */
function newSecret({ metadata }: VM, jitConfig: string): Unsaved<Secret> {
  const { namespace = '', name, uid = '' } = metadata;
  return {
    metadata: {
      namespace,
      name,
      ownerReferences: [{ apiVersion: VMS.apiVersion, kind: VMS.kind, name, uid }],
    },
    type: USER_DATA_SECRET_TYPE,
    immutable: true,
    stringData: { [JIT_KEY]: jitConfig },
  };
}

/** Where a runner is made. */
export interface RunnerPlace {
  readonly client: KubeClient;
  readonly github: GitHub;
  readonly setID: number;
  readonly signal: AbortSignal;
  /** Returns the current time in milliseconds since the epoch. */
  readonly clock: () => number;
}

/**
 * Makes a VM, its runner at GitHub and its Secret, in this order. The Secret has an owner from its beginning, and the VM does not start
 * without it. If this process dies in between, the next pass finds a VM without a runner, and deletes it.
 * @returns the VM
 * @throws ApiError when the API server refuses, GitHubError when GitHub refuses. The VM is then deleted again.
 */
export async function makeRunner(place: RunnerPlace, set: Readonly<RunnerSet>): Promise<VM> {
  const { client, github, setID, signal, clock } = place;
  const vm = await client.create(VMS, newVM(set, newName(set), clock()), { fieldManager: FIELD_MANAGER });
  try {
    const jitConfig = await github.registerRunner(setID, vm.metadata.name, signal);
    await client.create(SECRETS, newSecret(vm, jitConfig), { fieldManager: FIELD_MANAGER });
  } catch (error) {
    await deleteVM(client, vm);
    throw error;
  }
  return vm;
}

/** Renews the life of this VM. A VM that is gone needs none. @returns the VM if it is there */
export async function prolongVM(client: KubeClient, { metadata }: VM, now: number): Promise<VM | undefined> {
  const { namespace = '', name, uid } = metadata;
  const change = { metadata: { uid }, spec: { aliveUntil: timestamp(now + ALIVE_MILLISECONDS) } };
  const options = { fieldManager: FIELD_MANAGER };
  const patch = unlessMissing(client.mergePatch(VMS, { namespace, name }, change, options));
  return await undefinedIf(isConflict, patch);
}

/** Deletes this VM, but no later one of the same name. */
export async function deleteVM(client: KubeClient, { metadata }: Pick<VM, 'metadata'>): Promise<void> {
  const { namespace = '', name, uid } = metadata;
  await undefinedIf(isConflict, client.delete(VMS, { namespace, name }, { uid }));
}
