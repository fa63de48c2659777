/** Types for disks: the formats, the image from which machines' disks are cloned, and the error for a refused disk. */

import type { ImageMemory } from '../../api/v1alpha1/task.ts';

export type DiskFormat = 'qcow2' | 'raw';

/** Size of a sector in bytes. The size of every disk is a multiple of this number. */
export const SECTOR_BYTES = 512;
/**
 * Largest accepted size of a disk in bytes. No desktop system needs a disk of this size. The limit exists because the header of an image
 * can claim 2^63 bytes.
 */
export const DISK_LIMIT_BYTES = 64 * 1024 ** 4;

/**
 * Largest accepted size of an image's memory in bytes. Hosts of desktop systems have less. The limit exists because an image can claim 2^53
 * bytes, and no file system has a file of that size.
 */
export const MEMORY_LIMIT_BYTES = 4 * 1024 ** 4;
/**
 * Largest accepted size of the state of a machine's devices in bytes. The state of a screen and of the firmware's flash together has at most
 * some tens of MiB. The limit exists because a hypervisor reads the whole state before the machine runs.
 */
export const STATE_LIMIT_BYTES = 512 * 1024 ** 2;

/** Files with the memory of an image, beside its disk. Nobody writes to them while machines use them. */
export interface MemoryFiles extends ImageMemory {
  /** Path of the file with the guest's memory: `memoryBytes` bytes with holes. */
  ram: string;
  /** Path of the file with the state of the machine's devices, as a migration stream of the hypervisor. */
  state: string;
  /** Whether VMs of several namespaces have asked for the image on this host. */
  isShared?: boolean;
}

/** Names of the files beside the disk of an image in the layout of Tart: the configuration of its machine, and the variables of the firmware. */
export const TART_FILES = { config: 'config.json', variables: 'nvram.bin' } as const;

/** Files of a machine of an Apple host beside its disk: its configuration, and the variables of its firmware. */
export interface MachineFiles {
  config: string;
  variables: string;
}

/** Image from which the agent clones the disks of machines. */
export interface BaseImage {
  /** Absent if the image has only a disk. */
  memory?: MemoryFiles;
  /** True if the image has memory that this host did not fetch, because the image is not from the cluster's own image storage. */
  untrustedMemory?: true;
  /** Path of the disk file. Nobody writes to the file while machines use it. */
  path: string;
  /**
   * Digest in the form `sha256:<hex>`. If the image is from a registry, this is the digest of its manifest. Otherwise it is the digest of
   * the disk file.
   */
  digest: string;
  format: DiskFormat;
  virtualSizeBytes: number;
}

/** Error for a disk or an archive whose content cannot be used. */
export class DiskError extends Error {
  override readonly name = 'DiskError';
  /**
   * Kind of the error. `invalid` means that the content is broken or refused. `unsupported` means that this host lacks the program
   * that reads the content.
   */
  readonly kind: 'invalid' | 'unsupported';

  constructor(kind: DiskError['kind'], message: string, options?: ErrorOptions) {
    super(message, options);
    this.kind = kind;
  }
}
