/**
 * The identity of guests. The hypervisor of macOS takes the MAC address of a machine from its configuration. A guest with macOS gets its serial
 * number and its hardware UUID from its ECID, which nobody can choose: a machine keeps that of its image, or the program makes a new one. A
 * guest with Linux gets neither.
 */
import type { Machine } from '../../../api/v1alpha1/machine.ts';
import type { IdentityState } from '../driver.ts';
import type { TartState } from './files.ts';

const MAC = 'The guest has the MAC address of its VM';
const FOLLOW = 'Its serial number and hardware UUID follow from';

/** Returns whether a machine that was made from an image needs an ECID of its own. */
export function needsEcid(
  os: TartState['os'],
  { hardwareIdentity }: Pick<Machine, 'hardwareIdentity'>,
): boolean {
  return os === 'darwin' && hardwareIdentity === 'Dynamic';
}

/** Returns how far the guest of the machine has the identity that its VM asks for. */
export function identityState({ os, ecid, hardwareIdentity, serialNumber }: TartState): IdentityState {
  if (os === 'linux') {
    const serial = serialNumber === undefined ? 'a serial number' : `the serial number ${serialNumber}`;
    return {
      ready: false,
      reason: 'IdentityOfHypervisor',
      message: `${MAC}. Its hypervisor sets neither ${serial} nor the hardware UUID of a guest with Linux`,
    };
  }
  if (ecid === undefined) {
    return {
      ready: false,
      reason: 'IdentityOfImage',
      message: `${MAC}. ${FOLLOW} the ECID of the image, so all guests of the image have the same ones`,
    };
  }
  const message = `${MAC}. ${FOLLOW} an ECID that was made for it`;
  return hardwareIdentity === 'Dynamic'
    ? { ready: true, reason: 'IdentityNew', message }
    : {
        ready: false,
        reason: 'IdentityOfHypervisor',
        message: `${message}, so the next VM of this name gets other ones`,
      };
}
