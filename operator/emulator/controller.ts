/** Reconciles Emulators. The order of a reconcile is in podbacked/reconciler.ts, and the only step is in plan.ts. */
import { type Emulator, type EmulatorStatus, emulatorStatusSchema } from '../../api/v1alpha1/emulator.ts';
import { boundStatus } from '../../api/v1alpha1/status.ts';
import { API_VERSION, EMULATOR_UID_LABEL, VM_FINALIZER } from '../../api/v1alpha1/names.ts';
import { timestamp } from '../../base/time.ts';
import type { Cache } from '../../kube/cache.ts';
import type { Controller } from '../../kube/controller.ts';
import type { ConfigMap, Pod } from '../../kube/core.ts';
import type { Informer } from '../../kube/informer.ts';
import { keyOf, type KubeObject, refOf } from '../../kube/objects.ts';
import { hostStateChanged, PODS_BY_NODE } from '../host/observe.ts';
import { onHostChange } from '../host/power.ts';
import type { PodBackedKind, Naming } from '../podbacked/kind.ts';
import { type PodBackedOptions, PodBackedReconciler } from '../podbacked/reconciler.ts';
import { DEPLOYMENT, recordDeletion, recordTransition, summarize } from './status.ts';
import { type EmulatorFacts, gatherFacts, isOverdue, untilNextDeadline } from './facts.ts';
import {
  emulatorKeyOf,
  observe,
  type ObservedEmulator,
  podKeyOf,
  type EmulatorSources,
  withCurrentVM,
} from './observe.ts';
import { ownerOf, systemImagesChanged } from './pairing.ts';
import { type EmulatorBlocked, endsWithVM, nextStep, type EmulatorWrite } from './plan.ts';
import { EMULATORS } from '../../api/v1alpha1/resources.ts';
import { unlessRefused } from '../objects/refusals.ts';
import { type Executed, type PodBackedSources, PodBackedWriter } from '../podbacked/writer.ts';
import { buildPod } from './pod.ts';

/** How Emulators and their Pods are named. */
const EMULATOR_NAMING: Naming<Emulator, ObservedEmulator> = {
  resource: EMULATORS,
  uidLabel: EMULATOR_UID_LABEL,
  podKeyOf,
  objectOf: ({ emulator }) => emulator,
  nameTaken: (_, { metadata: { name } }) =>
    `Another Pod has the name ${name}, which the Pod of the Emulator must have`,
};

class EmulatorWriter extends PodBackedWriter<Emulator, ObservedEmulator, EmulatorWrite> {
  constructor(sources: PodBackedSources<Emulator>) {
    super(sources, EMULATOR_NAMING);
  }

  override async execute(
    observed: ObservedEmulator,
    write: EmulatorWrite,
  ): Promise<Executed<ObservedEmulator>> {
    return write.kind === 'createPod'
      ? await this.unlessBlocked(observed, this.#createPod(observed, write.host))
      : await unlessRefused(observed, this.#change(observed, write));
  }

  async #change(
    observed: ObservedEmulator,
    write: Exclude<EmulatorWrite, { kind: 'createPod' }>,
  ): Promise<ObservedEmulator> {
    const { emulator } = observed;
    switch (write.kind) {
      case 'adopt':
        return await this.#adopt(observed);
      case 'deletePod':
        await this.deletePod(observed, write.force ? 0 : undefined);
        return observed;
      case 'deleteEmulator':
        await this.objects.delete(emulator);
        return observed;
      case 'removeFinalizer':
      default:
        await this.objects.setFinalizer(keyOf(emulator), emulator, VM_FINALIZER, false);
        return observed;
    }
  }

  async #createPod(observed: ObservedEmulator, host: string): Promise<Executed<ObservedEmulator>> {
    const { emulator, vm, vmPod, config } = observed;
    return vm === undefined
      ? { observed }
      : await this.createPod(observed, buildPod({ emulator, vm, vmPod, host, config }));
  }

  /**
   * Makes the VM the owner of the Emulator. The garbage collector then deletes the Emulator together with this VM. A later VM of the same
   * name has another uid, so it does not affect the Emulator.
   */
  async #adopt(observed: ObservedEmulator): Promise<ObservedEmulator> {
    const { emulator, vm } = observed;
    const { finalizers = [], ownerReferences = [] } = emulator.metadata;
    const owner = {
      apiVersion: API_VERSION,
      kind: 'VM',
      name: emulator.spec.vmName,
      uid: vm?.metadata.uid ?? '',
    };
    const owners =
      ownerOf(emulator) === undefined
        ? [...ownerReferences, { ...owner, blockOwnerDeletion: true }]
        : ownerReferences;
    const metadata = {
      finalizers: [...finalizers.filter((name) => name !== VM_FINALIZER), VM_FINALIZER],
      ownerReferences: owners,
    };
    const saved = await this.objects.patch(keyOf(emulator), emulator, { metadata });
    return { ...observed, emulator: saved ?? emulator };
  }
}

/**
 * Reasons why a Pod could not be created: a quota, for example, or another Pod of the same name. With one of these reasons, the operator
 * tries again later. With any other reason, a watch shows when the operator can try again.
 */
