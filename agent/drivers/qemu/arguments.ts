/** A machine as QEMU's command line. Nothing here is read by a shell; what comes from outside is quoted for QEMU's own parser. */
import { SERIAL_DESCRIPTOR } from '../../machines/logwriter.ts';
import type { RunAs } from '../../../base/exec.ts';
import type { GuestNetwork } from '../../network/network.ts';
import type { LaunchPlan } from '../driver.ts';
import { cpuModel, type Platform } from './platform.ts';
import { FILES, type MachineFile } from './state.ts';

const BYTES_PER_MEBIBYTE = 1024 * 1024;
/** What the guest's drive shows. */
export const DISK_NODE = 'disk';
const SERIAL_SET = 1;

export interface CommandLine {
  uid: string;
  plan: LaunchPlan;
  state: MachineFile;
  platform: Platform;
  cpu: number;
  memoryBytes: number;
  /** Given up rights for, after everything is opened; only root can. */
  runAs: RunAs | undefined;
  /** Waits for the memory of a suspended machine, and stays paused then. */
  incoming: boolean;
}

/** The argument that tells a machine's process from all others; it begins no option and names no path. */
export function processMark(uid: string): string {
  return `guest=berth-${uid}`;
}

export function commandLine(command: CommandLine): string[] {
  const { plan, platform } = command;
  return [
    ...options('-name', processMark(command.uid)),
    ...options('-nodefaults', '-no-user-config', '-display', 'none', '-msg', 'timestamp=on'),
    ...sandbox(command.runAs),
    ...options('-machine', machineOptions(command), '-cpu', cpuModel(platform), '-smp', String(command.cpu)),
    ...options('-m', `${Math.floor(command.memoryBytes / BYTES_PER_MEBIBYTE)}M`),
    ...identity(plan),
    // A guest that powers off leaves QEMU paused: so the reason is known even when no agent was there to hear of it.
    ...options('-no-shutdown', '-boot', 'strict=on', '-rtc', 'base=utc'),
    ...options('-qmp', `unix:${FILES.qmp},server=on,wait=off`),
    ...firmware(command),
    ...disk(command.state),
    ...iso(command),
    ...serial(),
    ...options('-device', 'virtio-serial-pci'),
    ...options('-chardev', `socket,id=agent,path=${FILES.guestAgent},server=on,wait=off`),
    ...options('-device', 'virtserialport,chardev=agent,name=org.qemu.guest_agent.0'),
    ...options('-device', 'virtio-rng-pci'),
    ...display(command),
    ...networkArguments(plan.network),
    ...(command.incoming ? ['-S', '-incoming', `unix:${FILES.migration}`] : []),
  ];
}

/** Giving up root needs setuid, which the sandbox would refuse; afterwards there is nothing left to elevate from. */
function sandbox(runAs: RunAs | undefined): string[] {
  const elevate = runAs === undefined ? 'deny' : 'allow';
  const rules = `on,obsolete=deny,elevateprivileges=${elevate},spawn=deny,resourcecontrol=deny`;
  return ['-sandbox', rules, ...(runAs === undefined ? [] : ['-runas', `${runAs.uid}:${runAs.gid}`])];
}

function machineOptions({ state, platform }: CommandLine): string {
  const parts = [state.machineType, `accel=${platform.accelerator}`];
  if (platform.architecture === 'arm64') {
    // The default interrupt controller serves eight processors only.
    parts.push(platform.accelerator === 'tcg' ? 'gic-version=3' : 'gic-version=max');
    parts.push('pflash0=firmware', 'pflash1=variables');
  }
  return parts.join(',');
}

function identity({
  guest: {
    vm: { hardware },
  },
}: LaunchPlan): string[] {
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
    ...blockdev({ 'node-name': DISK_NODE, discard: 'unmap', 'detect-zeroes': 'unmap', ...diskNode(state) }),
    ...options('-device', `virtio-blk-pci,drive=${DISK_NODE},bootindex=0`),
  ];
}

/**
 * The machine's disk, for QEMU's programs that run in its folder. The base is named here, format included, rather than
 * looked up: what a file says of itself is not to be trusted.
 */
export function diskNode(state: MachineFile): Record<string, unknown> {
  const backing = state.base === undefined ? null : baseNode(state.base);
  return { driver: 'qcow2', file: file(FILES.disk), backing };
}

function baseNode(base: { path: string; format: 'qcow2' | 'raw' }): Record<string, unknown> {
  const node = { driver: base.format, 'read-only': true, file: file(base.path) };
  return base.format === 'qcow2' ? { ...node, backing: null } : node;
}

function iso({ plan, platform }: CommandLine): string[] {
  if (plan.guest.iso === undefined) {
    return [];
  }
  const drive = blockdev({
    'node-name': 'iso',
    driver: 'raw',
    'read-only': true,
    file: file(plan.guest.iso),
  });
  if (platform.architecture === 'amd64') {
    return [...drive, '-device', 'ide-cd,drive=iso,bootindex=1'];
  }
  return [...drive, '-device', 'virtio-scsi-pci', '-device', 'scsi-cd,drive=iso,bootindex=1'];
}

/** To the log writer's pipe. QEMU may open a descriptor that it was given only as one of a set. */
function serial(): string[] {
  return [
    ...options('-add-fd', `fd=${SERIAL_DESCRIPTOR},set=${SERIAL_SET}`),
    ...options('-chardev', `file,id=serial,path=/dev/fdset/${SERIAL_SET},append=on`),
    ...options('-serial', 'chardev:serial'),
  ];
}

function display({ plan, platform }: CommandLine): string[] {
  if (!plan.guest.vm.vnc.enabled) {
    return [];
  }
  const size = plan.guest.vm.display;
  const resolution = size === undefined ? '' : `,xres=${size.width},yres=${size.height}`;
  const card = platform.architecture === 'amd64' ? `VGA${resolution}` : `virtio-gpu-pci${resolution}`;
  return [
    ...options('-vnc', `unix:${FILES.vnc}`, '-device', card),
    ...options('-device', 'qemu-xhci', '-device', 'usb-tablet', '-device', 'usb-kbd'),
  ];
}

/** The guest's network card has no boot ROM, since machines boot from disk. */
export function networkArguments(network: GuestNetwork): string[] {
  const card = `virtio-net-pci,netdev=net0,mac=${network.macAddress},romfile=`;
  return ['-netdev', backend(network), '-device', card];
}

function backend(network: GuestNetwork): string {
  if (network.kind === 'tap') {
    return `tap,id=net0,ifname=${network.device},script=no,downscript=no`;
  }
  const forwards = network.forwards.map(
    ({ protocol, hostAddress, hostPort, guestPort }) =>
      `hostfwd=${protocol.toLowerCase()}:${hostAddress}:${hostPort}-:${guestPort}`,
  );
  // IPv6 off: QEMU would offer an address that leads nowhere on most hosts.
  return ['user', 'id=net0', 'ipv6=off', ...forwards].join(',');
}

function blockdev(node: Record<string, unknown>): string[] {
  return ['-blockdev', JSON.stringify(node)];
}

function file(path: string): Record<string, unknown> {
  return { driver: 'file', filename: path };
}

/** Only so that options that belong together stand in one line. */
export function options(...parameters: string[]): string[] {
  return parameters;
}

/** QEMU's option parser ends a value at a comma; a doubled one is a comma. */
function quoted(text: string): string {
  return text.replaceAll(',', ',,');
}
