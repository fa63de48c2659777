/** VMConfig: values that many VMs share. If a VM sets the same field, the value of the VM is used. */
import * as z from 'zod';
import type { DisplayDpiMaximum } from './fields.ts';
import { AGE_COLUMN, type ApiObject, column, type KindContent, nameRule, wide } from './kind.ts';
import { documented } from './schema.ts';
import { configShape, ONE_USER_DATA, PORTS_NEED_NAT } from './template.ts';

/** Returns the schema of a VMConfig's spec. `dpiMaximum` is the largest allowed DPI of the display. */
function vmConfigSpec(dpiMaximum: DisplayDpiMaximum) {
  return z
    .object(configShape(dpiMaximum))
    .meta(
      documented(
        'Values for VMs that name this VMConfig. If a VM sets the same field, the value of the VM is used.',
        PORTS_NEED_NAT,
        ONE_USER_DATA,
      ),
    );
}

export type VMConfigSpec = z.infer<ReturnType<typeof vmConfigSpec>>;
export type VMConfig = ApiObject<VMConfigSpec, never>;

/** Returns the VMConfig kind. `dpiMaximum` is the largest allowed DPI of the display. */
export function vmConfigKind(dpiMaximum: DisplayDpiMaximum): KindContent {
  return {
    shortNames: ['vmc'],
    description:
      'Values for many VMs. The operator reads a VMConfig once for each VM, when the VM is deployed.',
    spec: vmConfigSpec(dpiMaximum),
    rules: [nameRule(50, { dots: true })],
    columns: [
      column('Image', '.spec.image', 'Image of its VMs.'),
      column('ISO', '.spec.iso', 'ISO of its VMs.'),
      column('CPU', '.spec.cpu', 'Number of virtual processors of each VM.', 'integer'),
      column('Memory', '.spec.memory', 'Memory of its VMs.'),
      AGE_COLUMN,
      wide(column('OS', '.spec.os', 'Operating system.')),
      wide(column('Architecture', '.spec.architecture', 'Architecture.')),
    ],
  };
}
