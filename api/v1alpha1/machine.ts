/**
 * The contract between the operator and the agent of a host. The operator writes a Pod with two annotations. `berth.dev/machine` contains a
 * {@link Machine}, in which all values are resolved. This annotation never changes. `berth.dev/desired` contains a {@link Desired}. It is
 * the only annotation that the operator changes. Changes of cpu and memory also use the Pod's subresource `resize`. The agent answers only
 * in the Pod's status. The annotation `berth.dev/awaited-pods` of the Node lists the VMs on this host that are about to get a new Pod, because
 * somebody deleted their Pod by force. The host keeps their machines until the Pods are there.
 */
import * as z from 'zod';
import { undefinedIfSync } from '../../base/errors.ts';
import { JsonError, type JsonLimits, parseJson } from '../../base/json.ts';
import { type FieldsWith, type ValueOf, VM_FIELD_ROWS, VM_FIELDS, type VMField } from './fields.ts';
import { AWAITED_ANNOTATION, SNAPSHOT_LIMIT } from './names.ts';
import { machineImageSourceSchema } from './source.ts';

/** Version of the annotation `berth.dev/machine`. An agent that does not know the version refuses the Pod with `AgentTooOld`. */
export const MACHINE_API_VERSION = 'machine.berth.dev/v1';

/**
 * Shortest grace period of a Pod's deletion that is an order to the host, in seconds. It means "at once", because no guest shuts down in a
 * second. A period of 0 is no order: Kubernetes deletes Pods so without asking their host.
 */
export const SHORTEST_GRACE_SECONDS = 1;

/**
 * One reserved port. Connections to `hostPort` of the machine's host reach `guestPort` in the guest. The container of the Pod declares the
 * host port, too, so that the scheduler places the Pod only on a host where this port is free.
 */
export const machinePortSchema = z.object({
  protocol: z.enum(['TCP', 'UDP']),
  hostPort: z.number().int(),
  guestPort: z.number().int(),
  /** True if the agent chose the host port. Only agents set this field. The Pod has no hostPort for such a port. */
  automatic: z.literal(true).optional(),
});
export type MachinePort = z.infer<typeof machinePortSchema>;

/** Port of the guest for which the agent chooses a host port. */
const automaticPortSchema = z.object({
  protocol: z.enum(['TCP', 'UDP']),
  /** Port in the guest. It is 0 for the purpose `vnc`, because the hypervisor, not the guest, serves the screen. */
  guestPort: z.number().int(),
  /**
   * Purpose of the port: `ssh`, `screen`, `vnc` or `emulators`. Each purpose has its own range of host ports. If an agent does not know the
   * purpose, it chooses a port as if this field were absent.
   */
  purpose: z.string().optional(),
});
export type AutomaticPort = z.infer<typeof automaticPortSchema>;

/** Largest number of automatic ports of one machine: 64 ports that the user reserves, and one port each for SSH, screen sharing and VNC. */
const MAXIMUM_AUTOMATIC_PORTS = 67;

type ForHost = FieldsWith<{ isForHost: true }>;
/** Fields of the VM's spec that the document `Machine` has: the operator knows their values at the deployment. */
export type MachineField = Exclude<
  ForHost,
  Exclude<FieldsWith<{ isMutable: true }>, FieldsWith<{ isInConfig: true }>>
>;
/** Fields of the VM's spec that the document `Desired` has: users can change them. */
export type DesiredField = ForHost & FieldsWith<{ isMutable: true }>;

function isMachineField({ isForHost, isMutable, isInConfig }: VMField): boolean {
  return isForHost === true && (isMutable === undefined || isInConfig === true);
}
function isDesiredField({ isForHost, isMutable }: VMField): boolean {
  return isForHost === true && isMutable === true;
}
/** Names of the fields of the VM's spec in the document `Machine`. */
export const MACHINE_FIELDS = VM_FIELD_ROWS.filter(isMachineField).map(({ name }) => name as MachineField);
/** Names of the fields of the VM's spec in the document `Desired`. */
export const DESIRED_FIELDS = VM_FIELD_ROWS.filter(isDesiredField).map(({ name }) => name as DesiredField);

type HostShape<Name extends ForHost> = { [Field in Name]: z.ZodOptional<z.ZodType<ValueOf<Field>>> };

/** Returns the schemas of fields of the VM's spec. They have no bounds, because the API server has checked the values. */
function hostShape<Name extends ForHost>(names: readonly Name[]): HostShape<Name> {
  return Object.fromEntries(
    names.map((name) => [name, hostSchema(VM_FIELDS[name]).optional()]),
  ) as HostShape<Name>;
}

