/** Reconciles VMPools: makes, suspends and deletes their VMs. A VM that was claimed has lost its owner, so the pool never touches it again. */
import { randomInt } from 'node:crypto';
import type { Logger } from 'pino';
import type { Image } from '../../api/v1alpha1/image.ts';
import type { ISO } from '../../api/v1alpha1/iso.ts';
import {
  API_VERSION,
  CLAIMED_BY_ANNOTATION,
  POOL_LABEL,
  POOL_REVISION_LABEL,
} from '../../api/v1alpha1/names.ts';
import { VM_POOLS, VMS } from '../../api/v1alpha1/resources.ts';
import { boundStatus } from '../../api/v1alpha1/status.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { type VMPool, vmPoolStatusSchema } from '../../api/v1alpha1/vmpool.ts';
import { undefinedIf } from '../../base/errors.ts';
import { soonest } from '../../base/time.ts';
import type { ObjectChange } from '../../kube/cache.ts';
import type { KubeClient } from '../../kube/client.ts';
import type { Consistency } from '../../kube/consistency.ts';
import type { Controller, Result } from '../../kube/controller.ts';
import { isConflict, isObjectRefused, unlessMissing } from '../../kube/errors.ts';
import { keyOf, refOf, type Unsaved } from '../../kube/objects.ts';
import { normal, type Recorder, warning } from '../objects/events.ts';
import { HeldStatus } from '../objects/heldstatus.ts';
import { recheckMilliseconds, Refusals } from '../objects/refusals.ts';
import { conditionIn } from '../objects/conditions.ts';
import { Writer } from '../objects/writer.ts';
import { claimedPool } from './jobs.ts';
import {
  livedMilliseconds,
  type ObservedPool,
  observePool,
  type PoolMember,
  type PoolSources,
  poolKeyOf,
  VMS_BY_POOL,
} from './observe.ts';
import { failuresAfter, planPool, type PoolPlan } from './plan.ts';
import { mayWait, type PoolOutcome, poolEvents, summarizePool } from './status.ts';
import type { PoolMetrics } from './metrics.ts';
import { awaitedOn } from './yielding.ts';

/** Time in milliseconds for which a change of numbers is held back. Many claims at once then cause few writes. */
const HOLD_MILLISECONDS = 500;
/**
 * Time in milliseconds after which a change of a VM causes a reconcile. One reconcile looks at all VMs of a pool, and a large pool has hundreds
 * of changes in a second.
 */
const FOLD_MILLISECONDS = 100;
/** Characters of the last part of a name: those that Kubernetes uses in generated names, without vowels. */
const CHARACTERS = 'bcdfghjklmnpqrstvwxz2456789';
const GENERATED_LENGTH = 5;

export interface PoolControllerOptions extends PoolSources {
  readonly client: KubeClient;
  readonly consistency: Consistency;
  readonly recorder: Recorder;
  readonly metrics: Pick<PoolMetrics, 'claimed' | 'failed' | 'ran'>;
  /** Returns true while this process is the leader. */
  readonly isLeader: () => boolean;
}

/** What this process knows about one pool beside the caches. */
interface Memory {
  /** Uids of the VMs that it has deleted, until the cache shows the deletion. */
  readonly deleted: Set<string>;
  /** Names of VMs whose creation had no answer. The next attempt uses them again, so that a VM is not made twice. */
  readonly unanswered: Set<string>;
  /** Claims that the status does not count yet. */
  claims: number;
}

export class PoolReconciler {
  readonly #options: PoolControllerOptions;
  readonly #pools: Writer<VMPool>;
  readonly #vms: Writer<VM>;
  readonly #refusals: Refusals;
  readonly #held: HeldStatus;
  readonly #memories = new Map<string, Memory>();

  constructor(options: PoolControllerOptions) {
    const { client, consistency, pools, vms } = options;
    this.#options = options;
    this.#pools = new Writer({ client, consistency, type: VM_POOLS, informer: pools });
    this.#vms = new Writer({ client, consistency, type: VMS, informer: vms });
    this.#refusals = new Refusals({ ...options, dependent: 'VM' });
    this.#held = new HeldStatus({ ...options, holdMilliseconds: HOLD_MILLISECONDS });
  }

  /** Reconciles one pool once. `key` is `namespace/name`. */
  async reconcile(key: string, { logger }: { logger: Logger }): Promise<Result> {
    const pool = this.#options.pools.cache.get(key);
    if (pool === undefined) {
      this.#forget(key);
      return undefined;
    }
    // The garbage collector deletes the VMs of a deleted pool.
    return pool.metadata.deletionTimestamp === undefined
      ? await this.#refusals.during(pool, this.#serve(key, pool, logger))
      : undefined;
  }

