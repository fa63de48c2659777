/** What the rest of the agent needs of an OCI registry (distribution spec 1.1). */
import type { Readable } from 'node:stream';

/** A piece of content by its digest. */
export interface Descriptor {
  mediaType: string;
  /** `sha256:<hex>`. */
  digest: string;
  size: number;
  annotations?: Record<string, string>;
}

/** A manifest of one image: OCI or Docker schema 2. */
export interface Manifest {
  mediaType: string;
  artifactType?: string;
  config: Descriptor;
  layers: Descriptor[];
  annotations?: Record<string, string>;
}

export interface ResolvedManifest {
  /** Of the manifest of one platform, whatever index led to it. */
  digest: string;
  /** Of what the tag itself names: the index's where there is one, else the same. */
  tagDigest: string;
  /** That was asked for; what the image says of itself is judged by it when its pull is planned, or not at all where it is undefined. */
  architecture: 'amd64' | 'arm64' | undefined;
  manifest: Manifest;
}

/** One repository of one registry. All reads are verified against their digest where they are whole. */
export interface Repository {
  /** `registry.example/team/image`, for messages. */
  readonly name: string;
  /** What a tag or digest names now, with one HEAD; throws ReasonedError when there is none or it is not open to these credentials. */
  head(reference: string, signal: AbortSignal): Promise<string>;
  /** The manifest of a tag or digest; of an index the one for this architecture (os linux or darwin). */
  resolve(reference: string, architecture: 'amd64' | 'arm64', signal: AbortSignal): Promise<ResolvedManifest>;
  /** A small blob as a whole, verified; throws when it is larger than `limitBytes`. */
  blob(descriptor: Descriptor, limitBytes: number, signal: AbortSignal): Promise<Buffer>;
  /**
   * Bytes `start` (inclusive) to `end` (exclusive) of a blob, not verified; exactly as many or an error. Never begun at the
   * blob's end. A transfer that breaks off is taken up again where it broke off, with back-off and a limit.
   */
  stream(descriptor: Descriptor, range: { start: number; end: number }, signal: AbortSignal): Readable;
  has(digest: string, signal: AbortSignal): Promise<boolean>;
  /** Uploads a blob in one request, unless it is there. */
  upload(blob: UploadBlob, signal: AbortSignal): Promise<void>;
  /** Writes a manifest under a tag; its digest. */
  putManifest(tag: string, mediaType: string, bytes: Buffer, signal: AbortSignal): Promise<string>;
  /**
   * Takes a manifest away, with every tag that names it; its blobs are left to the registry's own garbage collection. One that is
   * not there counts as removed. False: the registry removes nothing at all.
   */
  removeManifest(digest: string, signal: AbortSignal): Promise<boolean>;
}

export interface UploadBlob {
  digest: string;
  size: number;
  /** Called once for each attempt. */
  content: () => Readable | Buffer;
}
