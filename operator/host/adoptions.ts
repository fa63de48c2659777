/**
 * Keeps the Pods that continue machines. A Pod that was deleted by force must be gone before its successor of the same name can be created.
 * If the operator crashed in between, the content of the Pod would be lost, and with it the machine. So the successor is stored first.
 */
import { ADOPTIONS, VM_UID_LABEL } from '../../api/v1alpha1/names.ts';
import { parseDocument } from '../../api/v1alpha1/machine.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { KubeClient } from '../../kube/client.ts';
import { readData, writeData } from '../../kube/configmapdata.ts';
import type { Pod } from '../../kube/core.ts';
import type { Unsaved } from '../../kube/objects.ts';
import type { OperatorConfig } from '../config/config.ts';

export interface AdoptionsOptions {
  readonly client: KubeClient;
  readonly config: Pick<OperatorConfig, 'namespaces'>;
}

export class Adoptions {
  readonly #options: AdoptionsOptions;

  constructor(options: AdoptionsOptions) {
    this.#options = options;
  }

  /** Returns the stored successor of the VM's Pod. The result is undefined if there is none. @throws ApiError */
  async of({ metadata: { uid = '' } }: VM): Promise<Unsaved<Pod> | undefined> {
    const text = (await readData(this.#options.client, this.#ref()))[uid];
    const pod = parseDocument(text) as Unsaved<Pod> | undefined;
    return pod?.metadata.labels?.[VM_UID_LABEL] === uid ? pod : undefined;
  }

  /**
   * Stores the successor of the VM's Pod. Several VMs can wait at the same time, as long as their Pods have less than 1 MiB in all.
   * @throws ApiError, for example when the Pods are too large
   */
  async save({ metadata: { uid = '' } }: VM, pod: Unsaved<Pod>): Promise<void> {
    await writeData(this.#options.client, this.#ref(), { [uid]: JSON.stringify(pod) });
  }

  /** Removes the stored Pods of VMs that have their Pod or no longer exist. `uids` are the uids of these VMs. @throws ApiError */
  async forget(uids: readonly string[]): Promise<void> {
    await writeData(this.#options.client, this.#ref(), Object.fromEntries(uids.map((uid) => [uid, null])));
  }

  #ref(): { namespace: string; name: string } {
    return { namespace: this.#options.config.namespaces.system, name: ADOPTIONS };
  }
}
