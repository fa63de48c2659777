/** Reconciles RunnerSets: listens to GitHub, makes and deletes VMs as the plan says, and writes the status. */
import type { Logger } from 'pino';
import type { Reason } from '../api/v1alpha1/reasons.ts';
import { RUNNER_SETS } from '../api/v1alpha1/resources.ts';
import { type RunnerSet, runnerSetStatusSchema } from '../api/v1alpha1/runnerset.ts';
import { boundStatus } from '../api/v1alpha1/status.ts';
import type { Image } from '../api/v1alpha1/image.ts';
import type { ISO } from '../api/v1alpha1/iso.ts';
import type { VM } from '../api/v1alpha1/vm.ts';
import type { VMConfig } from '../api/v1alpha1/vmconfig.ts';
import { inParallel } from '../base/concurrency.ts';
import { messageOf } from '../base/errors.ts';
import { soonest } from '../base/time.ts';
import type { KubeClient } from '../kube/client.ts';
import type { Consistency } from '../kube/consistency.ts';
import type { Result } from '../kube/controller.ts';
import type { Namespace, Node, Pod } from '../kube/core.ts';
import { ApiError, isConflict, unlessMissing } from '../kube/errors.ts';
import type { EventRecorder } from '../kube/events.ts';
import type { Informer } from '../kube/informer.ts';
import { mergeDiff } from '../kube/mergepatch.ts';
import { refOf } from '../kube/objects.ts';
import { GitHubError } from './github/error.ts';
import type { GitHubNetwork } from './github/http.ts';
import { deleteVM, FIELD_MANAGER, makeRunner, prolongVM, readVM, type RunnerPlace } from './machines.ts';
import type { RunnerMetrics } from './metrics.ts';
import { type Bidder, countVMs, isHungry, offerTo, PERIOD_MILLISECONDS } from './offers.ts';
import { type HostLookups, needsOf, type PlacingConfig, unseenBy } from './needs.ts';
import { architecturesFor } from './places.ts';
import {
  countWanted,
  LEAVING_MILLISECONDS,
  liveVMs,
  planSet,
  rememberNews,
  type Removal,
  type RemovalCause,
  type SetPlan,
} from './plan.ts';
import { LIST_MILLISECONDS, RunnerVMFailed, ServedSet } from './served.ts';
import { countReady, runnerSetStatus, type Trouble } from './status.ts';

/** Number of VMs of one set that are made or deleted at the same time. */
const WIDTH = 4;
/** Number of failures in a row from which on the set keeps no places for VMs that fail or cannot be made. One failure can be a short fault. */
const LASTING_FAILURES = 3;
/** Index of the VMs by the uid of their RunnerSet. */
export const VMS_BY_SET = 'set';

const REMOVED: Readonly<Record<RemovalCause, { reason: Reason; why: string }>> = {
  JobEnded: { reason: 'RunnerRemoved', why: 'its job has ended and its guest did not shut down' },
  RunnerGone: { reason: 'RunnerRemoved', why: 'GitHub no longer knows its runner' },
  NotOnline: { reason: 'RunnerNotOnline', why: 'its runner did not come online' },
  TooOld: { reason: 'RunnerRemoved', why: 'it waited too long for a job' },
  Surplus: { reason: 'RunnerRemoved', why: 'no job needs it' },
};

/** Caches of one served namespace. */
export interface NamespaceWatches {
  readonly sets: Informer<RunnerSet>;
  readonly vms: Informer<VM>;
  readonly configs: Informer<VMConfig>;
  readonly images: Informer<Image>;
  readonly isos: Informer<ISO>;
}

export interface RunnerSetOptions {
  readonly client: KubeClient;
  /** Caches by the name of the namespace. */
  readonly watches: ReadonlyMap<string, NamespaceWatches>;
  /** Namespace whose VMConfigs all sets can name. */
  readonly defaultNamespace: string;
  readonly config: PlacingConfig;
  readonly nodes: Informer<Node>;
  readonly pods: Informer<Pod>;
  readonly namespaces: Informer<Namespace>;
  readonly consistency: Consistency;
  readonly recorder: EventRecorder<Reason>;
  readonly metrics: RunnerMetrics;
  readonly network: GitHubNetwork;
  /** Name of this process for people at GitHub. */
  readonly owner: string;
  readonly logger: Logger;
  /** Returns the current time in milliseconds since the epoch. */
  readonly clock: () => number;
  /** Adds a set to the queue. */
  readonly enqueue: (key: string) => void;
  /** Aborts when this process stops. */
  readonly signal: AbortSignal;
}

