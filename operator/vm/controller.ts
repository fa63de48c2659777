/** Reconciles VMs. The order of a reconcile is in podbacked/reconciler.ts, and the steps are in steps.ts. */
import { boundStatus } from '../../api/v1alpha1/status.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { type VMStatus, vmStatusSchema } from '../../api/v1alpha1/vmstatus.ts';
import { SharedReads } from '../../kube/sharedreads.ts';
import { keyOf } from '../../kube/objects.ts';
import { ignoredEntries } from '../objects/registries.ts';
import type { Kind } from '../podbacked/kind.ts';
import { type PodBackedOptions, PodBackedReconciler } from '../podbacked/reconciler.ts';
import { goneVM, macAddressOf, NODES_BY_GIVEN_UP } from './abandoned.ts';
import { isBetweenPods } from './adoption.ts';
import { untilNextDeadline } from './deadlines.ts';
import { recordDoubledIdentity, recordTransition, recordUnanswered } from './events.ts';
import { type Facts, gatherFacts, lostPlacement } from './facts.ts';
import { isDeploying, isOverdue, mayBeOutdated, readLive } from './live.ts';
import type { VMMetrics } from './metrics.ts';
import { type Observed, observe, type ResizeRefusal, type Sources } from './observe.ts';
import { PENDING_PHASES } from './phase.ts';
import { standingRefusal } from './size.ts';
import { summarize } from './status.ts';
import { stepsFor, type Write } from './steps.ts';
import { VM_NAMING, VMWriter } from './writes.ts';

export interface VMControllerOptions extends Sources, Pick<PodBackedOptions<VM>, 'consistency' | 'recorder'> {
  readonly metrics: VMMetrics;
}

const VM_KIND: Kind<VM, Observed, Facts, Write> = {
  ...VM_NAMING,
  substitute: goneVM,
  gatherFacts,
  stepsFor,
  summarize: (run, facts) => {
    const { observed, blocked, refused } = run;
    const stays = isBetweenPods(observed) && (blocked ?? refused) === undefined;
    return stays ? undefined : boundStatus(vmStatusSchema, summarize(observed, facts, run));
  },
  deployment: PENDING_PHASES,
  untilNextDeadline,
  isRechecked: () => true,
};

export class VMReconciler extends PodBackedReconciler<VM, Observed, Facts, Write> {
  readonly #options: VMControllerOptions;
  readonly #writer: VMWriter;
  readonly #reads: SharedReads;
  /**
   * Last refused resize of each VM that still requests the refused size. The map's key is the key of the VM. A new leader does not have
   * this map, so it requests each size once more.
   */
  readonly #resizeRefused = new Map<string, ResizeRefusal>();

  constructor(options: VMControllerOptions) {
    const sources = { ...options, objects: options.vms, objectPods: options.pods };
    const writer = new VMWriter(sources);
    super(sources, VM_KIND, writer);
    this.#options = options;
    this.#writer = writer;
    this.#reads = new SharedReads(options.client);
  }

  protected override forget(key: string): void {
    super.forget(key);
    this.#resizeRefused.delete(key);
  }

  protected override async observe(vm: VM): Promise<Observed | undefined> {
    const key = keyOf(vm);
    const known = { ...(await observe(this.#options, vm)), resizeRefused: this.#resizeRefused.get(key) };
    if (standingRefusal(known) === undefined) {
      this.#resizeRefused.delete(key);
    }
    return mayBeOutdated(known) && !(await this.#writer.isCurrent(vm)) ? undefined : known;
  }

  protected override async confirm(known: Observed): Promise<Observed> {
    if (isDeploying(known)) {
      return await readLive(this.#reads, known);
    }
    return isOverdue(known) ? (await this.#writer.readPod(known)).observed : known;
  }

  protected override tellWrite(observed: Observed, write: Write): void {
    const { metrics, recorder } = this.#options;
    switch (write.kind) {
      case 'createPod':
        this.#tellPod(observed, write.ignoredEntries);
        break;
      case 'resizePod':
        this.#tellResize(observed);
        break;
      case 'deleteVM':
        if (write.unansweredSince !== undefined) {
          metrics.unanswered(observed.vm);
          recordUnanswered(recorder, observed.vm, write.unansweredSince);
        }
        break;
      default:
    }
  }

  protected override tellStatus(observed: Observed, status: VMStatus): void {
    const { vm, now } = observed;
    const { metrics, recorder } = this.#options;
    metrics.observe(vm, vm.status, status, now);
    recordTransition(recorder, vm, status, lostPlacement(observed, status));
  }

  #tellResize({ vm, resizeRefused }: Observed): void {
    if (resizeRefused === undefined) {
      this.#resizeRefused.delete(keyOf(vm));
    } else {
      this.#resizeRefused.set(keyOf(vm), resizeRefused);
    }
  }

  #tellPod({ vm, pod }: Observed, mistakes: readonly string[]): void {
    const { nodes, recorder } = this.#options;
    const macAddress = pod && macAddressOf(pod);
    const holders = macAddress === undefined ? [] : nodes.cache.byIndex(NODES_BY_GIVEN_UP, macAddress);
    if (macAddress !== undefined && holders.length > 0) {
      recordDoubledIdentity(
        recorder,
        vm,
        macAddress,
        holders.map(({ metadata }) => metadata.name),
      );
    }
    const ignored = ignoredEntries(mistakes);
    if (ignored !== undefined) {
      recorder.event(vm, ignored);
    }
  }
}
