/**
 * Builds QEMU's command line for a machine. The command runs without a shell, so untrusted values are quoted only for QEMU's own parser.
 */
import type { Machine } from '../../../api/v1alpha1/machine.ts';
import { VNC_FIRST_PORT } from '../../../api/v1alpha1/ports.ts';
import type { RunAs } from '../../../base/exec.ts';
import type { GuestNetwork } from '../../network/network.ts';
import type { VmGuest, VmLaunchPlan } from '../driver.ts';
import { screenArguments } from './displaycard.ts';
import { cpuModel, type GuestPlatform } from './platform.ts';
import { diskFile, FILES, type Layer, layersFrom, type MachineFile } from './state.ts';

const BYTES_PER_MEBIBYTE = 1024 * 1024;
/** Name of QEMU's character device that is connected to the guest agent's port. */
export const AGENT_CHARDEV = 'agent';
/** Name of the block node in QEMU that reads and writes the machine's disk, until a snapshot puts another one above it. */
export const DISK_NODE = 'disk';
/** Options that keep the disk and its layers small: what the guest frees or fills with zeros becomes a hole, also in a merge. */
const DISK_OPTIONS = { discard: 'unmap', 'detect-zeroes': 'unmap' } as const;
/** Name of QEMU's network to which the guest's network card is connected. */
export const NETWORK = 'net0';
const VNC_SECRET = 'vnc-password';
/**
 * Options that take the sleep state S3 away from a guest. Desktop systems sleep by themselves after some idle time. A sleeping guest answers
 * nobody, and ignores its power button. Mainboards for ARM guests have no S3.
 */
const NO_SLEEP = ['-global', 'ICH9-LPC.disable_s3=1'];

/** Part of a launch plan from which the devices of a machine come. */
export interface DevicePlan extends Pick<VmLaunchPlan, 'network' | 'vnc' | 'runAs'> {
  guest: { vm: Pick<Machine, 'hardware' | 'vnc'>; iso: VmGuest['iso'] };
}

export interface CommandLine {
  uid: string;
  plan: DevicePlan;
  state: MachineFile;
  platform: GuestPlatform;
  cpu: number;
  memoryBytes: number;
  /** Linux user to which QEMU changes after it has opened its files and sockets. Undefined if the agent is not root. */
  runAs: RunAs | undefined;
  /** Whether QEMU starts without running the guest, and waits until the agent sends the memory of the suspended machine. */
  incoming: boolean;
  /**
   * File with the guest's memory. If it is shared, the guest's writes change the file. Otherwise, they stay in the process. Undefined if the
   * memory has no file.
   */
  memory?: { path: string; isShared: boolean } | undefined;
}

/**
 * Returns the argument of QEMU by which the agent finds a machine's process among all processes. The agent compares whole arguments, so an
 * argument of another program that only contains the uid does not match.
 */
export function processMark(uid: string): string {
  return `guest=berth-${uid}`;
}

export function commandLine(command: CommandLine): string[] {
  const { plan, platform } = command;
  return [
    ...options('-name', processMark(command.uid)),
    ...options('-nodefaults', '-no-user-config', '-msg', 'timestamp=on'),
    ...sandbox(command),
    ...options('-machine', machineOptions(command), '-cpu', cpuModel(platform), '-smp', String(command.cpu)),
    ...(platform.architecture === 'amd64' ? NO_SLEEP : []),
    ...options('-m', `${Math.floor(command.memoryBytes / BYTES_PER_MEBIBYTE)}M`),
    ...memoryFile(command),
    ...identity(plan),
    ...generation(command.state.generation),
    // With -no-shutdown QEMU stays paused after the guest has powered off. So an agent that was not running at that moment can find the
    // reason for the machine's end later.
    ...options('-no-shutdown', '-boot', bootOptions(platform), '-rtc', 'base=utc'),
    ...options('-qmp', `unix:${FILES.qmp},server=on,wait=off`),
    ...firmware(command),
    ...disk(command.state),
    ...iso(command),
    ...serial(),
    ...options('-device', 'virtio-serial-pci'),
    ...options('-chardev', `socket,id=${AGENT_CHARDEV},path=${FILES.guestAgent},server=on,wait=off`),
    ...options('-device', `virtserialport,chardev=${AGENT_CHARDEV},name=org.qemu.guest_agent.0`),
    ...options('-device', 'virtio-rng-pci'),
    ...screenAndNetwork(command),
    ...seed(command.state.launched?.seed),
    ...(command.incoming ? ['-S', '-incoming', `unix:${FILES.migration}`] : []),
  ];
}

/**
 * Returns the options of QEMU's sandbox. If `runAs` is set, the sandbox allows setuid, because QEMU needs it to change from root to that
 * user. After this change, QEMU has no right to change its user again.
 */
function sandbox({ runAs, platform }: CommandLine): string[] {
  const elevate = runAs === undefined ? 'deny' : 'allow';
  const rules = `on,obsolete=deny,elevateprivileges=${elevate},spawn=deny,resourcecontrol=deny`;
  return ['-sandbox', rules, ...(runAs === undefined ? [] : changeOfUser(runAs, platform))];
}