function hostSchema(row: VMField): z.ZodType {
  if (row.type === 'choice') {
    return z.enum(row.values);
  }
  return row.type === 'integer' ? z.number().int() : z.string();
}

/**
 * The machine that the host must run. The operator has resolved all values except Secrets. For a Secret, the document contains only the
 * name, and the agent reads the value.
 */
export const machineSchema = z.object({
  apiVersion: z.literal(MACHINE_API_VERSION),
  vm: z.object({ namespace: z.string(), name: z.string(), uid: z.string() }),
  /** The VMConfig from which values of the machine come. The operator copies this field to the VM's status. The agent does not use it. */
  config: z.object({ name: z.string(), namespace: z.string(), generation: z.number().int() }).optional(),
  attempt: z.number().int(),
  ...hostShape(MACHINE_FIELDS),
  image: machineImageSourceSchema.optional(),
  imageFormat: z.enum(['Auto', 'Raw', 'QCOW2']),
  /** `berth.dev/NAMESPACE/NAME` of the Image object if the VM names an Image. The host lists the image under this name. */
  imageName: z.string().optional(),
  isoName: z.string().optional(),
  iso: machineImageSourceSchema.optional(),
  diskSizeBytes: z.number().int().optional(),
  network: z.object({ mode: z.enum(['NAT', 'Bridge']) }),
  ports: z.array(machinePortSchema),
  /** Ports of the guest for which the agent chooses host ports. */
  automaticPorts: z.array(automaticPortSchema).max(MAXIMUM_AUTOMATIC_PORTS),
  vnc: z.object({ enabled: z.boolean() }),
  readiness: z.object({
    type: z.enum(['None', 'SSH', 'GuestAgent', 'Port']),
    port: z.number().int().optional(),
  }),
  hardware: z.object({ uuid: z.string(), serialNumber: z.string(), macAddress: z.string() }),
  guestMetadata: z.record(z.string(), z.string()),
  userData: z.string().optional(),
  userDataSecretRef: z.object({ name: z.string(), key: z.string() }).optional(),
  /** OpenSSH public keys for the guest. */
  sshAuthorizedKeys: z.array(z.string()),
});
export type Machine = z.infer<typeof machineSchema>;

/**
 * Returns the display of the guest in pixels and dots per inch. The result is undefined if the VM asks for no display. The operator gives
 * either all fields of a display or none.
 */
export function displayOf({
  displayWidth: width,
  displayHeight: height,
  displayDPI: dpi,
}: Pick<Machine, 'displayWidth' | 'displayHeight' | 'displayDPI'>):
  | { width: number; height: number; dpi: number }
  | undefined {
  return width === undefined || height === undefined || dpi === undefined
    ? undefined
    : { width, height, dpi };
}

/** One snapshot of the VM. Its name is for messages. With `memory`, the host also keeps the memory of the running machine. */
const wantedSnapshotSchema = z.object({
  uid: z.string(),
  name: z.string(),
  memory: z.literal(true).optional(),
});
export type WantedSnapshot = z.infer<typeof wantedSnapshotSchema>;

/**
 * The part of a machine that can change while the Pod exists. The `…RequestedAt` fields are RFC 3339 times. When such a time changes, the
 * agent does the action of the field once.
 */
export const desiredSchema = z.object({
  ...hostShape(DESIRED_FIELDS),
  powerState: z.enum(VM_FIELDS.powerState.values),
  restartPolicy: z.enum(VM_FIELDS.restartPolicy.values),
  /**
   * `cpu` and `memoryBytes` take effect at the next start of the machine. They never exceed the Pod's requests. The Pod requests {@link
   * MACHINE_MEMORY_OVERHEAD_BYTES} more memory than `memoryBytes`.
   */
  cpu: z.number().int(),
  memoryBytes: z.number().int(),
  diskSizeBytes: z.number().int().optional(),
  /** Snapshots of the VM, the oldest first. The host takes those that it does not have, and removes all others. */
  snapshots: z.array(wantedSnapshotSchema).optional(),
  /** Uid of the snapshot to which `revertRequestedAt` resets the disk. Absent for a reset to the image. */
  revertTo: z.string().optional(),
  /**
   * Set if the machine must end although its Pod was deleted by force, because its VM is being deleted or has failed. The guest has this many
   * seconds for its shutdown.
   */
  deletion: z.object({ graceSeconds: z.number().int().min(0) }).optional(),
});
export type Desired = z.infer<typeof desiredSchema>;

