/**
 * The table of the fields of a VM's spec. Each field has one row. The row gives its values, and says who carries the field: the VMConfig, the
 * host's agent, the HTTP API and the command. The schemas of the kinds, the bodies and items of the HTTP API, the flags of the command, the
 * layers of a deployment and the document for the agent are made from these rows. This file imports no schema, because a schema would slow
 * the start of the `berth` command.
 */

import { OBJECT_NAME_LENGTH, SUBDOMAIN } from './names.ts';

/**
 * Largest allowed DPI (dots per inch) of a display. The administrator chooses it at installation. The other bounds of a display cannot be
 * chosen.
 */
export type DisplayDpiMaximum = 240 | 320;
export const DEFAULT_DISPLAY_DPI_MAXIMUM: DisplayDpiMaximum = 240;

/** Values of a field. */
type Values =
  /** An integer between two bounds, both included. The largest DPI is the only bound that an administrator chooses. */
  | { readonly type: 'integer'; readonly minimum: number; readonly maximum: number | 'displayDPIMaximum' }
  /** A text of 1 to `length` characters. */
  | { readonly type: 'text'; readonly length: number; readonly pattern?: RegExp }
  | { readonly type: 'choice'; readonly values: readonly [string, ...string[]] }
  /** The name of an Image or ISO, or an OCI reference. */
  | { readonly type: 'image' }
  /** An RFC 3339 time. */
  | { readonly type: 'time' }
  /** The memory of the machine, as a quantity. */
  | { readonly type: 'memory' }
  /** The size of a disk, as a quantity. */
  | { readonly type: 'disk' };

/** Who carries a field. */
interface Carriers {
  /** A user can change the field after the creation of the VM. */
  readonly isMutable?: true;
  /** A VMConfig has the field, too. It gives the value to VMs that leave the field out. */
  readonly isInConfig?: true;
  /**
   * The agent gets the field under the same name. A value that is fixed at the deployment is in the document `Machine`, and a value that
   * can change is in the document `Desired`. A field that can change and comes from a VMConfig is in both, and `Desired` has precedence.
   */
  readonly isForHost?: true;
  /** Value of the field if the guest has a display and nobody gives the value. Only fields of the display have it. */
  readonly displayDefault?: number;
}

/** Names of a field outside the API of Kubernetes. */
interface Names {
  /** Name of the field in the HTTP API, if its values there are the same. */
  readonly http?: string;
  /** Flag of the command and its text, for fields whose values there are the same. */
  readonly flag?: readonly [flag: string, text: string];
  /**
   * For a field that has no `http` or no `flag`: where users of the HTTP API and of the command find it, or the reason why it is not there.
   * The page of fields shows these texts (docs/reference/fields.md).
   */
  readonly elsewhere?: { readonly http?: string; readonly flag?: string };
}

type Described = Values & { readonly description: string };
/** A field whose schema is in vm.ts, because it has fields of its own or is a list. */
interface Structured {
  readonly type: 'structured';
}

/** One row of the table. */
export type VMField = (Described | Structured) & Carriers & Names;

const SECONDS_PER_DAY = 86_400;
const MAXIMUM_SECONDS = 2_147_483_647;

/** Reasons why a field is missing in the HTTP API and in the command. */
const NAMESPACE_CREDENTIALS = 'No: the registry credentials of the namespace are used';
const ONE_NETWORK = 'No: hosts support only one mode, and its ports are reserved or automatic';
const OF_THE_IMAGE = 'No: the Image or ISO says it';
const BY_CONFIG = 'No: a VM config made with kubectl has it';
const SNAPSHOTS_BY_KUBECTL = 'No: snapshots are objects of Kubernetes alone';
const ENDS_ONCE = 'No: their callers see the end of a guest and decide';

