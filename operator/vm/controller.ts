/**
 * Reconciles VMs. The order of a reconcile is in podbacked/reconciler.ts, and the steps are in steps.ts. The objects of a deployment
 * (VMConfig, Image, ISO, credentials for registries) are read from the API server: the Pod of a VM is created only once, so from a cache
 * that lags its machine would never get their latest changes. The VM and its Pod have the same key, `namespace/name`.
 */

import { boundStatus } from '../../api/v1alpha1/status.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { type VMStatus, vmStatusSchema } from '../../api/v1alpha1/vmstatus.ts';
import { SharedReads } from '../../kube/client.ts';
import { keyOf, type KubeObject, refOf, type Resource, type Unsaved } from '../../kube/objects.ts';
import { ignoredEntries } from '../objects/registries.ts';
import type { Naming, PodBackedKind } from '../podbacked/kind.ts';
import { type PodBackedOptions, PodBackedReconciler } from '../podbacked/reconciler.ts';
import { goneVM, macAddressOf, NODES_BY_GIVEN_UP } from './abandoned.ts';
import { isBetweenPods, successorOf } from './adoption.ts';
import { untilNextDeadline } from './deadlines.ts';
import { recordDoubledIdentity, recordNotRenewed, recordTransition } from './events.ts';
import { gatherFacts, lostPlacement, type VMFacts } from './facts.ts';
import type { VMMetrics } from './metrics.ts';
import {
  type Lookups,
  observe,
  type ObservedVM,
  type ResizeRefusal,
  type Size,
  type VMSources,
} from './observe.ts';
import { PENDING_PHASES } from './phase.ts';
import { refusedAgain, resizedContainers, standingRefusal } from './size.ts';
import { summarize } from './status.ts';
import { needsPod, stepsFor, type VMWrite } from './steps.ts';
import { readRegistryCredentials, REGISTRIES_CONFIG_MAP } from '../../api/v1alpha1/registrycredentials.ts';
import {
  DESIRED_ANNOTATION,
  GIVEN_UP_ANNOTATION,
  POD_FINALIZER,
  VM_FINALIZER,
  VM_UID_LABEL,
} from '../../api/v1alpha1/names.ts';
import { CONFIG_MAPS, NODES, PODS, type Secret, SECRETS } from '../../kube/core.ts';
import { IMAGES, ISOS, VM_CONFIGS, VMS, VM_SNAPSHOTS } from '../../api/v1alpha1/resources.ts';
import { TIMEOUT } from '../podbacked/pod.ts';
import { isUnresolved, resolve } from './resolve.ts';
import { awaitedOn } from '../../api/v1alpha1/machine.ts';
import { undefinedIf } from '../../base/errors.ts';
import { timestamp } from '../../base/time.ts';
import {
  isAlreadyExists,
  isInvalid,
  isNotFound,
  isObjectRefused,
  isWebhookFailure,
  unlessMissing,
} from '../../kube/errors.ts';
import { awaitedPatch } from '../host/plan.ts';
import { FIELD_MANAGER } from '../objects/writer.ts';
import { unlessRefused } from '../objects/refusals.ts';
import { type Executed, type PodBackedSources, PodBackedWriter } from '../podbacked/writer.ts';
import type { Adoptions } from '../host/adoptions.ts';
import { missingSnapshots } from './snapshots.ts';

/** How VMs and their Pods are named. A VM and its Pod have the same name. */
const VM_NAMING: Naming<VM, ObservedVM> = {
  resource: VMS,
  uidLabel: VM_UID_LABEL,
  podKeyOf: (key) => key,
  objectOf: ({ vm }) => vm,
  nameTaken: ({ metadata: { name } }, other) => {
    const owner = other.metadata.ownerReferences?.[0];
    const whose = owner === undefined ? 'a Pod without a controller' : `a Pod of ${owner.kind} ${owner.name}`;
    return `The name of the VM, ${name}, is used by ${whose}`;
  },
};

