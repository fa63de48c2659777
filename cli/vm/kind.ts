/** Defines the columns of tables with VMs, and the names of the kind in messages. */
import type { VMItem } from '../../api/http/vm.ts';
import { vmItem } from '../../api/http/vmitem.ts';
import { conditionOf, notReadyMessage, notReadyReason } from '../../api/http/conditions.ts';
import { vncSecretName } from '../../api/v1alpha1/names.ts';
import { formatSize } from '../../api/v1alpha1/quantity.ts';
import { VMS } from '../../api/v1alpha1/resources.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { NounKind, PageLine } from '../objects/kind.ts';
import type { Column } from '../output.ts';
import { age } from '../text.ts';

const COLUMNS: readonly Column<VM>[] = [
  { header: 'NAME', value: ({ metadata }) => metadata.name },
  ofItem('STATUS', ({ status }) => status),
  { header: 'READY', value: (vm) => conditionOf(vm, 'Ready')?.status },
  { header: 'REASON', value: (vm) => vm.status?.failure?.reason ?? notReadyReason(vm) },
  ofItem('NODE', ({ node }) => node),
  ofItem('IP', ({ ip }) => ip),
  ofItem('SSH', ({ ssh }) => ssh),
  ofItem('VNC', ({ vnc }) => vnc),
  ofItem('IMAGE', ({ image }) => image),
  { header: 'AGE', value: ({ metadata }) => age(metadata.creationTimestamp) },
  { header: 'PHASE', value: ({ status }) => status?.phase, isWide: true },
  { header: 'PROGRESS', value: ({ status }) => status?.progress, isWide: true },
  { ...ofItem('CPU', ({ cpu }) => cpu), isWide: true },
  {
    header: 'MEMORY',
    value: ({ spec, status }) => formatSize(status?.resources?.memory ?? spec.memory),
    isWide: true,
  },
  { ...ofItem('PORTS', ({ reservedPorts }) => reservedPorts), isWide: true },
  { ...ofItem('OWNER', ({ owner }) => owner), isWide: true },
  { header: 'MESSAGE', value: readyMessage, isWide: true },
];

export const VM_KIND: NounKind<VM> = {
  type: VMS,
  noun: 'vm',
  plural: 'VMs',
  columns: COLUMNS,
  pageOf,
  itemOf: (vm) => vmItem(vm),
  graceSeconds: ({ spec }) => spec.terminationGracePeriodSeconds ?? 0,
  isShared: false,
};

/** Returns a column that shows one field of the VM, with the value that the HTTP API gives for this field. */
function ofItem(header: string, value: (item: VMItem) => string | number | undefined): Column<VM> {
  return { header, value: (vm) => value(vmItem(vm)) };
}

/** Returns the reason why the VM failed or is not Ready. The result is undefined if the VM is Ready. */
function readyMessage(vm: VM): string | undefined {
  return vm.status?.failure?.message ?? notReadyMessage(vm);
}

/** Returns what users ask about a VM: whether they can use it, where it is, how to log in, and what it was made from. */
function pageOf(vm: VM, command: string): PageLine[] {
  const { metadata, status = {} } = vm;
  const item = vmItem(vm);
  const ready = conditionOf(vm, 'Ready');
  return [
    ['Name', metadata.name],
    ['Namespace', metadata.namespace],
    ['Phase', status.phase ?? 'Pending'],
    ['Progress', status.progress],
    ['Ready', ready && [ready.status, ready.message].filter(Boolean).join(': ')],
    ['Failure', status.failure?.message],
    ['Age', age(metadata.creationTimestamp)],
    ['Alive until', vm.spec.aliveUntil],
    ['Host', [item.node, item.ip && `at ${item.ip}`].filter(Boolean).join(' ')],
    ...accessLines(vm, command),
    ['Image', [item.image, status.image?.digest].filter(Boolean).join(' ')],
    ['ISO', vm.spec.image === undefined ? undefined : vm.spec.iso],
    ['Config', vm.spec.configRef?.name],
    ...sizeLines(vm),
    ['Created by', item.owner],
  ];
}

/** Returns how to reach the guest and its screen. A port of the host is shown if the host has reserved one. */
function accessLines(vm: VM, command: string): PageLine[] {
  const { name } = vm.metadata;
  const { ip, ssh, screenshare, reservedPorts } = vmItem(vm);
  const port = ssh === undefined ? '' : `, or ssh -p ${ssh} USER@${ip}`;
  return [
    ['Login', `${command} vm ssh ${name}${port}`],
    ['Ports', reservedPorts],
    ['Guest', guestFacts(vm)],
    ['Screen', vm.spec.vnc?.enabled === false ? 'off' : `${command} vm vnc ${name}${viewerAddress(vm)}`],
    ['Screen sharing', screenshare === undefined ? undefined : `${ip}:${screenshare}`],
    ['Display', conditionOf(vm, 'DisplayReady')?.message],
  ];
}

function guestFacts({ status: { guest, addresses = [] } = {} }: VM): string {
  return [guest?.hostName, guest?.os, ...addresses].filter(Boolean).join(', ');
}

/** Returns the end of a sentence: the port of the host for the screen, if there is one. */
function viewerAddress(vm: VM): string {
  const { ip, vnc } = vmItem(vm);
  const secret = vncSecretName(vm.metadata.name);
  return vnc === undefined ? '' : `, or ${ip}:${vnc} with the password in Secret ${secret}`;
}

function sizeLines({ spec, status = {} }: VM): PageLine[] {
  const { cpu = spec.cpu, memory = spec.memory, diskSize = spec.diskSize } = status.resources ?? {};
  return [
    ['CPU', cpu],
    ['Memory', formatSize(memory)],
    ['Disk', formatSize(diskSize)],
    ['Architecture', spec.architecture],
  ];
}
