/** The terms in which disks are spoken of: their formats, the base that machines are cloned from, and why a disk is refused. */

export type DiskFormat = 'qcow2' | 'raw';

/** A disk that machines are cloned from. */
export interface BaseImage {
  /** Never written to while it is in use. */
  path: string;
  /** `sha256:<hex>`: of the manifest of a registry's image, else of the file. */
  digest: string;
  format: DiskFormat;
  virtualSizeBytes: number;
}

/** The content of a disk or of an archive cannot be used. */
export class DiskError extends Error {
  override readonly name = 'DiskError';
  /** `invalid`: the content is broken or refused; `unsupported`: this host lacks the program that reads it. */
  readonly kind: 'invalid' | 'unsupported';

  constructor(kind: DiskError['kind'], message: string, options?: ErrorOptions) {
    super(message, options);
    this.kind = kind;
  }
}
