/** Types of disks: their formats, the base that machines are cloned from, and the error of a refused disk. */

export type DiskFormat = 'qcow2' | 'raw';

/** Disks have whole sectors. */
export const SECTOR_BYTES = 512;
/** Limit of the size of a disk. It is far above any disk of a desktop system; an image may claim 2^63 bytes. */
export const DISK_LIMIT_BYTES = 64 * 1024 ** 4;

/** A disk that machines are cloned from. */
export interface BaseImage {
  /** Path of the file, which is never written to while it is in use. */
  path: string;
  /** Digest `sha256:<hex>`: of the manifest if the image is from a registry, otherwise of the file. */
  digest: string;
  format: DiskFormat;
  virtualSizeBytes: number;
}

/** Error for content of a disk or an archive that cannot be used. */
export class DiskError extends Error {
  override readonly name = 'DiskError';
  /**
   * Kind of the error. `invalid` means that the content is broken or refused; `unsupported` means that this host lacks the
   * program that reads it.
   */
  readonly kind: 'invalid' | 'unsupported';

  constructor(kind: DiskError['kind'], message: string, options?: ErrorOptions) {
    super(message, options);
    this.kind = kind;
  }
}
