/**
 * Work on images that hosts do as Pods of Jobs. The operator writes the Job, whose Pods carry the annotation `berth.dev/task`
 * (a {@link Task}); the host's agent does it, tells its progress in the Pod condition `berth.dev/Task` and its result in the
 * container's termination message, both as JSON of a {@link TaskReport}. The Pod's pull secrets are the credentials of
 * every registry that the task speaks to.
 */
import * as z from 'zod';
import { machineImageSourceSchema } from './machine.ts';

/** Version of the task document. An agent that does not know it refuses the Pod with `AgentTooOld`, never guesses. */
export const TASK_API_VERSION = 'task.berth.dev/v1';

const imageSchema = z.object({
  source: machineImageSourceSchema,
  format: z.enum(['Auto', 'Raw', 'QCOW2']),
  /** Of an image for several: which one. The host's own when absent. */
  architecture: z.enum(['amd64', 'arm64']).optional(),
  /** `berth.dev/NAMESPACE/NAME` of the Image or ISO object, where there is one: the name it has in `Node.status.images`. */
  name: z.string().optional(),
});
export type TaskImage = z.infer<typeof imageSchema>;

/** Where in the cluster's image storage something lies, or is to lie. */
const storageTargetSchema = z.discriminatedUnion('type', [
  /** Repository and tag in the storage's registry, which the host's own credentials open. */
  z.object({ type: z.literal('registry'), reference: z.string() }),
  /** A file below the host's storage folder. */
  z.object({ type: z.literal('folder'), path: z.string() }),
]);
export type StorageTarget = z.infer<typeof storageTargetSchema>;

const apiVersion = z.literal(TASK_API_VERSION);

export const taskSchema = z.discriminatedUnion('type', [
  /** Puts an image into the host's store and keeps it there for an ImageCacheEntry. `refresh`: look whether its tag has moved. */
  z.object({
    apiVersion,
    type: z.literal('cache'),
    entry: z.string(),
    image: imageSchema,
    refresh: z.boolean(),
  }),
  /** Ends what `cache` began, once nothing is being deployed from the image. */
  z.object({ apiVersion, type: z.literal('uncache'), entry: z.string() }),
  /** Fetches and checks an image; with a target the result is stored there. */
  z.object({
    apiVersion,
    type: z.literal('import'),
    image: imageSchema,
    target: storageTargetSchema.optional(),
  }),
  /** Stores the disk of a VM of this host, as it is at one moment. */
  z.object({
    apiVersion,
    type: z.literal('save'),
    vm: z.object({ namespace: z.string(), name: z.string(), uid: z.string() }),
    target: storageTargetSchema,
  }),
  /** Publishes an image under a full reference. */
  z.object({ apiVersion, type: z.literal('push'), image: imageSchema, reference: z.string() }),
  /** Takes content out of the cluster's image storage: a manifest, named by its digest, or a file. Done when it is not there. */
  z.object({ apiVersion, type: z.literal('remove'), place: storageTargetSchema }),
]);
export type Task = z.infer<typeof taskSchema>;

export const taskReportSchema = z.object({
  /** 0–100 of what is to be moved. */
  progressPercent: z.number().int().min(0).max(100).optional(),
  /** Digest of the image: of its manifest, or of its file. */
  digest: z.string().optional(),
  /** Disk of a VM deployed from it. */
  sizeBytes: z.number().int().optional(),
  /** Space that it takes in storage. */
  storageBytes: z.number().int().optional(),
  /** What was written to, pinned by digest. */
  reference: z.string().optional(),
  /** Of a running VM's disk: whether its file systems were frozen by the guest's agent for the moment of the copy. */
  consistency: z.enum(['FileSystem', 'Crash', 'Stopped']).optional(),
  message: z.string().optional(),
  /** Why the storage has kept what was to be removed, where trying again would not help. */
  kept: z.string().optional(),
});
export type TaskReport = z.infer<typeof taskReportSchema>;