/** A request that creates an object. The API server can refuse the object, or another object can already have its name. */
type Creation = Extract<VMWrite, { kind: 'createPod' | 'createSecret' }>;

class VMWriter extends PodBackedWriter<VM, ObservedVM, VMWrite> {
  readonly #adoptions: Adoptions;

  constructor(sources: PodBackedSources<VM> & Pick<VMSources, 'adoptions'>) {
    super(sources, VM_NAMING);
    this.#adoptions = sources.adoptions;
  }

  override async execute(observed: ObservedVM, write: VMWrite): Promise<Executed<ObservedVM>> {
    switch (write.kind) {
      case 'createPod':
        return await this.unlessBlocked(observed, this.createPod(observed, write.pod));
      case 'createSecret':
        return await this.unlessBlocked(observed, this.#createSecret(observed, write.secret));
      default:
        return await unlessRefused(observed, this.#change(observed, write));
    }
  }

  async #change(observed: ObservedVM, write: Exclude<VMWrite, Creation>): Promise<ObservedVM> {
    switch (write.kind) {
      case 'addFinalizer':
        return await this.#setFinalizer(observed, true);
      case 'removeFinalizer':
        return await this.#setFinalizer(observed, false);
      case 'resizePod':
        return await this.#resizePod(observed, write.size);
      case 'patchDesired':
        return await this.#patchPod(observed, { annotations: { [DESIRED_ANNOTATION]: write.text } });
      case 'releasePod':
        return await this.#releasePod(observed);
      default:
        await this.#send(observed, write);
        return observed;
    }
  }

  /** Sends a request that changes nothing in the observed state. */
  async #send(observed: ObservedVM, write: Exclude<VMWrite, Creation>): Promise<void> {
    switch (write.kind) {
      case 'deletePod':
        return await this.deletePod(observed, write.graceSeconds);
      case 'rememberGivenUp':
        return await this.#rememberGivenUp(observed, write.macAddresses);
      case 'saveSuccessor':
        return await this.#saveSuccessor(observed);
      case 'awaitPod':
        return await this.#awaitPod(observed);
      default:
        return await this.objects.deleteUnchanged(observed.vm);
    }
  }

  /**
   * Returns true if the VM has not changed since it was read. If it has changed, the next reconcile waits until the cache shows the change.
   * The cache of a new leader can lack changes by the earlier leader, for example the failure of a VM.
   * @throws ApiError when there is no VM
   */
  async isCurrent(vm: VM): Promise<boolean> {
    const key = keyOf(vm);
    const current = await this.client.get(VMS, refOf(key));
    const isSame = current.metadata.resourceVersion === vm.metadata.resourceVersion;
    if (!isSame) {
      this.objects.follow(key, current);
    }
    return isSame;
  }

