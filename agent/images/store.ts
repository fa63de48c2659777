/** Base images of this host: what machines are cloned from. */
import type { MachineImageSource } from '../../api/v1alpha1/machine.ts';

export type DiskFormat = 'qcow2' | 'raw';

export interface BaseImage {
  /** Never written to while it is in use. */
  path: string;
  /** `sha256:<hex>` of the file. */
  digest: string;
  format: DiskFormat;
  virtualSizeBytes: number;
}

export interface EnsureOptions {
  /** 0–100, of the bytes to fetch. */
  onProgress: (percent: number) => void;
  signal: AbortSignal;
}

export interface ImageStore {
  /** The image of a source, fetched once however many ask. Throws {@link ImageError}. */
  ensure(source: MachineImageSource, options: EnsureOptions): Promise<BaseImage>;
  /** What is in the store, for `Node.status.images`. */
  images(): { names: string[]; sizeBytes: number }[];
  /** Removes what no machine uses; `inUse` holds {@link BaseImage.path}s. */
  collect(inUse: Set<string>): Promise<void>;
}

export type ImageErrorReason =
  | 'ImageSourceUnsupported'
  | 'ImageNotFound'
  | 'ImageInvalid'
  | 'DigestMismatch'
  | 'ImageFetchFailed'
  | 'DiskFull';

export class ImageError extends Error {
  override readonly name = 'ImageError';
  readonly reason: ImageErrorReason;

  constructor(reason: ImageErrorReason, message: string, options?: ErrorOptions) {
    super(message, options);
    this.reason = reason;
  }
}
