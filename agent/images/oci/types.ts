/** Types of an OCI registry (distribution spec 1.1) that the rest of the agent uses. */
import type { Readable } from 'node:stream';

/** A piece of content, identified by its digest. */
export interface Descriptor {
  mediaType: string;
  /** Digest of the content: `sha256:<hex>`. */
  digest: string;
  size: number;
  annotations?: Record<string, string> | undefined;
}

/** The manifest of one image, in the format of OCI or Docker schema 2. */
export interface Manifest {
  mediaType: string;
  artifactType?: string | undefined;
  config: Descriptor;
  layers: Descriptor[];
  annotations?: Record<string, string> | undefined;
}

export interface ResolvedManifest {
  /** Digest of the manifest for one platform. If the tag names an index, this is the digest of the manifest in the index. */
  digest: string;
  /** Digest to which the tag itself refers. If this is not an index, it is the same as `digest`. */
  tagDigest: string;
  /**
   * Architecture that was requested. When the pull is planned, the image's own architecture is compared with it. If undefined,
   * nothing is compared.
   */
  architecture: 'amd64' | 'arm64' | undefined;
  manifest: Manifest;
}

/** One repository of one registry. Content that is read as a whole is verified against its digest. */
export interface Repository {
  /** Name for messages: `registry.example/team/image`. */
  readonly name: string;
  /**
   * Returns the digest to which a tag or digest refers now. Sends one HEAD request, and a GET request if a registry does not answer
   * with the digest.
   *
   * @throws ReasonedError when there is no such manifest, or these credentials give no access to it.
   */
  head(reference: string, signal: AbortSignal): Promise<string>;
  /**
   * Returns the manifest of a tag or digest. If `reference` names an index, returns the manifest in the index for this architecture
   * (os linux or darwin).
   */
  resolve(reference: string, architecture: 'amd64' | 'arm64', signal: AbortSignal): Promise<ResolvedManifest>;
  /**
   * Returns a small blob as a whole, verified.
   *
   * @throws ReasonedError when the blob is larger than `limitBytes` or its digest differs.
   */
  blob(descriptor: Descriptor, limitBytes: number, signal: AbortSignal): Promise<Buffer>;
  /**
   * Returns a stream of the bytes from `start` (inclusive) to `end` (exclusive) of a blob, not verified. The stream gives
   * exactly these bytes or fails. `start` must not be the blob's end. An interrupted transfer resumes at the same byte, with
   * back-off and a limit of tries.
   */
  stream(descriptor: Descriptor, range: { start: number; end: number }, signal: AbortSignal): Readable;
  has(digest: string, signal: AbortSignal): Promise<boolean>;
  /** Uploads a blob in one request, unless the registry already has it. */
  upload(blob: UploadBlob, signal: AbortSignal): Promise<void>;
  /** Writes a manifest under a tag and returns the manifest's digest. */
  putManifest(tag: string, mediaType: string, bytes: Buffer, signal: AbortSignal): Promise<string>;
  /**
   * Removes a manifest and every tag that names it. The blobs of the manifest remain until the registry's own garbage collection. Also
   * returns true if the manifest is missing. Returns false if the registry does not allow removals.
   */
  removeManifest(digest: string, signal: AbortSignal): Promise<boolean>;
}

export interface UploadBlob {
  digest: string;
  size: number;
  /** Returns the content. This function is called once for each attempt. */
  content: () => Readable | Buffer;
}
