/** Base images of this host: what machines are cloned from. */
import type { MachineImageSource } from '../../../api/v1alpha1/machine.ts';
import type { Keyring } from '../oci/credentials.ts';

export type ImageFormat = 'Auto' | 'Raw' | 'QCOW2';
export type DiskFormat = 'qcow2' | 'raw';

export interface BaseImage {
  /** Never written to while it is in use. */
  path: string;
  /** `sha256:<hex>`: of the manifest of a registry's image, else of the file. */
  digest: string;
  format: DiskFormat;
  virtualSizeBytes: number;
}

/** A source that something lies behind; an empty disk has no base image. */
export type BaseImageSource = Exclude<MachineImageSource, { type: 'empty' }>;

/** Who needs an image. A machine needs it from before the pull; an ImageCacheEntry until it lets go, also over restarts of the agent. */
export type Holder = `machine/${string}` | `entry/${string}` | `task/${string}`;

export interface EnsureOptions {
  /** What the Image says its format is; Auto: by its content. */
  format?: ImageFormat;
  /** Of an image for several architectures: which; the host's own when absent. */
  architecture?: 'amd64' | 'arm64' | undefined;
  /** `berth.dev/NAMESPACE/NAME` of the Image object: a name beside those that follow from the source. */
  name?: string | undefined;
  /** What opens registries; none: anonymously. */
  keyring?: Keyring | undefined;
  /** Held from the call on, until `release`. */
  holder: Holder;
  /** Look at the registry whether the tag has moved, though an image of that name is here. */
  refresh?: boolean;
  /** 0–100, of the bytes to fetch. */
  onProgress: (percent: number) => void;
  signal: AbortSignal;
}

export interface StoredImage {
  /** As in `Node.status.images`: normalised reference and `repository@digest`, `berth.dev/NAMESPACE/NAME@digest`. */
  names: string[];
  sizeBytes: number;
}

export interface ImageStore {
  /** The image of a source, fetched once however many ask, and checked before its first use. @throws ImageError */
  ensure(source: BaseImageSource, options: EnsureOptions): Promise<BaseImage>;
  /** A machine found at start was made from this file. */
  adopt(holder: Holder, path: string): void;
  /** The holder's clone is made: its file is needed further, but a removal need not wait any more. */
  cloned(holder: Holder): void;
  /** The holder needs nothing any more. What nobody holds stays until its room is needed. */
  release(holder: Holder): void;
  /**
   * Takes what only this cache entry wanted off the host. Waits while a machine is between pull and clone of it; what
   * machines run from loses its names now and its file with the last of them.
   */
  remove(holder: Holder, signal: AbortSignal): Promise<void>;
  /** Removes what nobody holds while less of the disk is free than is to stay so. */
  relieve(): Promise<void>;
  /** Does other work that needs `bytes` in `folder` on this host, within the limits of the store. @throws ImageError `DiskFull` */
  withRoom<T>(
    claim: { folder: string; bytes: number },
    signal: AbortSignal,
    work: (signal: AbortSignal) => Promise<T>,
  ): Promise<T>;
  /** Bytes that images take which somebody holds: that room is no machine's. */
  heldBytes(): number;
  /** What is in the store, for `Node.status.images`. */
  images(): StoredImage[];
  /** Called when `images()` says something else. */
  onChange(listener: () => void): void;
}

export type ImageErrorReason =
  | 'ImageSourceUnsupported'
  | 'ImageNotFound'
  /** There is an image, and it is for another architecture than the machine. */
  | 'ImageArchitectureMismatch'
  | 'ImageInvalid'
  | 'DigestMismatch'
  | 'ImageFetchFailed'
  /** The registry wants other credentials, or some. */
  | 'ImageAccessDenied'
  /** A pull secret that the Pod names is not there or cannot be read as one. */
  | 'PullSecretMissing'
  | 'DiskFull';

export class ImageError extends Error {
  override readonly name = 'ImageError';
  readonly reason: ImageErrorReason;

  constructor(reason: ImageErrorReason, message: string, options?: ErrorOptions) {
    super(message, options);
    this.reason = reason;
  }
}
