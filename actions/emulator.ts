/** Deploys an Android emulator beside a running VM: turns the request into an Emulator, and waits until Android has booted. */
import { conditionOf } from '../api/http/conditions.ts';
import type { EmulatorRequest } from '../api/http/emulator.ts';
import type { Emulator } from '../api/v1alpha1/emulator.ts';
import { EMULATOR_DEFAULTS } from '../api/v1alpha1/fields.ts';
import type { Reason } from '../api/v1alpha1/reasons.ts';
import { EMULATORS } from '../api/v1alpha1/resources.ts';
import type { VM } from '../api/v1alpha1/vm.ts';
import type { KubeClient } from '../kube/client.ts';
import { follow } from '../kube/follow.ts';
import type { Transport } from '../kube/transport.ts';
import { ActionError } from './error.ts';

/** Default time limit for the start of an emulator, in minutes. Android boots within two minutes if the system image is on the host. */
const TIMEOUT_MINUTES = 5;

/** Emulator that is about to be created. */
interface UnsavedEmulator {
  metadata: Partial<Emulator['metadata']>;
  spec: Emulator['spec'];
}

/** Returns the time limit for the start of the emulator, in minutes. */
export function timeoutMinutes({ timeout = TIMEOUT_MINUTES }: Pick<EmulatorRequest, 'timeout'>): number {
  return timeout;
}

/** Checks that the VM runs, because an emulator needs a running VM. @throws ActionError when it does not run. */
export function requireRunning({ metadata, status }: VM): void {
  if (status?.phase !== 'Running' || metadata.deletionTimestamp !== undefined) {
    const message = `VM ${metadata.name} is not running. An emulator needs a running VM`;
    throw new ActionError('refused', message);
  }
}

/** Returns the Emulator for the request. The time limit in its `deployTimeoutSeconds` is at least the time for which the request waits. */
export function emulatorOf(request: EmulatorRequest, namespace: string): UnsavedEmulator {
  const { vm, name, platform, device, imageType, cpu, memory } = request;
  const seconds = timeoutMinutes(request) * 60;
  return {
    metadata: { namespace, ...(name === undefined ? { generateName: 'emulator-' } : { name }) },
    spec: {
      vmName: vm,
      platform,
      device,
      imageType,
      cpu,
      memory: memory === undefined ? undefined : `${memory}Mi`,
      deployTimeoutSeconds: seconds > EMULATOR_DEFAULTS.deployTimeoutSeconds ? seconds : undefined,
    },
  };
}

interface Deployment {
  readonly client: KubeClient;
  /** Connections for the watch of the emulator. */
  readonly watches: Transport;
  readonly signal: AbortSignal;
  /** Called with each version of an emulator that does not run yet. */
  readonly onVersion?: (emulator: Emulator) => void;
}

/**
 * Resolves with the emulator when it runs. `latest` receives the last known version of the emulator.
 *
 * @throws ActionError when the emulator fails, or is deleted; ApiError; the signal's reason when the signal aborts.
 */
export async function untilBooted(
  latest: { emulator: Emulator },
  { client, watches, signal, onVersion }: Deployment,
): Promise<Emulator> {
  const from = latest.emulator.metadata;
  for await (const emulator of follow<Emulator>({ client, watches, type: EMULATORS, from, signal })) {
    latest.emulator = emulator;
    if (isBooted(emulator)) {
      return emulator;
    }
    onVersion?.(emulator);
  }
  throw new ActionError('gone', `Emulator ${from.name} was deleted before it ran`);
}

/** Reason for which no host will ever run an emulator beside its VM, because the architecture of a VM never changes. */
const REFUSED: Reason = 'ArchitectureNotAllowed';

/** Reports whether the emulator runs. @throws ActionError when it has failed, or can never run. */
function isBooted({ metadata, status = {} }: Emulator): boolean {
  const { phase, failure } = status;
  const scheduled = conditionOf({ status }, 'Scheduled');
  if (scheduled?.status === 'False' && scheduled.reason === REFUSED) {
    const { reason, message } = scheduled;
    throw new ActionError('failed', message, { causes: [{ reason, message }] });
  }
  if (phase === 'Failed') {
    const { reason = 'Failed', message = `Emulator ${metadata.name} failed` } = failure ?? {};
    throw new ActionError('failed', message, { causes: [{ reason, message }] });
  }
  return phase === 'Running';
}
