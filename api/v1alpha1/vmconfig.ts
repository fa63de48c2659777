/** VMConfig: values that many VMs share. If a VM sets a field too, the value of the VM is used. */
import * as z from 'zod';
import type { DisplayDpiMaximum } from './display.ts';
import { AGE_COLUMN, column, type KindDefinition, kindResource, nameRule, wide } from './kind.ts';
import type { ApiObject } from './metadata.ts';
import { documented } from './schema.ts';
import { IMAGE_OR_ISO, machineFields, placementSchema, PORTS_NEED_NAT } from './template.ts';

/** Returns the schema of a VMConfig's spec. The display's DPI may be at most `dpiMaximum`. */
function vmConfigSpec(dpiMaximum: DisplayDpiMaximum) {
  return z
    .object({ ...machineFields(dpiMaximum), placement: placementSchema.optional() })
    .meta(
      documented(
        'Values for VMs that name this VMConfig. The values of a VM win.',
        IMAGE_OR_ISO,
        PORTS_NEED_NAT,
      ),
    );
}

export type VMConfigSpec = z.infer<ReturnType<typeof vmConfigSpec>>;
export type VMConfig = ApiObject<VMConfigSpec, never>;

export const VM_CONFIG_RESOURCE = kindResource('VMConfig', 'vmconfigs');

/** Returns the VMConfig kind. The display's DPI may be at most `dpiMaximum`. */
export function vmConfigKind(dpiMaximum: DisplayDpiMaximum): KindDefinition {
  return {
    ...VM_CONFIG_RESOURCE,
    shortNames: ['vmc'],
    description: 'Values for many VMs. It is read once, when a VM is deployed.',
    spec: vmConfigSpec(dpiMaximum),
    rules: [nameRule(50, { dots: true })],
    columns: [
      column('Image', '.spec.image', 'Image of its VMs.'),
      column('ISO', '.spec.iso', 'ISO of its VMs.'),
      column('CPU', '.spec.cpu', 'Processors of its VMs.', 'integer'),
      column('Memory', '.spec.memory', 'Memory of its VMs.'),
      AGE_COLUMN,
      wide(column('OS', '.spec.os', 'Operating system.')),
      wide(column('Architecture', '.spec.architecture', 'Architecture.')),
    ],
  };
}
