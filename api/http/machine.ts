/** Fields of a machine that the requests for a VM and for a VM config share. */
import * as z from 'zod';
import { type DisplayDpiMaximum, displayBounds } from '../v1alpha1/display.ts';
import { objectName, text } from '../v1alpha1/schema.ts';
import { TAG, TAG_LENGTH } from '../v1alpha1/tag.ts';
import { imageName } from '../v1alpha1/template.ts';
import { decimal, whole } from './fields.ts';

/** Bounds of memory in GiB. The minimum is 0.1, because clients offer steps of 0.1 GiB. The kinds VM and VMConfig have the same maximum. */
const MEMORY = { minimum: 0.1, maximum: 16_384 };

/**
 * The only fields that are accepted without effect. Clients of another platform send them even if their users chose nothing: the Jenkins
 * plug-in sends `netBoost` with each VM and VM config, and its older templates send `legacyIO` with each VM. On that platform, the fields
 * choose drivers of the hypervisor, which the hosts of Berth choose by themselves.
 */
const WITHOUT_EFFECT = {
  netBoost: z.boolean().optional().meta({ description: 'Without effect.' }),
  legacyIO: z.boolean().optional().meta({ description: 'Without effect.' }),
};

/** Returns the schemas of the machine's fields in a request. `dpiMaximum` is the largest allowed DPI of the display. */
export function machineRequestFields(dpiMaximum: DisplayDpiMaximum) {
  const { displayWidth, displayHeight, displayDPI } = displayBounds(dpiMaximum);
  return {
    image: imageName('Image for the disk.').optional(),
    iso: imageName('ISO for booting.').optional(),
    cpu: whole(1, 256).optional().meta({ description: 'Number of virtual processors.' }),
    memory: decimal(MEMORY.minimum, MEMORY.maximum).optional().meta({ description: 'Memory in GiB.' }),
    node: objectName('The only allowed host.').optional(),
    tag: text('Tag of the wanted hosts.', TAG_LENGTH, TAG).optional(),
    tagRequired: z
      .boolean()
      .optional()
      .meta({ description: 'Whether only hosts with the tag are used. False when omitted.' }),
    scheduler: z.enum(['default', 'default-scheduler', 'most-allocated']).optional().meta({
      description:
        'Rule for the choice of the host. `default` and `default-scheduler` spread the machines over the hosts. `most-allocated` fills one host after the other.',
    }),
    displayWidth: whole(displayWidth.minimum, displayWidth.maximum)
      .optional()
      .meta({ description: 'Width of the display in pixels.' }),
    displayHeight: whole(displayHeight.minimum, displayHeight.maximum)
      .optional()
      .meta({ description: 'Height of the display in pixels.' }),
    displayDPI: whole(displayDPI.minimum, displayDPI.maximum)
      .optional()
      .meta({ description: 'Dots per inch of the display.' }),
    vncConsole: z
      .boolean()
      .optional()
      .meta({ description: 'Whether the display is served over VNC. True when omitted.' }),
    systemSerial: text('Serial number of the machine.', 12, /^[-A-Za-z0-9]{8,12}$/).optional(),
    ...WITHOUT_EFFECT,
    gpuPassthrough: z
      .literal(false, { error: 'GPU passthrough is not offered' })
      .optional()
      .meta({ description: 'Only false is accepted.' }),
  };
}

/** TypeScript type of the fields of a request. */
export type MachineRequest = z.infer<z.ZodObject<ReturnType<typeof machineRequestFields>>>;

/** Returns false if a request names both an image and an ISO. */
export function isOneSource({ image, iso }: Pick<MachineRequest, 'image' | 'iso'>): boolean {
  return image === undefined || iso === undefined;
}

export const ONE_SOURCE = { error: 'at most one of image and iso may be given', path: ['iso'] };

/** Returns false if a request asks for hosts with its tag only, but names no tag. */
export function hasRequiredTag({ tag, tagRequired }: Pick<MachineRequest, 'tag' | 'tagRequired'>): boolean {
  return tagRequired !== true || tag !== undefined;
}

export const NEEDS_TAG = { error: 'may be true only if tag is given', path: ['tagRequired'] };
