/** Defines the columns of tables with VM configs, and the names of the kind in messages. */
import type { VMConfigItem } from '../../api/http/vmconfig.ts';
import { vmConfigItem } from '../../api/http/vmitem.ts';
import { VM_CONFIGS } from '../../api/v1alpha1/resources.ts';
import type { VMConfig } from '../../api/v1alpha1/vmconfig.ts';
import type { Kind } from '../objects/kind.ts';
import type { Column } from '../output.ts';

export const VM_CONFIG_KIND: Kind<VMConfig> = {
  type: VM_CONFIGS,
  noun: 'vmconfig',
  plural: 'VM configs',
  columns: [
    ofItem('NAME', ({ name }) => name),
    ofItem('IMAGE', ({ image, iso }) => image ?? iso),
    ofItem('CPU', ({ cpu }) => cpu),
    ofItem('MEMORY', ({ memory }) => (memory === undefined ? undefined : `${memory}Gi`)),
    ofItem('TYPE', ({ type }) => type),
    ofItem('TAG', ({ tag }) => tag),
    { ...ofItem('NAMESPACE', ({ namespace }) => namespace), isWide: true },
    { ...ofItem('NODE', ({ node }) => node), isWide: true },
    { ...ofItem('SCHEDULER', ({ scheduler }) => scheduler), isWide: true },
  ],
  itemOf: vmConfigItem,
  isShared: true,
};

function ofItem(
  header: string,
  value: (item: VMConfigItem) => string | number | undefined,
): Column<VMConfig> {
  return { header, value: (config) => value(vmConfigItem(config)) };
}