  /** Counts the VM if the change is a claim: the pool does not own the VM any more, and its label names the pool. */
  countClaim(change: ObjectChange<VM>): void {
    const pool = this.#options.isLeader() ? claimedPool(this.#options.pools, change) : undefined;
    if (pool !== undefined) {
      const { name, annotations = {} } = change.object.metadata;
      this.#memory(keyOf(pool)).claims += 1;
      this.#options.metrics.claimed(pool);
      const message = `VM ${name} was claimed by ${annotations[CLAIMED_BY_ANNOTATION]}`;
      this.#options.recorder.event(pool, normal('Claimed', 'Claiming', message));
    }
  }

  #forget(key: string): void {
    this.#options.consistency.forget(key);
    this.#refusals.forget(key);
    this.#held.forget(key);
    this.#memories.delete(key);
  }

  #memory(key: string): Memory {
    const known = this.#memories.get(key) ?? {
      deleted: new Set<string>(),
      unanswered: new Set<string>(),
      claims: 0,
    };
    this.#memories.set(key, known);
    return known;
  }

  async #serve(key: string, pool: Readonly<VMPool>, logger: Logger): Promise<Result> {
    const memory = this.#memory(key);
    this.#forgetDeletions(pool, memory);
    const observed = observePool(this.#options, pool, {
      deleted: memory.deleted,
      isAwaitedOn: (nodes) => awaitedOn(this.#options, nodes),
    });
    const plan = planPool(observed);
    const failed = await this.#delete(pool, plan, memory, logger);
    await this.#suspend(key, plan.suspensions);
    const refused = await this.#make(observed, plan, memory);
    const failures = failuresAfter(plan.failures, failed, observed.now);
    const again = await this.#writeStatus(
      observed,
      plan,
      { failures, refused, claims: memory.claims },
      memory,
    );
    const since = conditionIn(pool.status, 'Progressing')?.lastTransitionTime;
    const recheck = refused === undefined ? undefined : recheckMilliseconds(since, observed.now);
    return { requeueAfterMilliseconds: soonest(plan.wakeMilliseconds, again, recheck) };
  }

  /** Forgets the deletions that the cache shows. */
  #forgetDeletions(pool: Readonly<VMPool>, { deleted }: Memory): void {
    const members = this.#options.vms.cache.byIndex(VMS_BY_POOL, pool.metadata.uid ?? '');
    const unseen = members
      .filter(({ metadata }) => metadata.deletionTimestamp === undefined)
      .map(({ metadata }) => metadata.uid ?? '');
    for (const uid of deleted) {
      if (!unseen.includes(uid)) {
        deleted.delete(uid);
      }
    }
  }

  /** Deletes VMs, and returns those that had failed. A VM that has changed stays: perhaps somebody has claimed it. */
  async #delete(
    pool: Readonly<VMPool>,
    plan: PoolPlan,
    memory: Memory,
    logger: Logger,
  ): Promise<PoolMember[]> {
    const failed: PoolMember[] = [];
    for (const { member, isFailure } of plan.deletions) {
      const { metadata } = member.vm;
      const deletion = this.#vms.deleteUnchanged(member.vm).then(() => true);
      if ((await undefinedIf(isConflict, deletion)) !== true) {
        continue;
      }
      memory.deleted.add(metadata.uid ?? '');
      logger.info({ vm: metadata.name, state: member.state, why: member.message }, 'deleted a VM of a pool');
      if (member.state === 'ended') {
        this.#options.metrics.ran(pool, livedMilliseconds(member.vm.status) / 1000);
      }
      if (isFailure) {
        failed.push(member);
        this.#options.metrics.failed(pool);
        this.#options.recorder.event(
          pool,
          warning('MemberFailed', 'Refilling', `VM ${metadata.name}: ${member.message}`),
        );
      }
    }
    return failed;
  }

  async #suspend(key: string, members: readonly PoolMember[]): Promise<void> {
    for (const { vm } of members) {
      await undefinedIf(isConflict, this.#vms.patch(key, vm, { spec: { powerState: 'Suspended' } }));
    }
  }

  /** Makes VMs. Returns the message of the API server if it refuses one. @throws ApiError for other failures. */
  async #make({ pool, revision }: ObservedPool, plan: PoolPlan, memory: Memory): Promise<string | undefined> {
    const { namespace = '', name: poolName } = pool.metadata;
    for (const name of memory.unanswered) {
      if (this.#options.vms.cache.get(`${namespace}/${name}`) !== undefined) {
        memory.unanswered.delete(name);
      }
    }
    const names = new Set([...memory.unanswered].slice(0, plan.creations));
    while (names.size < plan.creations) {
      names.add(generateName(poolName));
    }
    names.forEach((name) => memory.unanswered.add(name));
    const answers = await Promise.all(
      [...names].map(async (name) => {
        const error = await this.#create(pool, revision, name).then(
          () => undefined,
          (reason: unknown) => reason,
        );
        if (error === undefined || isObjectRefused(error)) {
          memory.unanswered.delete(name);
        }
        return error;
      }),
    );
    const refused = answers.find((error) => isObjectRefused(error));
    const other = answers.find((error) => error !== undefined && !isObjectRefused(error));
    if (other !== undefined) {
      throw other;
    }
    this.#refusals.record(pool, refused);
    return refused?.message;
  }

  async #create(pool: Readonly<VMPool>, revision: string, name: string): Promise<void> {
    const key = keyOf(pool);
    const made = await this.#vms.create(key, memberOf(pool, revision, name));
    if (made === undefined) {
      // The name exists: an earlier request had no answer, or somebody else has the name. The next plan must know which.
      const found = await unlessMissing(this.#options.client.get(VMS, { ...refOf(key), name }));
      if (found !== undefined) {
        this.#vms.follow(key, found);
      }
    }
  }

  async #writeStatus(
    observed: ObservedPool,
    plan: PoolPlan,
    outcome: PoolOutcome,
    memory: Memory,
  ): Promise<number | undefined> {
    const { pool } = observed;
    const status = boundStatus(vmPoolStatusSchema, summarizePool(observed, plan, outcome));
    const change = { before: pool.status, after: status, mayWait: () => mayWait(pool.status, status) };
    return await this.#held.write(keyOf(pool), change, async (patch) => {
      const saved = await this.#pools.patch(keyOf(pool), pool, { status: patch }, 'status');
      if (saved !== undefined) {
        memory.claims -= outcome.claims;
        poolEvents(pool, status).forEach((event) => this.#options.recorder.event(pool, event));
      }
    });
  }
}

