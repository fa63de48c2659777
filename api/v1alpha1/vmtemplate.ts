/** Template from which several VMs are made: labels, annotations and the spec of a VM, without the fields that only a single VM can have. */
import * as z from 'zod';
import { type DisplayDpiMaximum, VM_FIELD_ROWS } from './fields.ts';
import { GROUP, SCALE_SET_LABEL } from './names.ts';
import { type CelRule, documented, objectName } from './schema.ts';
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
/** Berth decides by its own labels and annotations, so a template cannot set them. The label of the scale set is for people, and for metrics. */
const MAY_SET_SCALE_SET: CelRule = {
  rule: `!self.exists(key, key.startsWith('${GROUP}/') && key != '${SCALE_SET_LABEL}')`,
  message: `keys that begin with ${GROUP}/ are not allowed, except ${SCALE_SET_LABEL}`,
};
const ONLY_FOREIGN_KEYS: CelRule = {
  rule: `!self.exists(key, key.startsWith('${GROUP}/'))`,
  message: `keys that begin with ${GROUP}/ are not allowed`,
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

/** Fields that RunnerSets set themselves, because each VM runs one job and then ends. */
const OF_RUNNERS: ReadonlySet<string> = new Set([
  'userData',
  'userDataSecretRef',
  'powerState',
  'restartPolicy',
  'activeDeadlineSeconds',
  'ttlSecondsAfterFinished',
]);

/** Spec of a VM as a template has it. */
export type VMTemplateSpec = Omit<
  VMSpec,
  'serialNumber' | 'restartRequestedAt' | 'revertRequestedAt' | 'revertTo'
>;

/** Spec of a VM as the template of a RunnerSet has it. */
export type RunnerTemplateSpec = Omit<
  VMTemplateSpec,
  | 'userData'
  | 'userDataSecretRef'
  | 'powerState'
  | 'restartPolicy'
  | 'activeDeadlineSeconds'
  | 'ttlSecondsAfterFinished'
>;

function values(description: string, keys: CelRule, length: number, pattern?: RegExp) {
  const value = z.string().max(length);
  return z
    .record(
      z.string(),
      (pattern === undefined ? value : value.regex(pattern)).meta({ description: 'Value.' }),
    )
    .meta({
      ...documented(`${description}, at most ${ENTRIES}.`, VALID_KEYS, keys),
      maxProperties: ENTRIES,
    });
}

function metadataSchema(keys: CelRule) {
  return z
    .object({
      labels: values(
        'Labels of each VM',
        keys,
        LABEL_LENGTH,
        /^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$/,
      ).optional(),
      annotations: values('Annotations of each VM', keys, ANNOTATION_LENGTH).optional(),
    })
    .meta({ description: 'Labels and annotations of each VM.' });
}

/** Returns the schemas of the fields of a VM without some of them. */
function shapeWithout(dpiMaximum: DisplayDpiMaximum, isLeftOut: (name: string) => boolean) {
  const shape: Readonly<Record<string, z.ZodType>> = vmShape(dpiMaximum);
  const names = VM_FIELD_ROWS.map(({ name }) => name).filter((name) => !isLeftOut(name));
  return {
    ...Object.fromEntries(names.map((name) => [name, shape[name]])),
    placement: templatePlacementSchema.optional(),
  };
}

/** Returns the schema of a template of VMs. `dpiMaximum` is the largest allowed DPI of the display. */
export function vmTemplateSchema(dpiMaximum: DisplayDpiMaximum) {
  const spec = z
    .object(shapeWithout(dpiMaximum, (name) => SINGLE.has(name)))
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
      metadata: metadataSchema(MAY_SET_SCALE_SET).optional(),
      spec: spec as unknown as z.ZodType<VMTemplateSpec>,
    })
    .meta({ description: 'Template of the VMs.' });
}

/**
 * Returns the schema of the template of a RunnerSet. `dpiMaximum` is the largest allowed DPI of the display. Its `configRef` has no
 * namespace: the program that makes the VMs may not read VMConfigs of other namespaces.
 */
export function runnerTemplateSchema(dpiMaximum: DisplayDpiMaximum) {
  const spec = z
    .object({
      ...shapeWithout(dpiMaximum, (name) => SINGLE.has(name) || OF_RUNNERS.has(name)),
      configRef: runnerConfigSchema(
        'VMConfig with values for fields that the template leaves out.',
      ).optional(),
    })
    .meta(
      documented(
        'Spec of each VM. Fields that only one VM can have are left out, and those that the RunnerSet sets: user data, power, restart and the end.',
        HAS_SOURCE,
        PORTS_NEED_NAT,
        NO_NODE_PORTS,
      ),
    );
  return z
    .object({
      metadata: metadataSchema(ONLY_FOREIGN_KEYS).optional(),
      spec: spec as unknown as z.ZodType<RunnerTemplateSpec>,
    })
    .meta({ description: 'Template of the VMs. A change holds for new VMs.' });
}

/** Returns the schema of the name of a VMConfig of runners. */
export function runnerConfigSchema(description: string) {
  return z.object({ name: objectName('Name of the VMConfig.') }).meta({
    description: `${description} A VMConfig in this namespace has precedence over one in platform-default.`,
  });
}
