/**
 * Reconciles VMs. The order of a reconcile is in podbacked/reconciler.ts, and the steps are in steps.ts. The objects of a deployment
 * (VMConfig, Image, ISO, credentials for registries) are read from the API server: the Pod of a VM is created only once, so from a cache
 * that lags its machine would never get their latest changes.
 */
import { boundStatus } from '../../api/v1alpha1/status.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { type VMStatus, vmStatusSchema } from '../../api/v1alpha1/vmstatus.ts';
import { SharedReads } from '../../kube/sharedreads.ts';
import { keyOf, type KubeObject, type Resource } from '../../kube/objects.ts';
import { ignoredEntries } from '../objects/registries.ts';
import type { PodBackedKind } from '../podbacked/kind.ts';
import { type PodBackedOptions, PodBackedReconciler } from '../podbacked/reconciler.ts';
import { goneVM, macAddressOf, NODES_BY_GIVEN_UP } from './abandoned.ts';
import { isBetweenPods } from './adoption.ts';
import { untilNextDeadline } from './deadlines.ts';
import { recordDoubledIdentity, recordTransition, recordUnanswered } from './events.ts';
import { type VMFacts, gatherFacts, lostPlacement } from './facts.ts';
import type { VMMetrics } from './metrics.ts';
import { type Lookups, observe, type ObservedVM, type ResizeRefusal, type VMSources } from './observe.ts';
import { PENDING_PHASES } from './phase.ts';
import { standingRefusal } from './size.ts';
import { summarize } from './status.ts';
import { needsPod, stepsFor, type VMWrite } from './steps.ts';
import { VM_NAMING, VMWriter } from './writes.ts';
import { readRegistryCredentials, REGISTRIES_CONFIG_MAP } from '../../api/v1alpha1/registrycredentials.ts';
import { VM_FINALIZER } from '../../api/v1alpha1/names.ts';
import { CONFIG_MAPS } from '../../kube/core.ts';
import { IMAGES, ISOS, VM_CONFIGS } from '../../api/v1alpha1/resources.ts';
import { TIMEOUT } from '../podbacked/pod.ts';
import { isUnresolved, resolve } from './resolve.ts';

export interface VMControllerOptions
  extends VMSources,
    Pick<PodBackedOptions<VM>, 'consistency' | 'recorder'> {
  readonly metrics: VMMetrics;
}

const VM_KIND: PodBackedKind<VM, ObservedVM, VMFacts, VMWrite> = {
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

export class VMReconciler extends PodBackedReconciler<VM, ObservedVM, VMFacts, VMWrite> {
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

  protected override async observe(vm: VM): Promise<ObservedVM | undefined> {
    const key = keyOf(vm);
    const known = { ...(await observe(this.#options, vm)), resizeRefused: this.#resizeRefused.get(key) };
    if (standingRefusal(known) === undefined) {
      this.#resizeRefused.delete(key);
    }
    return mayBeOutdated(known) && !(await this.#writer.isCurrent(vm)) ? undefined : known;
  }

  protected override async confirm(known: ObservedVM): Promise<ObservedVM> {
    if (isDeploying(known)) {
      return await readLive(this.#reads, known);
    }
    return isOverdue(known) ? (await this.#writer.readPod(known)).observed : known;
  }

  protected override tellWrite(observed: ObservedVM, write: VMWrite): void {
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

  protected override tellStatus(observed: ObservedVM, status: VMStatus): void {
    const { vm, now } = observed;
    const { metrics, recorder } = this.#options;
    metrics.observe(vm, vm.status, status, now);
    recordTransition(recorder, vm, status, lostPlacement(observed, status));
  }

  #tellResize({ vm, resizeRefused }: ObservedVM): void {
    if (resizeRefused === undefined) {
      this.#resizeRefused.delete(keyOf(vm));
    } else {
      this.#resizeRefused.set(keyOf(vm), resizeRefused);
    }
  }

  #tellPod({ vm, pod }: ObservedVM, mistakes: readonly string[]): void {
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

/** Returns true if, according to the caches, this reconcile will create the VM's Pod. */
function isDeploying(observed: ObservedVM): boolean {
  const { vm, nameTakenBy } = observed;
  return (
    vm.metadata.deletionTimestamp === undefined &&
    nameTakenBy === undefined &&
    needsPod(observed, gatherFacts(observed)) &&
    !isUnresolved(resolve(observed))
  );
}

/**
 * Returns true if this reconcile will create the VM's Pod, and no earlier request of the reconcile shows that the VM in the cache is
 * current. The patch that adds the finalizer of a new VM shows this, because it fails if the VM has changed.
 */
function mayBeOutdated(observed: ObservedVM): boolean {
  return observed.vm.metadata.finalizers?.includes(VM_FINALIZER) === true && isDeploying(observed);
}

/**
 * Returns true if, according to the caches, the time limit of the VM's deployment is over. The VM then fails permanently and loses its Pod.
 * After an outage of the API server, the cache can lack the report that the machine runs.
 */
function isOverdue(observed: ObservedVM): boolean {
  const { vm, pod } = observed;
  const isPending = pod !== undefined && vm.status?.firstRunningTime === undefined;
  return isPending && vm.status?.failure === undefined && gatherFacts(observed).failure?.reason === TIMEOUT;
}

interface Question {
  readonly resource: Resource<KubeObject>;
  readonly namespace: string;
  readonly name: string;
}

/**
 * Returns the observed state with the current VMConfig, Image and ISO of the VM from the API server. Each object takes one GET, and a
 * second one in the default namespace if the VM's namespace does not contain the object. The credentials take one GET if an image comes
 * from a registry. VMs that are deployed at the same time share their GETs.
 *
 * @throws ApiError when a request fails
 */
async function readLive(reads: SharedReads, observed: ObservedVM): Promise<ObservedVM> {
  const answers = new Map<string, KubeObject | undefined>();
  for (;;) {
    const open: Question[] = [];
    const live = { ...observed, lookups: lookupsOf(answers, open, observed) };
    resolve(live);
    // Only the first missing object is read now, because its content can decide which other objects are needed.
    const [question] = open;
    if (question === undefined) {
      return live;
    }
    const { resource, namespace, name } = question;
    answers.set(questionKey(question), await reads.get(resource, { namespace, name }));
  }
}

/**
 * Returns lookups that find objects in the earlier responses of the API server. A lookup of an object that was not read yet adds this
 * object to `open`, and treats it as missing for now.
 */
function lookupsOf(
  answers: ReadonlyMap<string, KubeObject | undefined>,
  open: Question[],
  { vm, config }: ObservedVM,
): Lookups {
  const ask = <T extends KubeObject>(
    resource: Resource<T>,
    namespace: string,
    name: string,
  ): T | undefined => {
    const question = { resource, namespace, name };
    if (!answers.has(questionKey(question))) {
      open.push(question);
    }
    return answers.get(questionKey(question)) as T | undefined;
  };
  const { namespace = '' } = vm.metadata;
  const fallback = config.namespaces.default;
  return {
    vmConfig: (name, from) => ask(VM_CONFIGS, from, name),
    image: (name) => ask(IMAGES, namespace, name) ?? ask(IMAGES, fallback, name),
    iso: (name) => ask(ISOS, namespace, name) ?? ask(ISOS, fallback, name),
    credentials: () => readRegistryCredentials(ask(CONFIG_MAPS, namespace, REGISTRIES_CONFIG_MAP)?.data),
  };
}

function questionKey({ resource, namespace, name }: Question): string {
  return `${resource.plural}/${namespace}/${name}`;
}