/** The fields of a VM's spec, in the order of the documentation. */
export const VM_FIELDS = {
  configRef: {
    type: 'structured',
    elsewhere: { http: '`vmConfig`', flag: '`--config`' },
  },
  image: {
    type: 'image',
    description: 'Image for the disk.',
    isInConfig: true,
    http: 'image',
    flag: ['-i, --image <image>', 'image for the disk'],
  },
  iso: {
    type: 'image',
    description:
      'ISO in a read-only drive. The machine boots from the ISO if its disk does not boot. Without an image, the disk is empty.',
    isInConfig: true,
    http: 'iso',
    flag: ['--iso <image>', 'ISO in a drive, from which the VM boots if its disk does not boot'],
  },
  imagePullSecrets: {
    type: 'structured',
    isInConfig: true,
    elsewhere: { http: NAMESPACE_CREDENTIALS, flag: NAMESPACE_CREDENTIALS },
  },
  architecture: {
    type: 'choice',
    description: 'Architecture of the processor: amd64 or arm64.',
    values: ['amd64', 'arm64'],
    isInConfig: true,
    isForHost: true,
    http: 'architecture',
    flag: ['--architecture <architecture>', 'architecture of the processor'],
  },
  os: {
    type: 'choice',
    description:
      'Operating system of the guest: MacOS, Linux or Windows. MacOS waits for a host that runs macOS guests. Windows runs as Linux does: its image must have virtio drivers, and no test of Berth runs it.',
    values: ['MacOS', 'Linux', 'Windows'],
    isInConfig: true,
    isForHost: true,
    elsewhere: { http: OF_THE_IMAGE, flag: OF_THE_IMAGE },
  },
  cpu: {
    type: 'integer',
    description: 'Number of virtual processors.',
    minimum: 1,
    maximum: 256,
    isMutable: true,
    isInConfig: true,
    http: 'cpu',
    flag: ['-c, --cpu <number>', 'number of virtual processors'],
  },
  memory: {
    type: 'memory',
    description: 'Memory of the machine, for example 4Gi.',
    isMutable: true,
    isInConfig: true,
    elsewhere: { http: '`memory`, in GiB' },
    flag: ['-m, --memory <size>', 'memory, for example 512Mi, 4Gi or 4G; a number without a unit is in GiB'],
  },
  diskSize: {
    type: 'disk',
    description: 'Size of the disk. The size of the image when omitted, and also if the image is larger.',
    isMutable: true,
    isInConfig: true,
    http: 'diskSize',
    flag: [
      '--disk-size <size>',
      'size of the disk, for example 120G or 100Gi; a number without a unit is in GB',
    ],
  },
  displayWidth: {
    type: 'integer',
    description:
      'Width of the display in pixels. The guest has a screen if at least one display field is set, even if VNC is off. If this field is omitted but another display field is set, the width is 1920.',
    minimum: 320,
    maximum: 3840,
    isInConfig: true,
    isForHost: true,
    displayDefault: 1920,
    http: 'displayWidth',
    flag: ['--display-width <pixels>', 'width of the display'],
  },
  displayHeight: {
    type: 'integer',
    description:
      'Height of the display in pixels. If this field is omitted but another display field is set, the height is 1080.',
    minimum: 480,
    maximum: 2160,
    isInConfig: true,
    isForHost: true,
    displayDefault: 1080,
    http: 'displayHeight',
    flag: ['--display-height <pixels>', 'height of the display'],
  },
  displayDPI: {
    type: 'integer',
    description:
      'Dots per inch of the display. The host uses this value to compute the physical size of the screen for the guest. If a host cannot set this value, the condition DisplayReady gives the reason.',
    minimum: 60,
    maximum: 'displayDPIMaximum',
    isInConfig: true,
    isForHost: true,
    displayDefault: 96,
    http: 'displayDPI',
    flag: ['--display-dpi <number>', 'dots per inch of the display'],
  },
  network: {
    type: 'structured',
    isInConfig: true,
    elsewhere: { http: ONE_NETWORK, flag: ONE_NETWORK },
  },
  ports: {
    type: 'structured',
    isInConfig: true,
    elsewhere: { http: '`reservedPorts`', flag: '`--reserve-port`' },
  },
  vnc: {
    type: 'structured',
    isInConfig: true,
    elsewhere: { http: '`vncConsole`, `vncHostPort`', flag: '`--vnc`' },
  },
  readiness: {
    type: 'structured',
    isInConfig: true,
    http: 'readiness',
    flag: [
      '--readiness <check>',
      'check for Ready: none, ssh, guest-agent, or the number of a TCP port that answers',
    ],
  },
  sshAuthorizedKeys: {
    type: 'structured',
    isInConfig: true,
    http: 'sshAuthorizedKeys',
    flag: ['--ssh-key <key>', 'public SSH key that may log in, as its text or a file (can be repeated)'],
  },
  hardwareIdentity: {
    type: 'choice',
    description:
      'Consistent: each VM that is deployed with this name in this namespace gets the same hardware UUID, serial number and MAC address. Dynamic: each deployed VM gets new values. A guest that starts from the memory of its image sees the UUID and the serial number of the saved VM until its next boot.',
    values: ['Consistent', 'Dynamic'],
    isInConfig: true,
    isForHost: true,
    elsewhere: { http: BY_CONFIG, flag: BY_CONFIG },
  },
  placement: {
    type: 'structured',
    isInConfig: true,
    elsewhere: {
      http: '`node`, `tag`, `tagRequired`, `scheduler`',
      flag: '`--node`, `--tag`, `--tag-required`, `--scheduler`',
    },
  },
  powerState: {
    type: 'choice',
    description: 'Desired state of the machine: Running (the default), Stopped or Suspended.',
    values: ['Running', 'Stopped', 'Suspended'],
    isMutable: true,
    isForHost: true,
    elsewhere: { http: '`POST …/vms/{name}/exec`', flag: '`berth vm stop`, `suspend`, `resume`, `start`' },
  },
  start: {
    type: 'choice',
    description:
      'Start of a machine with a new disk, if its image has memory. The disk is new at the first start and after a revert. Auto (the default): the machine starts from the memory if its host can do that, and boots otherwise. Cold: the machine boots.',
    values: ['Auto', 'Cold'],
    isInConfig: true,
    isForHost: true,
    http: 'start',
    flag: [
      '--start <way>',
      'first start of a VM whose image has memory: Auto uses the memory if possible, Cold boots',
    ],
  },
  restartPolicy: {
    type: 'choice',
    description:
      'Whether the machine starts again when the guest ends by itself: Never (the default), OnFailure or Always.',
    values: ['Never', 'OnFailure', 'Always'],
    isMutable: true,
    isForHost: true,
    elsewhere: { http: ENDS_ONCE, flag: ENDS_ONCE },
  },
  restartRequestedAt: {
    type: 'time',
    description: 'Each change of this time restarts the machine once.',
    isMutable: true,
    isForHost: true,
    elsewhere: { http: '`POST …/vms/{name}/exec`', flag: '`berth vm start`' },
  },
  revertRequestedAt: {
    type: 'time',
    description:
      'Each change of this time resets the disk once: to the snapshot in revertTo, else to its image.',
    isMutable: true,
    isForHost: true,
    elsewhere: { http: '`POST …/vms/{name}/exec`', flag: '`berth vm revert`' },
  },
  revertTo: {
    type: 'text',
    description:
      'Name of a VMSnapshot of this VM. revertRequestedAt then resets the disk to this snapshot instead of the image. It can be set, changed and removed only together with a new revertRequestedAt.',
    length: OBJECT_NAME_LENGTH,
    pattern: SUBDOMAIN,
    isMutable: true,
    elsewhere: { http: SNAPSHOTS_BY_KUBECTL, flag: '`berth vm revert`' },
  },
  serialNumber: {
    type: 'text',
    description: 'Serial number of the machine: 8 to 12 letters, digits and dashes.',
    length: 12,
    pattern: /^[-A-Za-z0-9]{8,12}$/,
    isForHost: true,
    http: 'systemSerial',
    flag: ['--system-serial <text>', 'serial number of the machine'],
  },
  guestMetadata: {
    type: 'structured',
    elsewhere: { http: '`vmMetadata`', flag: '`--metadata`' },
  },
  userData: {
    type: 'structured',
    isInConfig: true,
    http: 'userData',
    flag: [
      '--user-data <file>',
      'file with data for the first boot, for example a cloud-config; without passwords',
    ],
  },
  userDataSecretRef: {
    type: 'structured',
    isInConfig: true,
    http: 'userDataSecretRef',
    flag: [
      '--user-data-secret <name>',
      'Secret with data for the first boot, from: berth secret create NAME --from-file FILE',
    ],
  },
  deployTimeoutSeconds: {
    type: 'integer',
    description:
      'Time limit for the deployment in seconds, from the choice of a host until the phase Running. 600 when omitted.',
    minimum: 1,
    maximum: SECONDS_PER_DAY,
    elsewhere: { http: '`timeout`, in minutes', flag: '`--timeout`, in minutes' },
  },
  terminationGracePeriodSeconds: {
    type: 'integer',
    description:
      'Seconds that the guest gets for its shutdown when the VM is deleted. 0 when omitted. The machine then ends at once, because its disk is deleted too. A stop, and an eviction of the Pod, always give 30 seconds.',
    minimum: 0,
    maximum: SECONDS_PER_DAY,
    isMutable: true,
    http: 'terminationGracePeriodSeconds',
    flag: [
      '--termination-grace-period-seconds <seconds>',
      'seconds that the guest gets for its shutdown when the VM is deleted',
    ],
  },
  aliveUntil: {
    type: 'time',
    description:
      'Time after which the operator deletes the VM, whatever its phase. A program that needs the VM moves this time later before it is over. It can be set when the VM is created, and can later only be moved later or removed.',
    isMutable: true,
    http: 'aliveUntil',
    flag: ['--alive-until <time>', 'RFC 3339 time after which the VM is deleted'],
  },
  activeDeadlineSeconds: {
    type: 'integer',
    description:
      'Time limit in seconds, counted from the first run of the machine. After this time, the VM fails and its machine is removed.',
    minimum: 1,
    maximum: MAXIMUM_SECONDS,
    isMutable: true,
    http: 'activeDeadlineSeconds',
    flag: [
      '--active-deadline-seconds <seconds>',
      'seconds from the first run until the VM fails and its machine is removed',
    ],
  },
  ttlSecondsAfterFinished: {
    type: 'integer',
    description: 'Seconds from the end or failure of the VM until it is deleted.',
    minimum: 0,
    maximum: MAXIMUM_SECONDS,
    isMutable: true,
    http: 'ttlSecondsAfterFinished',
    flag: [
      '--ttl-seconds-after-finished <seconds>',
      'seconds from the end or failure of the VM until it is deleted',
    ],
  },
} as const satisfies Readonly<Record<string, VMField>>;