function generateName(pool: string): string {
  const part = Array.from({ length: GENERATED_LENGTH }, () => CHARACTERS[randomInt(CHARACTERS.length)]).join(
    '',
  );
  return `${pool}-${part}`;
}

/** Returns a new VM of the pool. A VM that must be suspended first boots, because a machine that never ran has no memory to save. */
function memberOf({ metadata, spec }: Readonly<VMPool>, revision: string, name: string): Unsaved<VM> {
  const { template } = spec;
  const { namespace = '', uid = '' } = metadata;
  const { powerState } = template.spec;
  return {
    metadata: {
      namespace,
      name,
      labels: { ...template.metadata?.labels, [POOL_LABEL]: metadata.name, [POOL_REVISION_LABEL]: revision },
      ...(template.metadata?.annotations && { annotations: { ...template.metadata.annotations } }),
      ownerReferences: [
        {
          apiVersion: API_VERSION,
          kind: VM_POOLS.kind,
          name: metadata.name,
          uid,
          controller: true,
          blockOwnerDeletion: true,
        },
      ],
    },
    spec: { ...template.spec, ...(powerState === 'Suspended' && { powerState: 'Running' }) },
  };
}

/** Enqueues a pool when it, one of its VMs, or an object that its template names has changed. */
export function enqueuePools(
  controller: Controller,
  reconciler: Pick<PoolReconciler, 'countClaim'>,
  { pools, vms, vmConfigs, images, isos }: PoolSources,
): void {
  pools.cache.onChange(({ object }) => controller.enqueue(keyOf(object)));
  vms.cache.onChange((change) => {
    reconciler.countClaim(change);
    const keys = [change.object, change.previous].map((vm) => vm && poolKeyOf(vm));
    new Set(keys).forEach((key) => key !== undefined && controller.enqueueAfter(key, FOLD_MILLISECONDS));
  });
  const enqueueAll = (): void => pools.cache.list().forEach((pool) => controller.enqueue(keyOf(pool)));
  vmConfigs.cache.onChange(enqueueAll);
  for (const { cache } of [images, isos]) {
    cache.onChange(({ object, previous }) => {
      if (contentText(object) !== contentText(previous)) {
        enqueueAll();
      }
    });
  }
}

/** Returns the part of an image's status that matters to pools. The rest changes with each step of its pull. */
function contentText(object: { readonly status?: Image['status'] | ISO['status'] } | undefined): string {
  const { digest, content, phase } = object?.status ?? {};
  return JSON.stringify([digest, content, phase]);
}
