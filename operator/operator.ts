/** Starts the operator. */
import type { Logger } from 'pino';
import { LEADER_LABEL } from '../api/v1alpha1/names.ts';
import type { SaidReason } from '../api/v1alpha1/reasons.ts';
import { LedProgram } from '../kube/ledprogram.ts';
import type { Running } from '../kube/program.ts';
import type { OperatorConfig } from './config/config.ts';
import { createControllers } from './index.ts';

export interface OperatorStart {
  readonly config: OperatorConfig;
  readonly kubeconfigPath: string | undefined;
  /** Name of the Pod of this process; undefined outside of a cluster. */
  readonly podName: string | undefined;
  readonly logger: Logger;
  /** Function that is called when this process is no longer the leader. The process must then end at once. */
  readonly onLost: () => void;
}

/** Resolves when the servers of the operator listen. At that time, its caches can still be empty. */
export async function startOperator(start: OperatorStart): Promise<Running> {
  const { config, podName, ...others } = start;
  return await LedProgram.start<SaidReason>({
    ...others,
    name: 'berth-operator',
    reportingController: 'berth.dev/operator',
    config,
    // The Service of the metrics selects only the Pod of the leader, because only the leader exports the numbers of VMs.
    labelled: podName === undefined ? undefined : { pod: podName, label: LEADER_LABEL },
    createParts: (tools) => createControllers({ ...tools, config, clock: Date.now }),
  });
}
