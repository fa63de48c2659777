/**
 * The contract between the operator and the agent of a host. The operator writes a Pod with two annotations. `berth.dev/machine`
 * contains a fully resolved {@link Machine} and never changes. `berth.dev/desired` contains a {@link Desired} and is the only
 * annotation that the operator changes. The Pod's cpu and memory change by `pods/resize`. The agent answers only in the Pod's
 * status.
 */
import * as z from 'zod';
import { undefinedIfSync } from '../../base/errors.ts';

/** Version of the annotation `berth.dev/machine`. If an agent does not know the version, it refuses the Pod with `AgentTooOld`. */
export const MACHINE_API_VERSION = 'machine.berth.dev/v1';

/** Source of a disk or an ISO for the agent. `directSource` in operator/image makes it from the source of an Image. */
export const machineImageSourceSchema = z.discriminatedUnion('type', [
  z.object({ type: z.literal('registry'), reference: z.string() }),
  z.object({ type: z.literal('http'), url: z.string(), sha256: z.string() }),
  z.object({ type: z.literal('sharedFile'), path: z.string() }),
  z.object({ type: z.literal('empty'), sizeBytes: z.number().int() }),
  /**
   * An artifact in the cluster's image storage, where the operator found the content of an Image. The host reads the artifact with its own
   * credentials, not with those of the VM.
   */
  z.object({ type: z.literal('storedArtifact'), reference: z.string() }),
  /** A file below the host's storage folder, where the operator found the content of an Image. */
  z.object({ type: z.literal('storedFile'), path: z.string(), sha256: z.string() }),
  /** A source that this release does not support (ipsw). */
  z.object({ type: z.literal('unsupported'), description: z.string() }),
]);
export type MachineImageSource = z.infer<typeof machineImageSourceSchema>;

/** One reserved port. `name` is unique in the machine, for example `8822-tcp`. The Pod's hostPort has the same number. */
export const machinePortSchema = z.object({
  name: z.string(),
  protocol: z.enum(['TCP', 'UDP']),
  hostPort: z.number().int(),
  guestPort: z.number().int(),
  /** Set only by agents: the agent chose the host port. The Pod has no hostPort for it. */
  automatic: z.literal(true).optional(),
});
export type MachinePort = z.infer<typeof machinePortSchema>;

/** Port of the guest for which the agent chooses a port of the host. */
const automaticPortSchema = z.object({
  protocol: z.enum(['TCP', 'UDP']),
  /** 0 for the purpose `vnc`, because the hypervisor and not the guest serves the screen. */
  guestPort: z.number().int(),
  /**
   * `ssh`, `screen`, `vnc` or `emulators`. The host chooses ports for each purpose from a separate range. If an agent does not know the
   * purpose, it treats the port as one without a purpose.
   */
  purpose: z.string().optional(),
});
export type AutomaticPort = z.infer<typeof automaticPortSchema>;

/** Largest number of automatic ports of one machine: 64 ports of the user, and the ports for SSH, screen sharing and VNC. */
const MAXIMUM_AUTOMATIC_PORTS = 67;

/**
 * The machine that one host must run. The operator has resolved all values. For a Secret, the document has only the name, and the agent
 * reads the value.
 */
