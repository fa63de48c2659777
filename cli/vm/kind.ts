/** Defines the columns of tables with VMs, and the names of the kind in messages. */
import type { VMItem } from '../../api/http/vm.ts';
import { vmItem } from '../../api/http/vmitem.ts';
import { VMS } from '../../api/v1alpha1/resources.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { Kind } from '../objects/kind.ts';
import type { Column } from '../output.ts';
import { age } from '../text.ts';

const COLUMNS: readonly Column<VM>[] = [
  { header: 'NAME', value: ({ metadata }) => metadata.name },
  ofItem('STATUS', ({ status }) => status),
  ofItem('NODE', ({ node }) => node),
  ofItem('IP', ({ ip }) => ip),
  ofItem('SSH', ({ ssh }) => ssh),
  ofItem('VNC', ({ vnc }) => vnc),
  ofItem('IMAGE', ({ image }) => image),
  { header: 'AGE', value: ({ metadata }) => age(metadata.creationTimestamp) },
  { header: 'PHASE', value: ({ status }) => status?.phase, isWide: true },
  { header: 'PROGRESS', value: ({ status }) => status?.progress, isWide: true },
  { ...ofItem('CPU', ({ cpu }) => cpu), isWide: true },
  { ...ofItem('MEMORY', ({ memory }) => memory), isWide: true },
  { ...ofItem('PORTS', ({ reservedPorts }) => reservedPorts), isWide: true },
  { ...ofItem('OWNER', ({ owner }) => owner), isWide: true },
];

export const VM_KIND: Kind<VM> = {
  type: VMS,
  noun: 'vm',
  plural: 'VMs',
  columns: COLUMNS,
  itemOf: (vm) => vmItem(vm),
  isShared: false,
};

/** Returns a column that shows one field of the VM, with the value that the HTTP API gives for this field. */
function ofItem(header: string, value: (item: VMItem) => string | number | undefined): Column<VM> {
  return { header, value: (vm) => value(vmItem(vm)) };
}
