/** What differs between the guests' architectures. */
import { access } from 'node:fs/promises';
import { codeOf } from '../../../base/errors.ts';

export type Architecture = 'amd64' | 'arm64';

export interface Firmware {
  code: string;
  /** Copied for each machine, which writes to its own. */
  variables: string;
}

/** What this host offers for one architecture; found once per boot by hostplatforms.ts. */
export interface Platform {
  architecture: Architecture;
  binary: string;
  /** The newest versioned type, such as `pc-q35-7.2`. */
  machineType: string;
  accelerator: 'kvm' | 'hvf' | 'tcg';
  /** UEFI; absent for amd64, which starts by the BIOS that QEMU brings. */
  firmware: Firmware | undefined;
}

export const BINARIES: Record<Architecture, string> = {
  amd64: 'qemu-system-x86_64',
  arm64: 'qemu-system-aarch64',
};

/** Versioned machine types; the unversioned alias would change under a machine at an upgrade of QEMU. */
export const MACHINE_TYPE_PATTERNS: Record<Architecture, RegExp> = {
  amd64: /^(pc-q35-(\d+)\.(\d+)) /,
  arm64: /^(virt-(\d+)\.(\d+)) /,
};

/** Where distributions and Homebrew put the UEFI firmware for ARM machines. */
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
    if ((await readable(firmware.code)) && (await readable(firmware.variables))) {
      return firmware;
    }
  }
  return undefined;
}

/** All that the processor offers; for emulated ARM a real processor, since QEMU's own "max" is far slower. */
export function cpuModel(platform: Pick<Platform, 'architecture' | 'accelerator'>): string {
  if (platform.accelerator !== 'tcg') {
    return 'host';
  }
  return platform.architecture === 'amd64' ? 'max' : 'cortex-a72';
}

async function readable(path: string): Promise<boolean> {
  try {
    await access(path);
    return true;
  } catch (error) {
    if (codeOf(error) !== undefined) {
      return false;
    }
    throw error;
  }
}
