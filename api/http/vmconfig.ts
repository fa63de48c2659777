/** VM configs as the HTTP API shows and accepts them. */
import * as z from 'zod';
import type { DisplayDpiMaximum } from '../v1alpha1/fields.ts';
import { LABEL, objectName, text } from '../v1alpha1/schema.ts';
import {
  hasRequiredTag,
  isOneUserData,
  machineRequestFields,
  NEEDS_TAG,
  ONE_USER_DATA,
  shownMachineFields,
  vmRequestFields,
} from './vm.ts';

/** VM config. Optional fields are absent if the VMConfig does not set them. */
export const vmConfigItemSchema = z
  .object({
    name: z.string(),
    namespace: z
      .string()
      .optional()
      .meta({ description: 'Namespace of the VM config: the requested one or the default one.' }),
    ...shownMachineFields(),
    type: z
      .enum(['arm64', 'amd64'])
      .optional()
      .meta({ description: 'The same as `architecture`, for clients that read this name.' }),
  })
  .meta({ id: 'VMConfig', description: 'A VM config: values for VMs that name it.' });
export type VMConfigItem = z.infer<typeof vmConfigItemSchema>;

export const vmConfigListSchema = z
  .object({ items: z.array(vmConfigItemSchema) })
  .meta({ id: 'VMConfigList', description: 'VM configs.' });

/** Longest name of a VM config. The VMConfig kind has the same limit. */
const NAME_LENGTH = 50;

/** Returns the schema of the body for a new VM config. `dpiMaximum` is the largest allowed DPI of the display. */
export function vmConfigRequestSchema(dpiMaximum: DisplayDpiMaximum) {
  return z
    .object({
      name: objectName('Name of the VM config.').max(NAME_LENGTH),
      namespace: text(
        'Namespace of the VM config, as in the path. Clients that copy a VM config send it.',
        63,
        LABEL,
      ).optional(),
      ...machineRequestFields(dpiMaximum),
      systemSerial: vmRequestFields(dpiMaximum).systemSerial,
    })
    .refine(isOneUserData, ONE_USER_DATA)
    .refine(hasRequiredTag, NEEDS_TAG)
    .refine(({ image, iso }) => image !== undefined || iso !== undefined, {
      error: 'at least one of image and iso must be given',
      path: ['image'],
    })
    .refine(({ systemSerial }) => systemSerial === undefined, {
      error: 'belongs to a single VM. Give the serial number when you deploy the VM',
      path: ['systemSerial'],
    });
}