const LAST_PORT = 65_535;
/** Largest length in characters of an RFC 3339 time from a host. A time with nanoseconds and an offset is shorter. */
const LONGEST_TIME = 40;
const rfc3339 = z.iso.datetime({ offset: true });
/**
 * Schema of a time. It accepts the texts that the API server accepts as times in the VM's spec and status. The letters T and Z can be in
 * lower case. A comma can stand before the fraction of a second, as in the output of `date -Ins`.
 */
const timeText = z
  .string()
  .max(LONGEST_TIME)
  .refine((text) => rfc3339.safeParse(text.toUpperCase().replace(',', '.')).success);

/** Returns the schema of a value that a host reports. A wrong value counts as absent, so that the rest of the report can still be read. */
function reported<T extends z.ZodType>(schema: T) {
  return schema.optional().catch(undefined);
}

/** Largest number of addresses of one guest that a host reports. */
export const GUEST_ADDRESSES_LIMIT = 16;
/** Longest name of a guest's operating system, in characters. */
export const GUEST_OS_LENGTH = 128;
/** Longest host name of a guest, in characters. DNS has the same limit. */
export const GUEST_HOST_NAME_LENGTH = 253;
/**
 * Schema of the name of a guest's operating system. The pattern refuses control characters and characters that change the text direction,
 * because the name is shown in the status.
 */
export const guestOSSchema = z
  .string()
  .min(1)
  .max(GUEST_OS_LENGTH)
  .regex(/^[\p{L}\p{N}\p{P}\p{S} ]+$/u);
/** Schema of a guest's host name. Underscores are allowed, because some systems allow them. */
export const guestHostNameSchema = z
  .string()
  .max(GUEST_HOST_NAME_LENGTH)
  .regex(/^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$/);

/** Facts that a guest reported about itself. They can be wrong, because Berth cannot check them. */
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
 * The report that the agent writes as JSON into the message of the Pod condition `berth.dev/Machine`. The report contains the hash of the
 * last `berth.dev/desired` that the machine fulfils. The operator needs this hash, because the Pod's generation does not change when an
 * annotation changes. The report also contains the finished actions, and facts for the VM's status.
 */
export const machineReportSchema = z.object({
  /** Hash of the annotation `berth.dev/desired` that the machine now fulfils: the first 16 hexadecimal digits of its SHA-256. */
  desiredHash: reported(z.string()),
  restartedAt: reported(timeText),
  revertedAt: reported(timeText),
  /**
   * Number of times that the VM's machine was stopped or suspended, or ended by itself and stayed off. A restart does not count. If the
   * number is larger than in an earlier report, the VM was stopped between the two reports, even if it runs again. The number is absent for
   * emulators.
   */
  stops: reported(z.number().int().min(0).max(Number.MAX_SAFE_INTEGER)),
  /** Values with which the running machine was started. They can differ from {@link Desired} until the next start. */
  cpu: reported(z.number().int()),
  memoryBytes: reported(z.number().int()),
  diskSizeBytes: reported(z.number().int()),
  /** Percentage from 0 to 100 of a pull or a clone that is under way. */
  progressPercent: reported(z.number().int().min(0).max(100)),
  /** Average speed of a pull in bytes per second. */
  bytesPerSecond: reported(z.number().int().min(0).max(Number.MAX_SAFE_INTEGER)),
  accelerator: reported(z.string()),
  imageDigest: reported(z.string()),
  /**
   * Whether the guest agent answers. Before the first answer, the field is false for a VM with the readiness type GuestAgent, and absent
   * for other VMs.
   */
  guestAgentConnected: reported(z.boolean()),
  /** Facts from the last answer of the guest agent since the machine started. */
  guest: reported(guestFactsSchema),
  /**
   * Host ports for the machine's `automaticPorts`, in the same order. The report contains only the numbers, because it must fit into the
   * message of a condition, which has at most 4,096 characters.
   */
  endpoints: reported(z.array(z.number().int().min(1).max(LAST_PORT)).max(MAXIMUM_AUTOMATIC_PORTS)),
  /**
   * Whether the guest has the display that the VM requests. Absent if the VM requests no display. Also absent while the host does not know
   * which display the guest has.
   */
  display: reported(z.object({ ready: z.boolean(), reason: z.string(), message: z.string() })),
  /** Whether the guest has the identity that its VM asks for. Absent if the hypervisor gives each guest exactly the identity of its VM. */
  identity: reported(z.object({ ready: z.boolean(), reason: z.string(), message: z.string() })),
  /** Whether the guest has the SSH keys of its VM. Absent if the VM has none, or if the guest reads them from its seed. */
  keys: reported(z.object({ ready: z.boolean(), reason: z.string(), message: z.string() })),
  /** Why the hypervisor cannot suspend the guest that runs, as a sentence for people. Absent if it can. */
  cannotSuspend: reported(z.string()),
  /** Address and port of an emulator's ADB. Absent for VMs, and while the host does not know the address. */
  adb: reported(z.object({ address: z.ipv4(), port: z.number().int().min(1).max(LAST_PORT) })),
  message: reported(z.string()),
});
export type MachineReport = z.infer<typeof machineReportSchema>;

