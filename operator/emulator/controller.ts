/** Says in the status of every Emulator that no host can run it yet, so that nobody waits for it. */
import type { Emulator } from '../../api/v1alpha1/emulator.ts';
import { timestamp } from '../../base/time.ts';
import type { KubeClient } from '../../kube/client.ts';
import type { Consistency } from '../../kube/consistency.ts';
import type { Result } from '../../kube/controller.ts';
import type { Informer } from '../../kube/informer.ts';
import { stampConditions } from '../objects/conditions.ts';
import { mergeDiff } from '../objects/mergepatch.ts';
import { EMULATORS } from '../objects/resources.ts';
import { Writer } from '../objects/writer.ts';

export interface EmulatorControllerOptions {
  readonly client: KubeClient;
  readonly emulators: Informer<Emulator>;
  readonly consistency: Consistency;
  readonly clock: () => number;
}

const REFUSAL = {
  reason: 'KindUnsupported',
  message: 'Android emulators are not supported yet; delete this object',
} as const;

export class EmulatorReconciler {
  readonly #options: EmulatorControllerOptions;
  readonly #objects: Writer<Emulator>;

  constructor(options: EmulatorControllerOptions) {
    const { client, consistency, emulators } = options;
    this.#options = options;
    this.#objects = new Writer({ client, consistency, type: EMULATORS, informer: emulators });
  }

  /** Reconciles one object once. `key` is `namespace/name`. */
  async reconcile(key: string): Promise<Result> {
    const { emulators, consistency, clock } = this.#options;
    const emulator = emulators.cache.get(key);
    if (emulator === undefined) {
      consistency.forget(key);
      return undefined;
    }
    const generation = emulator.metadata.generation ?? 0;
    const conditions = stampConditions(
      [
        { type: 'Ready', status: 'False', ...REFUSAL },
        { type: 'Stalled', status: 'True', ...REFUSAL },
      ],
      emulator.status?.conditions,
      { now: timestamp(clock()), generation },
    );
    const status = { ...emulator.status, observedGeneration: generation, phase: 'Pending', conditions };
    const patch = mergeDiff(emulator.status, status);
    if (patch !== undefined) {
      await this.#objects.patch(key, emulator, { status: patch }, 'status');
    }
    return undefined;
  }
}