/** A set in one pass. */
interface Pass {
  readonly key: string;
  readonly set: Readonly<RunnerSet>;
  readonly served: ServedSet;
}

export class RunnerSetReconciler {
  readonly #options: RunnerSetOptions;
  readonly #served = new Map<string, { readonly set: Readonly<RunnerSet>; readonly state: ServedSet }>();

  constructor(options: RunnerSetOptions) {
    this.#options = options;
  }

  async reconcile(key: string): Promise<Result> {
    const set = this.#setOf(key);
    const known = this.#served.get(key);
    if (known !== undefined && (set === undefined || !known.state.isFor(set))) {
      await this.#leave(key, set);
    }
    if (set === undefined) {
      return undefined;
    }
    const served = this.#served.get(key)?.state ?? this.#serve(key, set);
    const plan = await this.#work({ key, set, served });
    await this.#writeStatus({ key, set, served }, plan);
    const { memory, failures } = served;
    const untilRetry = failures.until - this.#options.clock();
    return {
      requeueAfterMilliseconds: soonest(
        LIST_MILLISECONDS,
        memory.leaving.size > 0 ? LEAVING_MILLISECONDS : undefined,
        untilRetry > 0 ? untilRetry : undefined,
      ),
    };
  }

  /** Takes note of a change of a VM of the set. A VM that fails is deleted at once, so a later pass would not see it. */
  observe(key: string, vm: Readonly<VM>): void {
    const known = this.#served.get(key);
    const failed = known?.state.observe(vm);
    if (known !== undefined && failed !== undefined) {
      const { reason, message } = troubleOf(failed);
      this.#options.recorder.event(known.set, { type: 'Warning', reason, action: 'Starting', message });
    }
  }

  /** Ends all message sessions, so that the next leader can open its own at once. */
  async stop(): Promise<void> {
    await Promise.all([...this.#served.values()].map(({ state }) => state.stop({ deletesSet: false })));
  }

  #setOf(key: string): Readonly<RunnerSet> | undefined {
    const { namespace = '' } = refOf(key);
    const set = this.#options.watches.get(namespace)?.sets.cache.get(key);
    return set?.metadata.deletionTimestamp === undefined ? set : undefined;
  }

  #serve(key: string, set: Readonly<RunnerSet>): ServedSet {
    const { client, network, owner, metrics, logger, clock, enqueue } = this.#options;
    const state = new ServedSet({
      set,
      client,
      network,
      owner,
      capacity: () => this.#offer(key),
      onChange: () => enqueue(key),
      onItems: (items) => metrics.observe(set, items),
      logger: logger.child(refOf(key)),
      clock,
    });
    this.#served.set(key, { set, state });
    return state;
  }

