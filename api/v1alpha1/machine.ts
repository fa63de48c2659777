/**
 * The contract between the operator and a host's agent. The operator writes a Pod with the annotation
 * `berth.dev/machine` (a fully resolved {@link Machine}, never changed afterwards) and `berth.dev/desired`
 * (a {@link Desired}, the only annotation it changes; the Pod's cpu and memory change by `pods/resize`). The agent answers in Pod status alone.
 */
import * as z from 'zod';

/** Version of the machine document. An agent that does not know it refuses the Pod with `AgentTooOld`, never guesses. */
export const MACHINE_API_VERSION = 'machine.berth.dev/v1';

/** Where a disk or an ISO comes from, as the agent sees it: the Image's source passed on as it is. */
export const machineImageSourceSchema = z.discriminatedUnion('type', [
  z.object({ type: z.literal('registry'), reference: z.string() }),
  z.object({ type: z.literal('http'), url: z.string(), sha256: z.string() }),
  z.object({ type: z.literal('sharedFile'), path: z.string() }),
  z.object({ type: z.literal('empty'), sizeBytes: z.number().int() }),
  /** In the cluster's image storage, where the operator found it for an Image: opened with the host's own credentials. */
  z.object({ type: z.literal('storedArtifact'), reference: z.string() }),
  /** Likewise, below the host's storage folder. */
  z.object({ type: z.literal('storedFile'), path: z.string(), sha256: z.string() }),
  /** A source that needs what is not present in this release (ipsw). */
  z.object({ type: z.literal('unsupported'), description: z.string() }),
]);
export type MachineImageSource = z.infer<typeof machineImageSourceSchema>;

/** One reservation: `name` is unique in the machine (`8822-tcp`); the Pod's hostPort is the same number. */
export const machinePortSchema = z.object({
  name: z.string(),
  protocol: z.enum(['TCP', 'UDP']),
  hostPort: z.number().int(),
  guestPort: z.number().int(),
});
export type MachinePort = z.infer<typeof machinePortSchema>;

/** A machine as one host must run it: everything resolved, nothing to look up but secrets by mounted name. */
export const machineSchema = z.object({
  apiVersion: z.literal(MACHINE_API_VERSION),
  vm: z.object({ namespace: z.string(), name: z.string(), uid: z.string() }),
  /** The VMConfig it was resolved with; for the VM's status, of no interest to the agent. */
  config: z.object({ name: z.string(), namespace: z.string(), generation: z.number().int() }).optional(),
  attempt: z.number().int(),
  os: z.enum(['MacOS', 'Linux', 'Windows']).optional(),
  architecture: z.enum(['amd64', 'arm64']).optional(),
  image: machineImageSourceSchema.optional(),
  imageFormat: z.enum(['Auto', 'Raw', 'QCOW2']),
  /** `berth.dev/NAMESPACE/NAME` of the Image object, where there is one: the name that the host lists it by. */
  imageName: z.string().optional(),
  isoName: z.string().optional(),
  iso: machineImageSourceSchema.optional(),
  diskSizeBytes: z.number().int().optional(),
  display: z.object({ width: z.number().int(), height: z.number().int(), dpi: z.number().int() }).optional(),
  network: z.object({ mode: z.enum(['NAT', 'Bridge']) }),
  ports: z.array(machinePortSchema),
  vnc: z.object({ enabled: z.boolean() }),
  readiness: z.object({ type: z.enum(['None', 'GuestAgent', 'Port']), port: z.number().int().optional() }),
  hardware: z.object({ uuid: z.string(), serialNumber: z.string(), macAddress: z.string() }),
  guestMetadata: z.record(z.string(), z.string()),
  userData: z.string().optional(),
  userDataSecret: z.object({ name: z.string(), key: z.string() }).optional(),
});
export type Machine = z.infer<typeof machineSchema>;

/** What may change while the Pod lives. The nonces are RFC 3339 times: an action is done once per value. */
export const desiredSchema = z.object({
  power: z.enum(['Running', 'Stopped', 'Suspended']),
  restartPolicy: z.enum(['Never', 'OnFailure', 'Always']),
  /** Take effect at the machine's next start, and never more than the Pod's requests count (with {@link MACHINE_MEMORY_OVERHEAD_BYTES}). */
  cpu: z.number().int(),
  memoryBytes: z.number().int(),
  diskSizeBytes: z.number().int().optional(),
  restartRequestedAt: z.string().optional(),
  revertRequestedAt: z.string().optional(),
});
export type Desired = z.infer<typeof desiredSchema>;

/**
 * What the agent writes as JSON into the message of the Pod condition `berth.dev/Machine`: the hash of the
 * `desired` it acted on (a Pod's generation does not count annotations), the actions done, and facts for the VM's status.
 */
export const machineReportSchema = z.object({
  /** SHA-256 (hex, first 16 characters) of the text of the `berth.dev/desired` annotation that is now fulfilled. */
  desiredHash: z.string().optional(),
  restartedAt: z.string().optional(),
  revertedAt: z.string().optional(),
  /** What the running machine was started with; differs from `desired` until the next start. */
  cpu: z.number().int().optional(),
  memoryBytes: z.number().int().optional(),
  /** 0–100 while pulling or cloning. */
  progressPercent: z.number().int().optional(),
  accelerator: z.string().optional(),
  imageDigest: z.string().optional(),
  guestAgentConnected: z.boolean().optional(),
  message: z.string().optional(),
});
export type MachineReport = z.infer<typeof machineReportSchema>;

/** Memory a hypervisor process needs beside the guest's own, added to the Pod's request. 128 MiB: measured for QEMU without graphics, rounded up. */
export const MACHINE_MEMORY_OVERHEAD_BYTES = 128 * 1024 * 1024;

/** A document of this contract before its schema checks it: undefined where there is none or what is there is no JSON. */
export function parseDocument(text: string | undefined): unknown {
  if (text === undefined) {
    return undefined;
  }
  try {
    return JSON.parse(text);
  } catch (error) {
    if (error instanceof SyntaxError) {
      return undefined;
    }
    throw error;
  }
}
