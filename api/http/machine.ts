/** Fields of a machine that the requests for a VM and for a VM config share. */
import * as z from 'zod';
import {
  boundsOf,
  type DisplayDpiMaximum,
  type FieldsWith,
  VM_FIELD_ROWS,
  type VM_FIELDS,
  type ValueOf,
} from '../v1alpha1/fields.ts';
import { objectName, text } from '../v1alpha1/schema.ts';
import { TAG, TAG_LENGTH } from '../v1alpha1/tag.ts';
import { fieldSchema } from '../v1alpha1/template.ts';
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

type HttpField = FieldsWith<{ http: string }>;
type ConfigField = HttpField & FieldsWith<{ isInConfig: true }>;
/** Fields of a request for these fields of a VM. */
type HttpShape<Name extends HttpField> = {
  [Field in Name as (typeof VM_FIELDS)[Field]['http']]: z.ZodOptional<z.ZodType<ValueOf<Field>>>;
};

/**
 * Returns the schemas of the fields that have the same values in a request and in a VM: those that a VMConfig has, too, or those of the VM
 * alone.
 */
function sameFields(isInConfig: true | undefined, dpiMaximum: DisplayDpiMaximum): object {
  const rows = VM_FIELD_ROWS.filter((row) => row.http !== undefined && row.isInConfig === isInConfig);
  return Object.fromEntries(rows.map((row) => [row.http, valueSchema(row, dpiMaximum).optional()]));
}

/** Returns the schemas of the fields that have the same values in the item of a VM config and in the VMConfig. */
export function configItemFields() {
  const rows = VM_FIELD_ROWS.filter(({ http, isInConfig }) => http !== undefined && isInConfig);
  return Object.fromEntries(
    rows.map(({ http, type }) => [http, (type === 'integer' ? z.int() : z.string()).optional()]),
  ) as unknown as HttpShape<ConfigField>;
}

function valueSchema(row: (typeof VM_FIELD_ROWS)[number], dpiMaximum: DisplayDpiMaximum): z.ZodType {
  if (row.type !== 'integer') {
    return fieldSchema(row, dpiMaximum);
  }
  const { minimum, maximum } = boundsOf(row, dpiMaximum);
  return whole(minimum, maximum).meta({ description: row.description });
}

/** Returns the schemas of the fields that belong to a single VM, and have the same values in a request and in the VM. */
export function vmRequestFields(dpiMaximum: DisplayDpiMaximum) {
  return sameFields(undefined, dpiMaximum) as HttpShape<Exclude<HttpField, ConfigField>>;
}

/** Returns the schemas of the machine's fields in a request. `dpiMaximum` is the largest allowed DPI of the display. */
export function machineRequestFields(dpiMaximum: DisplayDpiMaximum) {
  return {
    ...(sameFields(true, dpiMaximum) as HttpShape<ConfigField>),
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
    vncConsole: z
      .boolean()
      .optional()
      .meta({ description: 'Whether the display is served over VNC. True when omitted.' }),
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