function changeOfUser({ uid, gid }: RunAs, { runWith }: GuestPlatform): string[] {
  return runWith ? options('-run-with', `user=${uid}:${gid}`) : options('-runas', `${uid}:${gid}`);
}

function machineOptions({ state, platform, memory }: CommandLine): string {
  // If QEMU crashes, the host can keep its core dump for weeks. The dump must not contain the memory of the guest, which holds secrets of the
  // tenant and can be larger than the free disk.
  const parts = [state.machineType, `accel=${platform.accelerator}`, 'dump-guest-core=off'];
  if (platform.architecture === 'arm64') {
    // These options choose another interrupt controller, because QEMU's default for ARM serves only eight processors.
    parts.push(platform.accelerator === 'tcg' ? 'gic-version=3' : 'gic-version=max');
    parts.push('pflash0=firmware', 'pflash1=variables');
  }
  if (memory !== undefined) {
    parts.push(`memory-backend=${MEMORY_BLOCKS[platform.architecture]}`);
  }
  return parts.join(',');
}

/**
 * QEMU's names for the memory of its boards. A machine whose memory is a file needs the same name, because the state of a machine names its
 * memory.
 */
const MEMORY_BLOCKS = { amd64: 'pc.ram', arm64: 'mach-virt.ram' } as const;

/**
 * Returns the options of the file with the guest's memory. QEMU opens the file read-only if it can, so that a guest that takes over its QEMU
 * cannot change the memory of later machines.
 */
function memoryFile({ memory, memoryBytes, platform }: CommandLine): string[] {
  if (memory === undefined) {
    return [];
  }
  const fields = [
    'memory-backend-file',
    `id=${MEMORY_BLOCKS[platform.architecture]}`,
    `size=${memoryBytes}`,
    `mem-path=${quoted(memory.path)}`,
    `share=${memory.isShared ? 'on' : 'off'}`,
    'dump=off',
    'x-use-canonical-path-for-ramblock-id=off',
    ...(platform.readOnlyMemory && !memory.isShared ? ['readonly=on', 'rom=off'] : []),
  ];
  return options('-object', fields.join(','));
}

/** Returns the device that tells the guest its generation ID. */
function generation(id: string | undefined): string[] {
  return id === undefined ? [] : options('-device', `vmgenid,guid=${id}`);
}

/**
 * Returns the options of the boot. By default, the UEFI firmware waits for a key for five seconds. It boots at once when a menu is asked for
 * that waits no time.
 */
function bootOptions({ firmware }: GuestPlatform): string {
  return firmware === undefined ? 'strict=on' : 'strict=on,menu=on,splash-time=0';
}

function identity({
  guest: {
    vm: { hardware },
  },
}: DevicePlan): string[] {
  const uuid = quoted(hardware.uuid);
  const fields = [
    'type=1',
    'manufacturer=Berth',
    'product=Machine',
    `serial=${quoted(hardware.serialNumber)}`,
    `uuid=${uuid}`,
  ];
  return ['-uuid', uuid, '-smbios', fields.join(',')];
}

function firmware({ platform }: CommandLine): string[] {
  if (platform.firmware === undefined) {
    return [];
  }
  return [
    ...blockdev({
      'node-name': 'firmware',
      driver: 'raw',
      'read-only': true,
      file: file(platform.firmware.code),
    }),
    ...blockdev({ 'node-name': 'variables', driver: 'raw', file: file(FILES.variables) }),
  ];
}

function disk(state: MachineFile): string[] {
  if (state.diskBytes === undefined) {
    return [];
  }
  return [
    ...blockdev({ 'node-name': DISK_NODE, ...DISK_OPTIONS, ...diskNode(state) }),
    ...options('-device', `virtio-blk-pci,drive=${DISK_NODE},bootindex=0`),
  ];
}

/**
 * Returns the description of the machine's disk as a block node of QEMU. A program that gets this description must run in the machine's
 * folder, because the path of the disk is relative to this folder. The description names the base image and its format. Otherwise QEMU
 * would use the names in the disk file, which cannot be trusted.
 */
export function diskNode(state: DiskState): Record<string, unknown> {
  if (state.isRaw === true) {
    return { driver: 'raw', file: file(FILES.rawDisk) };
  }
  return { driver: 'qcow2', file: file(diskFile(state)), backing: layerNode(state, state.parent) };
}

type DiskState = Pick<MachineFile, 'base' | 'disk' | 'isRaw' | 'parent' | 'layers'>;

/** Does the same for the layer with this id; for the image if `id` is undefined. Returns null if there is no image either. */
function layerNode(state: DiskState, id: string | undefined): Record<string, unknown> | null {
  const image = state.base === undefined ? null : baseNode(state.base);
  return layersFrom(state, id).reduceRight<Record<string, unknown> | null>(
    (backing, layer: Layer) => ({
      'node-name': layerNodeName(layer.id),
      ...DISK_OPTIONS,
      driver: 'qcow2',
      'read-only': true,
      file: file(layer.file),
      backing,
    }),
    image,
  );
}