/**
 * Memory in bytes that a hypervisor process needs in addition to the guest's memory. The operator adds this value to the Pod's request. In
 * a measurement, QEMU without graphics needed a little less than these 128 MiB.
 */
export const MACHINE_MEMORY_OVERHEAD_BYTES = 128 * 1024 * 1024;

/**
 * Limits of a document in an object of Kubernetes. All annotations together have at most 256 KiB, and a Secret has at most 1 MiB. The
 * longest honest documents, machines with all ports and many keys, have a few hundred items.
 */
const DOCUMENT_LIMITS: JsonLimits = { bytes: 1024 * 1024, items: 8_192 };

/**
 * Parses the JSON text of an annotation that the operator wrote, of a report that the agent wrote, or of a Secret. The result is undefined
 * if the text is absent, not JSON, or exceeds {@link DOCUMENT_LIMITS}. The caller must check the result with a schema.
 */
export function parseDocument(text: string | undefined): unknown {
  const isRefused = (error: unknown): boolean => error instanceof JsonError;
  return text === undefined ? undefined : undefinedIfSync(isRefused, () => parseJson(text, DOCUMENT_LIMITS));
}

/** Largest number of processors that a host reports. A VM has fewer. */
const LARGEST_CPU = 1_024;
/** Largest length of a Kubernetes uid, in characters. */
const UID_LENGTH = 64;
/** Largest length of the message about a snapshot that was not taken, in characters. Sixteen of them fit into the message of a condition. */
export const SNAPSHOT_MESSAGE_LENGTH = 120;

/** What a host reports about one snapshot: when it was taken, or why it was not. */
const snapshotReportSchema = z.object({
  uid: z.string().min(1).max(UID_LENGTH),
  takenAt: reported(timeText),
  /** As `consistency` of a saved disk. */
  consistency: reported(z.enum(['FileSystem', 'Crash', 'Stopped'])),
  /** Size of the disk in bytes. */
  sizeBytes: reported(z.number().int().min(0).max(Number.MAX_SAFE_INTEGER)),
  /** Space on the disk of the host that the snapshot needed when it was taken, in bytes. */
  storageBytes: reported(z.number().int().min(0).max(Number.MAX_SAFE_INTEGER)),
  /** The memory, if the snapshot has it. */
  memory: reported(
    z.object({
      cpu: z.number().int().min(1).max(LARGEST_CPU),
      bytes: z.number().int().min(0).max(Number.MAX_SAFE_INTEGER),
    }),
  ),
  failure: reported(z.object({ reason: z.string().max(UID_LENGTH), message: z.string() })),
});
export type SnapshotReport = z.infer<typeof snapshotReportSchema>;

/** The message of the Pod condition `berth.dev/Snapshots`: one report for each snapshot that the host knows. */
export const snapshotReportsSchema = z.array(snapshotReportSchema).max(SNAPSHOT_LIMIT);

const awaitedSchema = z.record(
  z.string(),
  z.object({
    /** Key of the VM: `namespace/name`. */
    vm: z.string().regex(/^[^/]+\/[^/]+$/),
    /** Time when the operator began to wait, in RFC 3339. */
    since: z.iso.datetime(),
  }),
);

/** VMs that are about to get a new Pod. The key is the uid of the VM. */
export type AwaitedVMs = Readonly<z.infer<typeof awaitedSchema>>;

/** Returns the awaited VMs of a host. The result is empty if the annotation is missing or cannot be read. */
export function awaitedOn(
  node: { metadata: { annotations?: Record<string, string> } } | undefined,
): AwaitedVMs {
  return awaitedSchema.safeParse(parseDocument(node?.metadata.annotations?.[AWAITED_ANNOTATION])).data ?? {};
}

/** Returns the value of the annotation. It is null, which removes the annotation, if no VM is awaited. */
export function awaitedText(awaited: AwaitedVMs): string | null {
  return Object.keys(awaited).length === 0 ? null : JSON.stringify(awaited);
}
