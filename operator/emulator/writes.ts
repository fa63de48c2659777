/** Sends the requests with which the reconcile of an Emulator changes objects. The key of an Emulator is `namespace/name`. */
import type { Emulator } from '../../api/v1alpha1/emulator.ts';
import { API_VERSION, EMULATOR_UID_LABEL, VM_FINALIZER } from '../../api/v1alpha1/names.ts';
import { EMULATORS } from '../../api/v1alpha1/resources.ts';
import { keyOf } from '../../kube/objects.ts';
import { unlessRefused } from '../objects/refusals.ts';
import type { Naming } from '../podbacked/kind.ts';
import { type Executed, type PodBackedSources, PodBackedWriter } from '../podbacked/writer.ts';
import { type Observed, podKeyOf } from './observe.ts';
import { ownerOf } from './pairing.ts';
import type { Write } from './plan.ts';
import { buildPod } from './pod.ts';

/** How Emulators and their Pods are named. */
export const EMULATOR_NAMING: Naming<Emulator, Observed> = {
  resource: EMULATORS,
  uidLabel: EMULATOR_UID_LABEL,
  podKeyOf,
  objectOf: ({ emulator }) => emulator,
  nameTaken: (_, { metadata: { name } }) =>
    `Another Pod has the name ${name}, which the Pod of the Emulator must have`,
};

export class EmulatorWriter extends PodBackedWriter<Emulator, Observed, Write> {
  constructor(sources: PodBackedSources<Emulator>) {
    super(sources, EMULATOR_NAMING);
  }

  override async execute(observed: Observed, write: Write): Promise<Executed<Observed>> {
    return write.kind === 'createPod'
      ? await this.unlessBlocked(observed, this.#createPod(observed, write.host))
      : await unlessRefused(observed, this.#change(observed, write));
  }

  async #change(observed: Observed, write: Exclude<Write, { kind: 'createPod' }>): Promise<Observed> {
    const { emulator } = observed;
    switch (write.kind) {
      case 'adopt':
        return await this.#adopt(observed);
      case 'deletePod':
        await this.deletePod(observed, write.force);
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

  async #createPod(observed: Observed, host: string): Promise<Executed<Observed>> {
    const { emulator, vm, vmPod, config } = observed;
    return vm === undefined
      ? { observed }
      : await this.createPod(observed, buildPod({ emulator, vm, vmPod, host, config }));
  }

  /**
   * Makes the VM the owner of the Emulator. The garbage collector then deletes the Emulator together with this VM. A later VM of the same
   * name has another uid, so it does not affect the Emulator.
   */
  async #adopt(observed: Observed): Promise<Observed> {
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
