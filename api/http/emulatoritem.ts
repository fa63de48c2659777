/** Turns an Emulator into the item that the HTTP API and the `berth` command show. */
import type { Emulator } from '../v1alpha1/emulator.ts';
import { EMULATOR_DEFAULTS } from '../v1alpha1/fields.ts';
import { notReadyMessage } from './conditions.ts';
import type { EmulatorItem } from './emulator.ts';

export function emulatorItem({ metadata, spec, status = {} }: Emulator): EmulatorItem {
  const { platform = EMULATOR_DEFAULTS.platform, device = EMULATOR_DEFAULTS.device } = spec;
  const phase = metadata.deletionTimestamp === undefined ? phaseOf(status.phase) : 'Terminating';
  return {
    name: metadata.name,
    vm: spec.vmName,
    node: status.nodeName,
    status: phase,
    phase,
    platform,
    imageType: spec.imageType ?? EMULATOR_DEFAULTS.imageType,
    deviceProfile: device,
    ...(phase === 'Running' ? relayOf(status) : {}),
    errorMessage: status.failure?.message,
    message: phase === 'Pending' ? notReadyMessage({ status }) : undefined,
  };
}

function relayOf({ adb }: NonNullable<Emulator['status']>): Partial<EmulatorItem> {
  const [relayIp, relayPort] = [adb?.address, adb?.port];
  return { adbRelayIP: relayIp, adbRelayPort: relayPort, relayIp, relayPort };
}

/**
 * Returns the status that clients get for a phase. Clients wait while the status is Pending, and use the emulator while the status is
 * Running.
 */
function phaseOf(phase = 'Pending'): EmulatorItem['phase'] {
  switch (phase) {
    case 'Running':
    case 'Failed':
    case 'Stopped':
    case 'Terminating':
      return phase;
    default:
      return 'Pending';
  }
}