const RECHECKED: ReadonlySet<string> = new Set<EmulatorBlocked['reason']>(['PodRefused', 'PodNameTaken']);

/** Index of Emulators by the key of their VM. */
export const EMULATORS_BY_VM = 'vm';

export interface EmulatorControllerOptions
  extends EmulatorSources,
    Pick<PodBackedOptions<Emulator>, 'consistency' | 'recorder'> {}

const EMULATOR_KIND: PodBackedKind<Emulator, ObservedEmulator, EmulatorFacts, EmulatorWrite> = {
  ...EMULATOR_NAMING,
  substitute: goneEmulator,
  gatherFacts,
  stepsFor: () => [nextStep],
  summarize: ({ observed, blocked }) => boundStatus(emulatorStatusSchema, summarize(observed, blocked)),
  deployment: DEPLOYMENT,
  untilNextDeadline,
  isRechecked: ({ reason }) => RECHECKED.has(reason),
};

export class EmulatorReconciler extends PodBackedReconciler<
  Emulator,
  ObservedEmulator,
  EmulatorFacts,
  EmulatorWrite
> {
  readonly #options: EmulatorControllerOptions;
  readonly #writer: EmulatorWriter;

  constructor(options: EmulatorControllerOptions) {
    const sources = { ...options, objects: options.emulators, objectPods: options.emulatorPods };
    const writer = new EmulatorWriter(sources);
    super(sources, EMULATOR_KIND, writer);
    this.#options = options;
    this.#writer = writer;
  }

  protected override async observe(emulator: Emulator): Promise<ObservedEmulator> {
    return await observe(this.#options, emulator);
  }

  /**
   * Replaces the parts of the observed state because of which this reconcile would end the emulator. An emulator that ends loses its data,
   * and a cache can lag, for example after an outage of the API server or in a new leader.
   */
  protected override async confirm(known: ObservedEmulator): Promise<ObservedEmulator> {
    const { observed } = isLate(known) ? await this.#writer.readPod(known) : { observed: known };
    return endsWithVM(observed) ? await withCurrentVM(this.#options, observed) : observed;
  }

  protected override tellWrite({ emulator }: ObservedEmulator, { kind }: EmulatorWrite): void {
    if (kind === 'deleteEmulator') {
      recordDeletion(this.#options.recorder, emulator);
    }
  }

  protected override tellStatus({ emulator }: ObservedEmulator, status: EmulatorStatus): void {
    recordTransition(this.#options.recorder, emulator, status);
  }
}

/** Returns the substitute for an Emulator that no longer exists. Its Pod does not tell the Emulator's name in a field of its own. */
function goneEmulator(pod: Pod, uid: string, now: number): Emulator {
  const { namespace = '', name } = refOf(emulatorKeyOf(keyOf(pod)));
  return {
    apiVersion: API_VERSION,
    kind: 'Emulator',
    metadata: { namespace, name, uid, deletionTimestamp: timestamp(now) },
    spec: { vmName: '' },
  };
}

/** Returns true if, according to the caches, this reconcile ends an emulator that was not Running in time. */
function isLate(observed: ObservedEmulator): boolean {
  const { emulator, pod } = observed;
  const isEnding = emulator.status?.failure !== undefined || pod?.metadata.deletionTimestamp !== undefined;
  return !isEnding && isOverdue(observed);
}

/** Enqueues an Emulator when it, its Pod, its VM, the VM's Pod, their host or its record has changed. */
export function enqueueEmulators(
  controller: Controller,
  sources: EmulatorSources & { readonly recordsMap: Informer<ConfigMap> },
): void {
  const { emulators, emulatorPods, vms, pods } = sources;
  const ofVM = (vmKey: string) =>
    emulators.cache
      .byIndex(EMULATORS_BY_VM, vmKey)
      .forEach((emulator) => controller.enqueue(keyOf(emulator)));
  emulators.cache.onChange(({ object }) => controller.enqueue(keyOf(object)));
  emulatorPods.cache.onChange(({ object }) =>
    controller.enqueue(emulatorKeyOf(keyOf(object)), { urgent: true }),
  );
  vms.cache.onChange(({ object }) => ofVM(keyOf(object)));
  // The VM's Pod is watched in addition to the VM, because only the Pod reports every stop of the machine. The VM's status can miss a short
  // stop. A VM and its Pod have the same key, so the key of the Pod finds the Emulators of the VM.
  pods.cache.onChange(({ object }) => ofVM(keyOf(object)));
  const onHost = (name: string): void => {
    onNode(pods.cache, name).forEach((pod) => ofVM(keyOf(pod)));
    onNode(emulatorPods.cache, name).forEach((pod) => controller.enqueue(emulatorKeyOf(keyOf(pod))));
  };
  onHostChange(
    sources,
    onHost,
    (before, after) => hostStateChanged(before, after) || systemImagesChanged(before, after),
  );
}

function onNode<T extends KubeObject>(cache: Cache<T>, node: string): readonly Readonly<T>[] {
  return cache.byIndex(PODS_BY_NODE, node);
}
