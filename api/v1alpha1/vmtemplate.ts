/** Template from which several VMs are made: labels, annotations and the spec of a VM, without the fields that only a single VM can have. */
import * as z from 'zod';
import { type DisplayDpiMaximum, VM_FIELD_ROWS } from './fields.ts';
import { GROUP, SCALE_SET_LABEL } from './names.ts';
import { type CelRule, documented } from './schema.ts';
import { ONE_USER_DATA, PORTS_NEED_NAT, templatePlacementSchema, vmShape } from './template.ts';
import { HAS_SOURCE, type VMSpec } from './vm.ts';

/** Largest number of labels, and of annotations. It leaves room for those that Berth adds to each VM. */
const ENTRIES = 32;
/** Longest value of a label in Kubernetes, in characters. */
const LABEL_LENGTH = 63;
/** Longest value of an annotation of a template, in characters. */
const ANNOTATION_LENGTH = 4_096;
/** Pattern of the keys of labels and annotations in Kubernetes: an optional DNS prefix and a name of at most 63 characters. */
const KEY =
  '^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$';

const VALID_KEYS: CelRule = {
  rule: `self.all(key, size(key) <= 316 && key.matches('${KEY}'))`,
  message:
    'each key must be a name of at most 63 characters, optionally after a DNS name and a slash, for example team or example.com/team',
};
/** Berth decides by its own labels and annotations, so a template cannot set them. */
const FOREIGN_KEYS: CelRule = {
  rule: `!self.exists(key, key.startsWith('${GROUP}/') && key != '${SCALE_SET_LABEL}')`,
  message: `keys that begin with ${GROUP}/ are not allowed, except ${SCALE_SET_LABEL}`,
};
/** Several VMs are made from a template, and a port of a host belongs to one of them. */
const NO_NODE_PORTS: CelRule = {
  rule: "!has(self.ports) || self.ports.all(port, port.startsWith(':'))",
  message:
    'ports of a template must not name a port of the host, because several VMs are made from it. Write for example :22',
  fieldPath: '.ports',
};

/**
 * Fields of a VM that a template does not have: a value that only one VM can have, and times that are requests for a VM that exists.
 */
const SINGLE: ReadonlySet<string> = new Set([
  'serialNumber',
  'aliveUntil',
  'restartRequestedAt',
  'revertRequestedAt',
  'revertTo',
]);

/** Spec of a VM as a template has it. */
export type VMTemplateSpec = Omit<
  VMSpec,
  'serialNumber' | 'restartRequestedAt' | 'revertRequestedAt' | 'revertTo'
>;

function values(description: string, length: number, pattern?: RegExp) {
  const value = z.string().max(length);
  return z
    .record(
      z.string(),
      (pattern === undefined ? value : value.regex(pattern)).meta({ description: 'Value.' }),
    )
    .meta({
      ...documented(`${description}, at most ${ENTRIES}.`, VALID_KEYS, FOREIGN_KEYS),
      maxProperties: ENTRIES,
    });
}

/** Returns the schema of a template of VMs. `dpiMaximum` is the largest allowed DPI of the display. */
export function vmTemplateSchema(dpiMaximum: DisplayDpiMaximum) {
  const shape: Readonly<Record<string, z.ZodType>> = vmShape(dpiMaximum);
  const shared = VM_FIELD_ROWS.filter(({ name }) => !SINGLE.has(name)).map(({ name }) => [name, shape[name]]);
  const spec = z
    .object({ ...Object.fromEntries(shared), placement: templatePlacementSchema.optional() })
    .meta(
      documented(
        'Spec of each VM. It has the fields of a VM, but for the serial number, the name of a host, ports of the host, and requests.',
        HAS_SOURCE,
        PORTS_NEED_NAT,
        ONE_USER_DATA,
        NO_NODE_PORTS,
      ),
    );
  return z
    .object({
      metadata: z
        .object({
          labels: values(
            'Labels of each VM',
            LABEL_LENGTH,
            /^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$/,
          ).optional(),
          annotations: values('Annotations of each VM', ANNOTATION_LENGTH).optional(),
        })
        .meta({ description: 'Labels and annotations of each VM.' })
        .optional(),
      spec: spec as unknown as z.ZodType<VMTemplateSpec>,
    })
    .meta({ description: 'Template of the VMs.' });
}
