/** Base images of this host: what machines are cloned from. */
import type { MachineImageSource } from '../../api/v1alpha1/machine.ts';

export type ImageFormat = 'Auto' | 'Raw' | 'QCOW2';
export type DiskFormat = 'qcow2' | 'raw';

export interface BaseImage {
  /** Never written to while it is in use. */
  path: string;
  /** `sha256:<hex>` of the file. */
  digest: string;
  format: DiskFormat;
  virtualSizeBytes: number;
}

/** A source that something lies behind; an empty disk has no base image. */
export type BaseImageSource = Exclude<MachineImageSource, { type: 'empty' }>;

export interface EnsureOptions {
  /** What the Image says its format is; Auto: by its content. */
  format?: ImageFormat;
  /** 0–100, of the bytes to fetch. */
  onProgress: (percent: number) => void;
  signal: AbortSignal;
}

export interface ImageStore {
  /** The image of a source, fetched once however many ask. Throws {@link ImageError}. */
  ensure(source: BaseImageSource, options: EnsureOptions): Promise<BaseImage>;
  /** What is in the store, for `Node.status.images`. */
  images(): { names: string[]; sizeBytes: number }[];
  /** Removes what no machine uses and nobody asked for lately; `inUse` holds {@link BaseImage.path}s. Shared files are never touched. */
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
