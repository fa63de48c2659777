/**
 * The contract between the operator and the agent for tasks. A task is work on an image that a host does for the Pod of a Job. The operator
 * writes a Job whose Pod has the annotation `berth.dev/task` (a {@link Task}), and the agent of the host does the task. The agent reports
 * its progress in the Pod condition `berth.dev/Task`, and its result in the container's termination message. Both contain a {@link
 * TaskReport} as JSON. The Pod's pull secrets contain the credentials for every registry that the task uses.
 */
import * as z from 'zod';
import { machineImageSourceSchema } from './source.ts';

/** Version of the annotation `berth.dev/task`. An agent that does not know the version refuses the Pod with `AgentTooOld`. */
export const TASK_API_VERSION = 'task.berth.dev/v1';

/**
 * CPU (in thousandths of one) and memory (in bytes) that the Pod of a task requests, and its limits. The work itself is part of the agent's
 * work, so the amounts are small. They are not zero, because a LimitRange can demand a minimum, and a ResourceQuota can demand limits.
 */
export const TASK_CPU_MILLIS = 10;
export const TASK_MEMORY_BYTES = 16 * 1024 ** 2;

const imageSchema = z.object({
  source: machineImageSourceSchema,
  /** Format of the content. `ISO` stands for the content of an ISO object: a raw file that is not a disk of another format. */
  format: z.enum(['Auto', 'Raw', 'QCOW2', 'ISO']),
  /** Architecture to use if the image supports several. The default is the architecture of the host. */
  architecture: z.enum(['amd64', 'arm64']).optional(),
  /**
   * `berth.dev/NAMESPACE/NAME` of the Image or ISO object. It is absent if the image has no object. `Node.status.images` lists the image
   * under this name.
   */
  name: z.string().optional(),
});
export type TaskImage = z.infer<typeof imageSchema>;

/** Place of an image's content in the cluster's image storage: a reference in the storage's registry, or a file in its folder. */
const storageTargetSchema = z.discriminatedUnion('type', [
  /**
   * Repository and tag in the storage's registry. The host writes with the Secret `berth-image-storage` of the Pod's namespace, else with
   * that of `secretNamespace`, which the host may read only during the task.
   */
  z.object({
    type: z.literal('registry'),
    reference: z.string(),
    secretNamespace: z.string().optional(),
  }),
  /** A file below the host's storage folder. */
  z.object({ type: z.literal('folder'), path: z.string() }),
]);
export type StorageTarget = z.infer<typeof storageTargetSchema>;

const apiVersion = z.literal(TASK_API_VERSION);

export const taskSchema = z.discriminatedUnion('type', [
  /**
   * Puts an image into the host's store and keeps it there for an ImageCacheEntry. If `refresh` is true, the host checks whether the tag
   * now leads to a newer image.
   */
  z.object({
    apiVersion,
    type: z.literal('cache'),
    entry: z.string(),
    image: imageSchema,
    refresh: z.boolean(),
  }),
  /**
   * Removes the image that a `cache` task put into the host's store for the entry. If the host is deploying a machine from the image, it
   * first waits for the end of this deployment. `namespace` is that of the entry. The Pod of the task can be in another one, because a
   * namespace that is being deleted gets no new Pods.
   */
  z.object({ apiVersion, type: z.literal('uncache'), entry: z.string(), namespace: z.string() }),
  /** Fetches and checks an image. If `target` is set, the host also copies the image to this place in the cluster's image storage. */
  z.object({
    apiVersion,
    type: z.literal('import'),
    image: imageSchema,
    target: storageTargetSchema.optional(),
  }),
  /**
   * Receives a file from a caller who attaches to the Pod of the task, and stores the file. `transfer.ts` describes the protocol. A file
   * with more than `limitBytes` is refused.
   */
  z.object({
    apiVersion,
    type: z.literal('receive'),
    limitBytes: z.number().int().positive(),
    format: imageSchema.shape.format,
    architecture: imageSchema.shape.architecture,
    target: storageTargetSchema,
  }),
  /**
   * Stores a copy of the disk of a VM of this host. The copy has the content that the disk has at a single moment, even if the VM runs. With
   * `memory`, the host stores the memory of the running VM of the same moment, too. With `snapshot`, the uid of a VMSnapshot, the host
   * stores the disk of this snapshot.
   */
  z.object({
    apiVersion,
    type: z.literal('save'),
    vm: z.object({ namespace: z.string(), name: z.string(), uid: z.string() }),
    memory: z.literal(true).optional(),
    snapshot: z.string().optional(),
    target: storageTargetSchema,
  }),
  /** Pushes an image to a registry. `reference` is the full name that the image gets there. */
  z.object({ apiVersion, type: z.literal('push'), image: imageSchema, reference: z.string() }),
  /** Sends an image as one file to callers who attach to the Pod of the task. `transfer.ts` describes the protocol. */
  z.object({ apiVersion, type: z.literal('send'), image: imageSchema, format: z.enum(['raw', 'qcow2']) }),
  /**
   * Removes a manifest or a file from the cluster's image storage. `place` names a manifest by its digest. If the content does not
   * exist, the task succeeds.
   */
  z.object({ apiVersion, type: z.literal('remove'), place: storageTargetSchema }),
]);
export type Task = z.infer<typeof taskSchema>;

/** Memory of an image: what a start from it must have in common with the VM from which it was saved. */
export const imageMemorySchema = z.object({
  /** Number of processors of the VM. */
  cpu: z.number().int().positive(),
  /** Size of the VM's memory in bytes. */
  memoryBytes: z.number().int().positive(),
  /** SHA-256, in hexadecimal digits, of all that must be equal at a start: hypervisor, accelerator, processor and devices. */
  key: z.string().regex(/^[0-9a-f]{64}$/),
  /** RFC 3339 time at which the memory was saved. */
  savedAt: z.iso.datetime(),
});
export type ImageMemory = z.infer<typeof imageMemorySchema>;

export const taskReportSchema = z.object({
  /** Progress of the transfer, as a percentage from 0 to 100. */
  progressPercent: z.number().int().min(0).max(100).optional(),
  /** Digest of the image's manifest, or of the image's file. */
  digest: z.string().optional(),
  /** Size in bytes of the disk that a VM gets from this image. */
  sizeBytes: z.number().int().optional(),
  /** Space that the image takes in storage, in bytes. */
  storageBytes: z.number().int().optional(),
  /** Reference of the content that the task fetched, stored or pushed. The reference contains the digest. */
  reference: z.string().optional(),
  /**
   * Consistency of a copied disk. `FileSystem`: the guest agent froze the file systems. `Stopped`: the VM was off. `Crash`: the VM was
   * running, and its file systems were not frozen.
   */
  consistency: z.enum(['FileSystem', 'Crash', 'Stopped']).optional(),
  /** Absent if the image has no memory. */
  memory: imageMemorySchema.optional(),
  /** SHA-256 of the file that describes the memory in the storage folder, in hexadecimal digits. The source `storedFile` names it. */
  memoryDigest: z
    .string()
    .regex(/^[0-9a-f]{64}$/)
    .optional(),
  message: z.string().optional(),
  /**
   * Reason why the storage keeps content that the task was asked to remove. The field is set only if another attempt would give the same
   * result.
   */
  kept: z.string().optional(),
  /** Seconds that a server asked to wait before the next request. The field is set only after a failure. */
  retryAfterSeconds: z.number().int().nonnegative().optional(),
});
export type TaskReport = z.infer<typeof taskReportSchema>;