export const machineSchema = z.object({
  apiVersion: z.literal(MACHINE_API_VERSION),
  vm: z.object({ namespace: z.string(), name: z.string(), uid: z.string() }),
  /** The VMConfig from which the machine's values come. The operator copies the field to the VM's status. The agent does not use it. */
  config: z.object({ name: z.string(), namespace: z.string(), generation: z.number().int() }).optional(),
  attempt: z.number().int(),
  os: z.enum(['MacOS', 'Linux', 'Windows']).optional(),
  architecture: z.enum(['amd64', 'arm64']).optional(),
  image: machineImageSourceSchema.optional(),
  imageFormat: z.enum(['Auto', 'Raw', 'QCOW2']),
  /** `berth.dev/NAMESPACE/NAME` of the Image object, if the VM names an Image. The host lists the image under this name. */
  imageName: z.string().optional(),
  isoName: z.string().optional(),
  iso: machineImageSourceSchema.optional(),
  diskSizeBytes: z.number().int().optional(),
  display: z.object({ width: z.number().int(), height: z.number().int(), dpi: z.number().int() }).optional(),
  network: z.object({ mode: z.enum(['NAT', 'Bridge']) }),
  ports: z.array(machinePortSchema),
  /** Absent if an earlier release of the operator wrote the document. */
  automaticPorts: z.array(automaticPortSchema).max(MAXIMUM_AUTOMATIC_PORTS).optional(),
  vnc: z.object({ enabled: z.boolean() }),
  readiness: z.object({ type: z.enum(['None', 'GuestAgent', 'Port']), port: z.number().int().optional() }),
  hardware: z.object({ uuid: z.string(), serialNumber: z.string(), macAddress: z.string() }),
  guestMetadata: z.record(z.string(), z.string()),
  userData: z.string().optional(),
  userDataSecret: z.object({ name: z.string(), key: z.string() }).optional(),
  /**
   * OpenSSH public keys for the guest. Absent in documents of an operator that does not know the field. Machines with such a document get
   * no seed disk, because a guest would take a new seed disk for the first boot of a new instance.
   */
  sshAuthorizedKeys: z.array(z.string()).optional(),
});
export type Machine = z.infer<typeof machineSchema>;

/**
 * The part of a machine that can change while the Pod exists. The `…RequestedAt` fields are RFC 3339 times. The agent does the action of
 * such a field once for each new time.
 */
export const desiredSchema = z.object({
  power: z.enum(['Running', 'Stopped', 'Suspended']),
  restartPolicy: z.enum(['Never', 'OnFailure', 'Always']),
  /**
   * `cpu` and `memoryBytes` take effect at the machine's next start. They never exceed the Pod's requests. The Pod's request for memory is
   * larger than `memoryBytes` by {@link MACHINE_MEMORY_OVERHEAD_BYTES}.
   */
  cpu: z.number().int(),
  memoryBytes: z.number().int(),
  diskSizeBytes: z.number().int().optional(),
  restartRequestedAt: z.string().optional(),
  revertRequestedAt: z.string().optional(),
});
export type Desired = z.infer<typeof desiredSchema>;

const LAST_PORT = 65_535;
/** Largest length of an RFC 3339 time that a host can report, in characters. A time with nanoseconds and an offset fits. */
const LONGEST_TIME = 40;
/** Schema of a time that the API server accepts in the VM's status. The letters T and Z can be in upper or lower case. */
const timeText = z
  .string()
  .max(LONGEST_TIME)
  .refine((text) => z.iso.datetime({ offset: true }).safeParse(text.toUpperCase()).success);

/** Returns the schema of a value that a host reports. If the value is wrong, it counts as absent, and the rest of the report is read. */
function reported<T extends z.ZodType>(schema: T) {
  return schema.optional().catch(undefined);
}

/** Largest number of addresses that a host reports of one guest. */
export const GUEST_ADDRESSES_LIMIT = 16;
/** Longest name of a guest's operating system, in characters. */
export const GUEST_OS_LENGTH = 128;
/** Longest host name of a guest, as in DNS. */
export const GUEST_HOST_NAME_LENGTH = 253;
/**
 * Schema of the name of a guest's operating system. The pattern keeps control characters and changes of the text direction from a guest out
 * of the status.
 */
export const guestOSSchema = z
  .string()
  .min(1)
  .max(GUEST_OS_LENGTH)
  .regex(/^[\p{L}\p{N}\p{P}\p{S} ]+$/u);
/** Schema of a guest's host name. Some systems allow underscores. */
export const guestHostNameSchema = z
  .string()
  .max(GUEST_HOST_NAME_LENGTH)
  .regex(/^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$/);

