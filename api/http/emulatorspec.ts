/**
 * Turns a request for an emulator into an Emulator, and determines how far its start has progressed. The HTTP API and the `berth` command
 * use this code.
 */
import type { Emulator } from '../v1alpha1/emulator.ts';
import { EMULATOR_DEFAULTS } from '../v1alpha1/emulatordefaults.ts';
import type { VM } from '../v1alpha1/vm.ts';
import type { EmulatorRequest } from './emulator.ts';

/** Default time limit for the start of an emulator, in minutes. Android boots within two minutes if the system image is on the host. */
const TIMEOUT_MINUTES = 5;

/** Emulator that is about to be created. */
interface UnsavedEmulator {
  metadata: Partial<Emulator['metadata']>;
  spec: Emulator['spec'];
}

/** Failure that ended the start of an emulator. The emulator does not run. */
export interface Failed {
  readonly reason: string;
  readonly message: string;
}

/** Returns the time limit for the start of the emulator, in minutes. */
export function timeoutMinutes({ timeout = TIMEOUT_MINUTES }: Pick<EmulatorRequest, 'timeout'>): number {
  return timeout;
}

/** Returns a message if the VM does not run, because an emulator needs a running VM. The result is undefined if the VM runs. */
export function notRunning({ metadata, status }: VM): string | undefined {
  return status?.phase === 'Running' && metadata.deletionTimestamp === undefined
    ? undefined
    : `VM ${metadata.name} is not running. An emulator needs a running VM`;
}

/** Returns the Emulator for the request. The time limit in its `deployTimeoutSeconds` is at least the time for which the request waits. */
export function emulatorOf(request: EmulatorRequest, namespace: string): UnsavedEmulator {
  const { vm, name, platform, device, deviceProfile, imageType, cpu, memory } = request;
  const seconds = timeoutMinutes(request) * 60;
  return {
    metadata: { namespace, ...(name === undefined ? { generateName: 'emulator-' } : { name }) },
    spec: {
      vmName: vm,
      platform,
      device: device ?? deviceProfile,
      imageType,
      cpu,
      memory: memory === undefined ? undefined : `${memory}Mi`,
      deployTimeoutSeconds: seconds > EMULATOR_DEFAULTS.deployTimeoutSeconds ? seconds : undefined,
    },
  };
}

/** Returns `done` when the emulator runs, `waiting` before that, or the failure. */
export function emulatorState({ metadata, status = {} }: Emulator): 'done' | 'waiting' | Failed {
  const { phase, failure } = status;
  if (phase === 'Failed') {
    const { reason = 'Failed', message = `Emulator ${metadata.name} failed` } = failure ?? {};
    return { reason, message };
  }
  return phase === 'Running' ? 'done' : 'waiting';
}
