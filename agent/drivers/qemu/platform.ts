/** Contains the differences between guest architectures: QEMU's program, machine type, firmware and processor model. */
import { stat } from 'node:fs/promises';
import { isOfSystem, undefinedIf } from '../../../base/errors.ts';

export type Architecture = 'amd64' | 'arm64';

export interface Firmware {
  code: string;
  /** Path of the template of the firmware's variables. Each machine has its own copy of this file, and writes to the copy. */
  variables: string;
}

/** Capabilities of this host for one architecture. The code in hostplatforms.ts finds these capabilities. */
export interface Platform {
  architecture: Architecture;
  binary: string;
  /** Newest versioned machine type, for example `pc-q35-7.2`. */
  machineType: string;
  accelerator: 'kvm' | 'hvf' | 'tcg';
  /** UEFI firmware; absent for amd64, which starts with the BIOS of QEMU. */
  firmware: Firmware | undefined;
  display: DisplaySupport;
  /** Whether QEMU changes to another user by its option `-run-with`. Earlier versions of QEMU have the option `-runas` instead. */
  runWith: boolean;
}

/** Screen features of this host's QEMU. */
export interface DisplaySupport {
  /** Whether QEMU has the graphics card `virtio-vga`. QEMU can set the DPI of this card, but not of the older card `VGA`. */
  virtioVga: boolean;
  /** Whether QEMU has a D-Bus display, over which the agent sets the DPI. */
  dbus: boolean;
  /** Largest size in pixels that VNC shows. */
  vncMaximum: { width: number; height: number };
}

export const BINARIES: Record<Architecture, string> = {
  amd64: 'qemu-system-x86_64',
  arm64: 'qemu-system-aarch64',
};

/**
 * Patterns that match only those machine types of QEMU that have a version. If a machine had a type without a version (an alias), an
 * upgrade of QEMU would change the machine's hardware.
 */
export const MACHINE_TYPE_PATTERNS: Record<Architecture, RegExp> = {
  amd64: /^(pc-q35-(\d+)\.(\d+)) /,
  arm64: /^(virt-(\d+)\.(\d+)) /,
};

/** Paths at which distributions and Homebrew install the UEFI firmware for ARM machines. */
const ARM_FIRMWARE: Firmware[] = [
  { code: '/usr/share/AAVMF/AAVMF_CODE.fd', variables: '/usr/share/AAVMF/AAVMF_VARS.fd' },
  {
    code: '/usr/share/edk2/aarch64/QEMU_EFI-pflash.raw',
    variables: '/usr/share/edk2/aarch64/vars-template-pflash.raw',
  },
  {
    code: '/opt/homebrew/share/qemu/edk2-aarch64-code.fd',
    variables: '/opt/homebrew/share/qemu/edk2-arm-vars.fd',
  },
  {
    code: '/usr/local/share/qemu/edk2-aarch64-code.fd',
    variables: '/usr/local/share/qemu/edk2-arm-vars.fd',
  },
];

export async function findArmFirmware(): Promise<Firmware | undefined> {
  for (const firmware of ARM_FIRMWARE) {
    if ((await exists(firmware.code)) && (await exists(firmware.variables))) {
      return firmware;
    }
  }
  return undefined;
}

/**
 * Returns QEMU's processor model for a guest, with all features that the accelerator offers. Emulated ARM guests get the model of a
 * real processor, because QEMU's own model `max` is far slower.
 */
export function cpuModel(platform: Pick<Platform, 'architecture' | 'accelerator'>): string {
  if (platform.accelerator !== 'tcg') {
    return 'host';
  }
  return platform.architecture === 'amd64' ? 'max' : 'cortex-a72';
}

async function exists(path: string): Promise<boolean> {
  return (await undefinedIf(isOfSystem, stat(path))) !== undefined;
}