/** Facts that a guest reported about itself. They can be wrong, because nobody else checks them. */
const guestFactsSchema = z.object({
  addresses: z
    .array(z.union([z.ipv4(), z.ipv6()]))
    .max(GUEST_ADDRESSES_LIMIT)
    .catch([]),
  os: reported(guestOSSchema),
  hostName: reported(guestHostNameSchema),
});
export type GuestFacts = z.infer<typeof guestFactsSchema>;

/**
 * The report that the agent writes as JSON into the message of the Pod condition `berth.dev/Machine`. It has the hash of the last fulfilled
 * `berth.dev/desired`, because the generation of a Pod does not change with its annotations. The report also contains the finished actions,
 * and facts for the VM's status.
 */
export const machineReportSchema = z.object({
  /** The first 16 hexadecimal characters of the SHA-256 of the `berth.dev/desired` annotation that the machine now fulfils. */
  desiredHash: reported(z.string()),
  restartedAt: reported(timeText),
  revertedAt: reported(timeText),
  /**
   * Number of times that the machine of a VM was stopped or suspended, or ended by itself and stayed off. A restart does not count. If the
   * number grows, the VM was stopped in the meantime, even if it runs again. Absent for emulators, and in reports of earlier agents.
   */
  stops: reported(z.number().int().min(0).max(Number.MAX_SAFE_INTEGER)),
  /** Values with which the running machine was started. They may differ from `desired` until the next start. */
  cpu: reported(z.number().int()),
  memoryBytes: reported(z.number().int()),
  diskSizeBytes: reported(z.number().int()),
  /** Percentage from 0 to 100 during a pull or clone. */
  progressPercent: reported(z.number().int().min(0).max(100)),
  /** Average speed of a pull. */
  bytesPerSecond: reported(z.number().int().min(0).max(Number.MAX_SAFE_INTEGER)),
  accelerator: reported(z.string()),
  imageDigest: reported(z.string()),
  /**
   * Whether the guest agent answers. Absent before its first answer. If the VM has the readiness type GuestAgent, the field is false before
   * the first answer.
   */
  guestAgentConnected: reported(z.boolean()),
  /** Facts in the last answer of the guest agent since the start of the machine. */
  guest: reported(guestFactsSchema),
  /**
   * Host ports of the machine's `automaticPorts`, in their order. The report has only the numbers, because it must fit into a condition's
   * message of 4,096 characters.
   */
  endpoints: reported(z.array(z.number().int().min(1).max(LAST_PORT)).max(MAXIMUM_AUTOMATIC_PORTS)),
  /**
   * Whether the guest has the display that its VM asks for. Absent if the VM asks for no display, or if the host does not know the answer
   * yet.
   */
  display: reported(z.object({ ready: z.boolean(), reason: z.string(), message: z.string() })),
  /** Address and port of an emulator's ADB. Absent for VMs, and until the host knows the address. */
  adb: reported(z.object({ address: z.ipv4(), port: z.number().int().min(1).max(LAST_PORT) })),
  message: reported(z.string()),
});
export type MachineReport = z.infer<typeof machineReportSchema>;

/**
 * Memory that a hypervisor process needs beside the guest's memory, in bytes. The operator adds this value to the Pod's request. QEMU
 * without graphics needs 128 MiB: this is a measured value, rounded up.
 */
export const MACHINE_MEMORY_OVERHEAD_BYTES = 128 * 1024 * 1024;

/**
 * Parses the JSON text of an annotation or a report that the operator and the agent exchange. The caller must check the result
 * with a schema. The result is undefined if there is no text or the text is not JSON.
 */
export function parseDocument(text: string | undefined): unknown {
  const isSyntaxError = (error: unknown): boolean => error instanceof SyntaxError;
  return text === undefined ? undefined : undefinedIfSync(isSyntaxError, () => JSON.parse(text) as unknown);
}