  async #setFinalizer(observed: ObservedVM, isHeld: boolean): Promise<ObservedVM> {
    const { vm } = observed;
    return { ...observed, vm: (await this.objects.setFinalizer(keyOf(vm), vm, VM_FINALIZER, isHeld)) ?? vm };
  }

  async #createSecret(observed: ObservedVM, secret: Unsaved<Secret>): Promise<Executed<ObservedVM>> {
    const creation = this.client.create(SECRETS, secret, { fieldManager: FIELD_MANAGER });
    await undefinedIf(isAlreadyExists, creation);
    return { observed };
  }

  /**
   * Stores the MAC addresses on the Node. The request fails if the Node has changed since it was read. Without this check, the request
   * could overwrite the address of another machine that was abandoned on the same host.
   */
  async #rememberGivenUp({ node }: ObservedVM, macAddresses: readonly string[]): Promise<void> {
    if (node === undefined) {
      return;
    }
    const { name, uid, resourceVersion } = node.metadata;
    const annotations = { [GIVEN_UP_ANNOTATION]: JSON.stringify(macAddresses) };
    const patch = { metadata: { uid, resourceVersion, annotations } };
    const write = this.client.mergePatch(NODES, { name }, patch, { fieldManager: FIELD_MANAGER });
    // Two errors are ignored, so that the host's VMs can be deleted. First, the Node no longer exists, because somebody fenced the host.
    // Second, the host has filled the annotations of its Node, so the API server refuses another annotation. In both cases no address is
    // stored, so no later Event can warn about a VM with the same address.
    await undefinedIf((error) => isNotFound(error) || isInvalid(error), write);
  }

  /** Stores the next Pod of the machine. The present Pod is read from the API server, because the cache lacks parts of it. */
  async #saveSuccessor({ vm, pod }: ObservedVM): Promise<void> {
    const stored = await unlessMissing(this.client.get(PODS, refOf(keyOf(vm))));
    if (stored !== undefined && stored.metadata.uid === pod?.metadata.uid) {
      await this.#adoptions.save(vm, successorOf(stored));
    }
  }

  /**
   * Lists the VM on its Node as one whose machine gets another Pod, and adds the taint. Both come before the Pod goes, so that the host keeps
   * the machine and the scheduler keeps others away.
   */
  async #awaitPod({ vm, node, now }: ObservedVM): Promise<void> {
    if (node === undefined) {
      return;
    }
    const { name } = node.metadata;
    const added = { [vm.metadata.uid ?? '']: { vm: keyOf(vm), since: timestamp(now) } };
    const patch = awaitedPatch(node, { ...awaitedOn(node), ...added }, now);
    await this.client.mergePatch(NODES, { name }, patch, { fieldManager: FIELD_MANAGER });
  }

  async #releasePod(observed: ObservedVM): Promise<ObservedVM> {
    const { vm, pod } = observed;
    return pod === undefined
      ? observed
      : { ...observed, pod: (await this.pods.setFinalizer(keyOf(vm), pod, POD_FINALIZER, false)) ?? pod };
  }

  async #patchPod(observed: ObservedVM, metadata: object): Promise<ObservedVM> {
    const { vm, pod } = observed;
    return pod === undefined
      ? observed
      : { ...observed, pod: (await this.pods.patch(keyOf(vm), pod, { metadata })) ?? pod };
  }

  /**
   * Requests another size for the Pod. A refusal by a quota or the API server is not an error, but becomes part of the observed state.
   * @throws ApiError when a webhook cannot be called, because then nobody has refused the size
   */
  async #resizePod(observed: ObservedVM, size: Size): Promise<ObservedVM> {
    const { vm, pod } = observed;
    if (pod === undefined) {
      return observed;
    }
    try {
      const change = { spec: { containers: resizedContainers(pod, size) } };
      const saved = await this.pods.patch(keyOf(vm), pod, change, 'resize');
      return saved === undefined ? observed : { ...observed, pod: saved, resizeRefused: undefined };
    } catch (error) {
      if (isObjectRefused(error) && !isWebhookFailure(error)) {
        return { ...observed, resizeRefused: refusedAgain(observed, size, error.message) };
      }
      throw error;
    }
  }
}

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
    const { observed } = isOverdue(known) ? await this.#writer.readPod(known) : { observed: known };
    return await this.#withCurrentSnapshots(observed);
  }

  /**
   * Adds snapshots that the API server has and the cache does not show. Without them, this reconcile would let the host remove their content,
   * and the cache of a new leader can lag.
   */
  async #withCurrentSnapshots(observed: ObservedVM): Promise<ObservedVM> {
    const { namespace = '' } = observed.vm.metadata;
    const found = await Promise.all(
      missingSnapshots(observed).map(async ({ uid, name }) => {
        const snapshot = await unlessMissing(this.#options.client.get(VM_SNAPSHOTS, { namespace, name }));
        return snapshot?.metadata.uid === uid ? [snapshot] : [];
      }),
    );
    return { ...observed, snapshots: [...observed.snapshots, ...found.flat()] };
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
        if (write.aliveUntil !== undefined) {
          metrics.notRenewed(observed.vm);
          recordNotRenewed(recorder, observed.vm, write.aliveUntil);
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