  /** Stops to serve a set. If the RunnerSet is gone, the scale set at GitHub goes, too. */
  async #leave(key: string, now: Readonly<RunnerSet> | undefined): Promise<void> {
    const known = this.#served.get(key);
    this.#served.delete(key);
    if (known !== undefined) {
      const isGone = now?.metadata.uid !== known.set.metadata.uid;
      if (isGone) {
        this.#options.metrics.forget(known.set);
        this.#options.consistency.forget(key);
      }
      await known.state.stop({ deletesSet: isGone });
    }
  }

  #vmsOf({ metadata: { namespace = '', uid = '' } }: Readonly<RunnerSet>): readonly Readonly<VM>[] {
    return this.#options.watches.get(namespace)?.vms.cache.byIndex(VMS_BY_SET, uid) ?? [];
  }

  /** Returns the number of jobs that GitHub may assign to a set now. */
  #offer(key: string): number {
    const { nodes, pods, clock } = this.#options;
    const bidders = [...this.#served].flatMap(([one, { state }]) => this.#bidderOf(one, state) ?? []);
    const fleet = { nodes: nodes.cache.list(), pods: pods.cache.list() };
    return offerTo(key, bidders, fleet, Math.floor(clock() / PERIOD_MILLISECONDS));
  }

  /** Returns what a set asks for. It is undefined for a set that gets no jobs, because it has no session or nobody knows what its VMs need. */
  #bidderOf(key: string, state: ServedSet): Bidder | undefined {
    const set = this.#setOf(key);
    if (set === undefined || !state.canGetJobs || this.#blindnessOf(set) !== undefined) {
      return undefined;
    }
    const { namespace: name = '' } = set.metadata;
    const { pods, clock } = this.#options;
    const { statistics, memory, prefix, offered, failures } = state;
    const { placed, due, isStuck } = countVMs({
      live: liveVMs(this.#vmsOf(set).map(readVM), memory),
      wanted: countWanted(set.spec, statistics) ?? 0,
      canMake: failures.count < LASTING_FAILURES,
      hasPod: (vm) => pods.cache.get(`${name}/${vm}`) !== undefined,
      now: clock(),
    });
    return {
      key,
      namespace: this.#namespaceOf(set),
      prefix,
      needs: needsOf(set, this.#lookupsFor(set), this.#options.config),
      placed,
      due,
      max: set.spec.max,
      offered,
      isHungry: !isStuck && isHungry(statistics, offered),
    };
  }

  #namespaceOf({ metadata: { namespace: name = '' } }: Readonly<RunnerSet>): Readonly<Namespace> {
    const unknown = { apiVersion: 'v1', kind: 'Namespace', metadata: { name } };
    return this.#options.namespaces.cache.get(name) ?? unknown;
  }

  /** Returns why nobody knows which hosts the VMs of the set need. */
  #blindnessOf(set: Readonly<RunnerSet>): Trouble | undefined {
    return this.#unseenOf(set) ?? this.#mixtureOf(set);
  }

  /** Returns that the hosts have several architectures, and that nobody says which one the image has. */
  #mixtureOf(set: Readonly<RunnerSet>): Trouble | undefined {
    const needs = needsOf(set, this.#lookupsFor(set), this.#options.config);
    if (needs.architecture !== undefined) {
      return undefined;
    }
    const namespace = this.#namespaceOf(set);
    const found = architecturesFor({ namespace, needs }, this.#options.nodes.cache.list());
    return found.length < 2
      ? undefined
      : {
          reason: 'RunnerArchitectureUnknown',
          message: `The hosts for the set have the architectures ${found.join(' and ')}, and nobody says which one its image has. The set gets no jobs, because its VMs would fail on the other hosts. Set architecture in the template, the VMConfig or the Image`,
        };
  }

  /** Returns which object of the set could be in the default namespace, while this program does not see that. */
  #unseenOf(set: Readonly<RunnerSet>): Trouble | undefined {
    const { watches, defaultNamespace, config } = this.#options;
    const unseen = watches.has(defaultNamespace) ? undefined : unseenBy(set, this.#lookupsFor(set), config);
    const { namespace } = set.metadata;
    return unseen === undefined
      ? undefined
      : {
          reason: 'RunnerSourceUnseen',
          message: `${unseen} is not in the namespace ${namespace}, and berth-runners does not see the namespace ${defaultNamespace}. The set gets no jobs, because nobody knows which hosts its VMs need. Add ${defaultNamespace} to the chart value runners.namespaces`,
        };
  }

  #lookupsFor({ metadata: { namespace = '' } }: Readonly<RunnerSet>): HostLookups {
    const { watches, defaultNamespace } = this.#options;
    const find = <T>(name: string, read: (watched: NamespaceWatches, key: string) => T | undefined) =>
      [namespace, defaultNamespace]
        .map((place) => {
          const watched = watches.get(place);
          return watched && read(watched, `${place}/${name}`);
        })
        .find((one) => one !== undefined);
    return {
      config: (name: string) => find(name, ({ configs }, key) => configs.cache.get(key)),
      image: (name: string) => find(name, ({ images }, key) => images.cache.get(key)),
      iso: (name: string) => find(name, ({ isos }, key) => isos.cache.get(key)),
    };
  }

  /** Does what the plan says, as far as GitHub and the API server allow it. */
  async #work(pass: Pass): Promise<SetPlan | undefined> {
    const { set, served } = pass;
    const { client, signal, clock } = this.#options;
    const { connected } = served;
    served.trouble = this.#blindnessOf(set);
    if (connected === undefined) {
      return undefined;
    }
    try {
      const listed = await served.list(connected.github, this.#vmsOf(set).length > 0, signal);
      const { min = 0, max } = set.spec;
      const vms = this.#vmsOf(set);
      const { statistics, memory } = served;
      const plan = planSet({ min, max, statistics, vms: vms.map(readVM), listed, memory, now: clock() });
      served.memory = plan.memory;
      await this.#carryOut(pass, plan, { client, signal, clock, ...connected });
      const { error } = served.failures;
      if (error instanceof RunnerVMFailed && countReady(plan) < (plan.wanted ?? 0)) {
        served.trouble ??= troubleOf(error);
      }
      return plan;
    } catch (error) {
      served.hold(error);
      served.trouble = troubleOf(error);
      return undefined;
    }
  }

  async #carryOut(pass: Pass, plan: SetPlan, place: RunnerPlace): Promise<void> {
    const { signal } = place;
    await inParallel(plan.remove, WIDTH, signal, async (removal) => await this.#remove(pass, removal, place));
    await inParallel(plan.orphans, WIDTH, signal, async (name) => {
      await place.github.removeRunner(name, signal);
    });
    await inParallel(plan.prolong, WIDTH, signal, async (name) => await this.#prolong(pass, name));
    await this.#create(pass, plan.create, place);
  }

  async #prolong({ key, set }: Pass, name: string): Promise<void> {
    const { client, clock, consistency, watches } = this.#options;
    const vm = this.#vmsOf(set).find(({ metadata }) => metadata.name === name);
    const vms = watches.get(set.metadata.namespace ?? '')?.vms;
    const saved = vm && (await prolongVM(client, vm, clock()));
    if (saved !== undefined && vms !== undefined) {
      consistency.wrote(key, vms, saved.metadata.resourceVersion ?? '');
    }
  }

  async #create({ key, set, served }: Pass, wanted: number, place: RunnerPlace): Promise<void> {
    const { consistency, watches, clock, recorder } = this.#options;
    const vms = watches.get(set.metadata.namespace ?? '')?.vms;
    if (wanted === 0 || vms === undefined) {
      return;
    }
    const { error: last, until } = served.failures;
    if (last !== undefined && clock() < until) {
      throw last;
    }
    const ofSet = this.#vmsOf(set).map(({ metadata }) => metadata.name);
    const length = served.allow(wanted, (name) => ofSet.includes(name));
    try {
      await inParallel(Array.from({ length }), WIDTH, place.signal, async () => {
        const vm = await makeRunner(place, set);
        consistency.wrote(key, vms, vm.metadata.resourceVersion ?? '');
        served.made(vm.metadata.name);
      });
    } catch (error) {
      served.fail(error as Error);
      if (error instanceof ApiError) {
        const { reason, message } = troubleOf(error);
        recorder.event(set, { type: 'Warning', reason, action: 'Creating', message });
      }
      throw error;
    }
  }

  async #remove({ set, served }: Pass, { name, cause }: Removal, place: RunnerPlace): Promise<void> {
    const { client, recorder, clock } = this.#options;
    const vm = this.#vmsOf(set).find(({ metadata }) => metadata.name === name);
    if (vm === undefined) {
      return;
    }
    if (!(await place.github.removeRunner(name, place.signal))) {
      served.memory = rememberNews(served.memory, [{ type: 'JobStarted', name }], clock());
      return;
    }
    await deleteVM(client, vm);
    const { reason, why } = REMOVED[cause];
    const type = reason === 'RunnerNotOnline' ? 'Warning' : 'Normal';
    recorder.event(set, {
      type,
      reason,
      action: 'Deleting',
      message: `VM ${name} is deleted, because ${why}`,
    });
  }

  async #writeStatus({ key, set, served }: Pass, plan: SetPlan | undefined): Promise<void> {
    const { client, consistency, watches, clock } = this.#options;
    const { connection, scaleSetID, statistics, offered, trouble } = served;
    const report = {
      set,
      connection,
      scaleSetID,
      statistics,
      capacity: offered,
      plan,
      trouble,
      now: clock(),
    };
    const status = boundStatus(runnerSetStatusSchema, runnerSetStatus(report));
    const change = mergeDiff(set.status, status);
    const { namespace = '', name, uid, resourceVersion } = set.metadata;
    const sets = watches.get(namespace)?.sets;
    if (change === undefined || sets === undefined) {
      return;
    }
    const body = { metadata: { uid, resourceVersion }, status: change };
    const options = { fieldManager: FIELD_MANAGER, subresource: 'status' };
    const saved = await unlessMissing(client.mergePatch(RUNNER_SETS, { namespace, name }, body, options));
    if (saved !== undefined) {
      consistency.wrote(key, sets, saved.metadata.resourceVersion ?? '');
    }
  }
}

/** Returns an error as the reason for a condition. @throws the error if it is a conflict or a fault of the program */
function troubleOf(error: unknown): Trouble {
  if (error instanceof GitHubError) {
    return { reason: error.reason, message: error.message };
  }
  if (error instanceof RunnerVMFailed) {
    return { reason: 'RunnerVMFailed', message: error.message };
  }
  if (error instanceof ApiError && !isConflict(error)) {
    return { reason: 'RunnerVMRefused', message: `The API server refused a VM: ${messageOf(error)}` };
  }
  throw error;
}
