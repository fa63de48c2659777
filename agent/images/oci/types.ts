/** TypeScript types with which the other parts of the agent use OCI registries (distribution specification 1.1). */
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
  /** Digest of the manifest for one platform. If the tag names an index, this is the digest of a manifest that the index lists. */
  digest: string;
  /** Digest of the manifest or index that the tag itself names. If the tag names no index, the value is the same as `digest`. */
  tagDigest: string;
  /**
   * Architecture that the requester needs. The plan of the pull compares the image's own architecture with this value. If undefined, the
   * plan compares nothing.
   */
  architecture: 'amd64' | 'arm64' | undefined;
  manifest: Manifest;
}

/** One repository of one registry. Content that is read as a whole is verified against its digest. */
export interface Repository {
  /** Name for messages: `registry.example/team/image`. */
  readonly name: string;
  /**
   * Returns the digest of the manifest or index that a tag or digest names now. Sends one HEAD request. If the registry's answer does not
   * contain the digest, also sends a GET request.
   *
   * @throws ReasonedError when there is no such manifest, or these credentials give no access to it.
   */
  head(reference: string, signal: AbortSignal): Promise<string>;
  /**
   * Returns the manifest of a tag or digest. If `reference` names an index, the function returns the manifest that the index lists for this
   * architecture (os linux or darwin).
   */
  resolve(reference: string, architecture: 'amd64' | 'arm64', signal: AbortSignal): Promise<ResolvedManifest>;
  /**
   * Returns the whole content of a small blob after a check of its digest.
   *
   * @throws ReasonedError when the blob is larger than `limitBytes` or its digest differs.
   */
  blob(descriptor: Descriptor, limitBytes: number, signal: AbortSignal): Promise<Buffer>;
  /**
   * Returns a stream of the bytes from `start` (inclusive) to `end` (exclusive) of a blob. The stream gives exactly these bytes or fails,
   * but it does not verify a digest. `start` must be smaller than the blob's size. An interrupted transfer resumes at the same byte, with
   * back-off and a limit of tries.
   */
  stream(descriptor: Descriptor, range: { start: number; end: number }, signal: AbortSignal): Readable;
  /**
   * Returns whether the registry sends a part of a blob on request. Some registries send the whole blob instead, and {@link stream} then
   * receives and drops all bytes before `start`.
   */
  servesRanges(descriptor: Descriptor, signal: AbortSignal): Promise<boolean>;
  has(digest: string, signal: AbortSignal): Promise<boolean>;
  /** Uploads a blob in one request, unless the registry already has it. */
  upload(blob: UploadBlob, signal: AbortSignal): Promise<void>;
  /** Writes a manifest under a tag and returns the manifest's digest. */
  putManifest(tag: string, mediaType: string, bytes: Buffer, signal: AbortSignal): Promise<string>;
  /**
   * Removes a manifest and every tag that names it. The blobs of the manifest stay until the registry's own garbage collection. Returns
   * false if the registry does not allow removals. Otherwise returns true, even if the manifest was already missing.
   */
  removeManifest(digest: string, signal: AbortSignal): Promise<boolean>;
}

export interface UploadBlob {
  digest: string;
  size: number;
  /** Returns the content. The client calls this function once for each attempt. */
  content: () => Readable | Buffer;
}