/** Returns the name of QEMU's block node with a layer that was frozen before the process started. */
export function layerNodeName(id: string): string {
  return `layer-${id}`;
}

/** Returns the description of a new file of the disk, as {@link disk} describes it, but without the layers under it. */
export function overlayNode(name: string, fileName: string): Record<string, unknown> {
  return { 'node-name': name, ...DISK_OPTIONS, driver: 'qcow2', file: file(fileName), backing: null };
}

function baseNode(base: { path: string; format: 'qcow2' | 'raw' }): Record<string, unknown> {
  const node = { driver: base.format, 'read-only': true, file: file(base.path) };
  return base.format === 'qcow2' ? { ...node, backing: null } : node;
}

function iso({ plan, platform }: CommandLine): string[] {
  if (plan.guest.iso === undefined) {
    return [];
  }
  const drive = blockdev({ 'node-name': 'iso', ...baseNode(plan.guest.iso) });
  if (platform.architecture === 'amd64') {
    return [...drive, '-device', 'ide-cd,drive=iso,bootindex=1'];
  }
  return [...drive, '-device', 'virtio-scsi-pci', '-device', 'scsi-cd,drive=iso,bootindex=1'];
}

/** Returns the options of the serial port, which is connected to the standard input and the standard output of QEMU. */
function serial(): string[] {
  return options('-chardev', 'stdio,id=serial,signal=off', '-serial', 'chardev:serial');
}

/**
 * Returns the options of screen and network. Guests name their network cards by PCI addresses, which depend on the order of the devices. In
 * early releases of the agent, a machine without VNC had no screen. If a machine without VNC has a screen now, the screen comes after the
 * network card. So the address of the network card stays the same.
 */
function screenAndNetwork({ plan, state, platform }: CommandLine): string[] {
  const isServed = plan.guest.vm.vnc.enabled;
  const screen = screenArguments(state.launched?.screen, isServed, platform);
  const network = networkArguments(plan.network);
  return isServed ? [...screen, ...network, ...vncOnHost(plan.vnc)] : [...network, ...screen];
}

/**
 * Returns the options of VNC on a port of the host. The password comes from a file, because all users of the host can see the arguments of
 * a process.
 */
function vncOnHost(vnc: VmLaunchPlan['vnc']): string[] {
  if (vnc === undefined) {
    return [];
  }
  const server = `${vnc.address}:${vnc.port - VNC_FIRST_PORT},password-secret=${VNC_SECRET}`;
  return options('-object', `secret,id=${VNC_SECRET},file=${quoted(vnc.passwordFile)}`, '-vnc', server);
}

/**
 * Returns the options of the machine's seed. The seed is a disk. It is the last device, so that the PCI addresses of all other devices are
 * the same with and without a seed. Guests name their network cards by these addresses.
 */
function seed(files: NonNullable<MachineFile['launched']>['seed']): string[] {
  if (files === undefined) {
    return [];
  }
  const node = { 'node-name': 'seed', driver: 'raw', 'read-only': true, file: file(files.disk) };
  const { ignition } = files;
  return [
    ...blockdev(node),
    ...options('-device', 'virtio-blk-pci,drive=seed'),
    ...(ignition === undefined ? [] : options('-fw_cfg', `name=opt/com.coreos/config,file=${ignition}`)),
  ];
}

/** Returns the options of the guest's network card. The card has no boot ROM, because machines boot from disk. */
export function networkArguments(network: GuestNetwork): string[] {
  const card = `virtio-net-pci,netdev=${NETWORK},mac=${network.macAddress},romfile=`;
  return ['-netdev', backend(network), '-device', card];
}

function backend(network: GuestNetwork): string {
  if (network.kind === 'tap') {
    return `tap,id=${NETWORK},ifname=${network.device},script=no,downscript=no`;
  }
  const { hostAddress, ports } = network;
  const forwards = ports.map(
    ({ protocol, hostPort, guestPort }) =>
      `hostfwd=${protocol.toLowerCase()}:${hostAddress}:${hostPort}-:${guestPort}`,
  );
  // IPv6 is off. Otherwise QEMU would give the guest an IPv6 address that does not work on most hosts.
  return ['user', `id=${NETWORK}`, 'ipv6=off', ...forwards].join(',');
}

function blockdev(node: Record<string, unknown>): string[] {
  return ['-blockdev', JSON.stringify(node)];
}

function file(path: string): Record<string, unknown> {
  return { driver: 'file', filename: path };
}

/**
 * Returns the given options as an array. In a long array, the code formatter would put each option on its own line. A call of this function
 * keeps options that belong together on one line.
 */
function options(...parameters: string[]): string[] {
  return parameters;
}

/** Quotes a value for QEMU's option parser. In this parser, a comma ends a value. So each comma inside the value is doubled. */
function quoted(text: string): string {
  return text.replaceAll(',', ',,');
}