type Table = typeof VM_FIELDS;
export type VMFieldName = keyof Table;
/** Names of the fields whose rows have all of these properties. */
export type FieldsWith<Row> = {
  [Name in VMFieldName]: Table[Name] extends Row ? Name : never;
}[VMFieldName];
/** TypeScript type of the values of a field that is not structured. */
export type ValueOf<Name extends VMFieldName> = Table[Name] extends { type: 'integer' }
  ? number
  : Table[Name] extends { values: readonly (infer Word)[] }
    ? Word
    : Table[Name] extends { type: 'memory' | 'disk' }
      ? number | string
      : string;

/** The rows of the table in their order, each with the name of its field. */
export const VM_FIELD_ROWS: readonly (VMField & { readonly name: VMFieldName })[] = Object.entries<VMField>(
  VM_FIELDS,
).map(([name, row]) => ({ ...row, name: name as VMFieldName }));

/** Returns the smallest and the largest allowed value of an integer. */
export function boundsOf(
  { minimum, maximum }: VMField & { type: 'integer' },
  dpiMaximum: DisplayDpiMaximum,
): { minimum: number; maximum: number } {
  return { minimum, maximum: maximum === 'displayDPIMaximum' ? dpiMaximum : maximum };
}

/** Longest time in minutes for which a request or a command waits for a deployment. */
export const DEPLOY_MINUTES_MAXIMUM = 1_440;

/** Defaults of the fields of an emulator's spec. */
export const EMULATOR_DEFAULTS = {
  platform: 'android-36',
  device: 'pixel_9',
  imageType: 'google_apis',
  cpu: 2,
  memory: '4Gi',
  exposure: 'PairedVM',
  whenVMStops: 'Stop',
  deployTimeoutSeconds: 600,
} as const;
