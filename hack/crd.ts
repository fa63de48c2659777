/** Builds a CustomResourceDefinition from the zod schemas of a kind. */
import * as z from 'zod';
import { UNSEEN_STATUS } from '../api/v1alpha1/conditions.ts';
import type { KindDefinition, PrinterColumn } from '../api/v1alpha1/kind.ts';
import { API_VERSION, GROUP } from '../api/v1alpha1/names.ts';

interface JsonSchema {
  [key: string]: unknown;
}

/** Bounds that zod writes for an integer without a bound. */
const UNBOUNDED = [Number.MIN_SAFE_INTEGER, Number.MAX_SAFE_INTEGER];

/** Changes one schema into a structural schema of Kubernetes. */
function makeStructural(schema: JsonSchema): void {
  if (schema['x-kubernetes-int-or-string'] === true) {
    schema['anyOf'] = [{ type: 'integer' }, { type: 'string' }];
  }
  if (schema['format'] === 'date-time') {
    delete schema['pattern'];
  }
  for (const bound of ['minimum', 'maximum']) {
    if (UNBOUNDED.includes(Number(schema[bound]))) {
      delete schema[bound];
    }
  }
  if (schema['type'] === 'integer') {
    schema['format'] = 'int64';
  }
}

/** Returns the OpenAPI schema of a zod schema in the form that a CustomResourceDefinition accepts. */
function structuralSchema(schema: z.ZodType): JsonSchema {
  const { $schema: _, ...structural } = z.toJSONSchema(schema, {
    io: 'input',
    target: 'openapi-3.0',
    override: ({ jsonSchema }) => {
      makeStructural(jsonSchema);
    },
  });
  return structural;
}

function printerColumn(column: PrinterColumn): JsonSchema {
  const { wide, selectable: _, ...rest } = column;
  return wide === undefined ? rest : { ...rest, priority: 1 };
}

function selectableFields({ columns }: KindDefinition): JsonSchema {
  const fields = columns
    .filter(({ selectable }) => selectable === true)
    .map(({ jsonPath }) => ({ jsonPath }));
  return fields.length === 0 ? {} : { selectableFields: fields };
}

/** Fields of a kind that can be scaled. Autoscalers need the selector, although they count no Pods by it. */
const SCALE = {
  specReplicasPath: '.spec.replicas',
  statusReplicasPath: '.status.replicas',
  labelSelectorPath: '.status.selector',
};

/**
 * Longest name of an object in Kubernetes. The schema contains this limit, because the API server needs it to compute the cost of a rule
 * about names.
 */
const NAME_LENGTH = 253;

/** Returns the whole CustomResourceDefinition of a kind. */
export function customResourceDefinition(kind: KindDefinition): JsonSchema {
  return {
    apiVersion: 'apiextensions.k8s.io/v1',
    kind: 'CustomResourceDefinition',
    metadata: { name: `${kind.plural}.${GROUP}` },
    spec: {
      group: GROUP,
      scope: kind.namespaced ? 'Namespaced' : 'Cluster',
      names: {
        kind: kind.kind,
        listKind: `${kind.kind}List`,
        plural: kind.plural,
        singular: kind.kind.toLowerCase(),
        shortNames: kind.shortNames,
        categories: [GROUP.split('.')[0]],
      },
      versions: [
        {
          name: API_VERSION.split('/')[1],
          served: true,
          storage: true,
          ...(kind.status && { subresources: { status: {}, ...(kind.isScalable && { scale: SCALE }) } }),
          ...selectableFields(kind),
          additionalPrinterColumns: kind.columns.map(printerColumn),
          schema: { openAPIV3Schema: objectSchema(kind) },
        },
      ],
    },
  };
}

function objectSchema(kind: KindDefinition): JsonSchema {
  return {
    type: 'object',
    description: kind.description,
    required: ['spec'],
    ...(kind.rules.length === 0 ? {} : { 'x-kubernetes-validations': kind.rules }),
    properties: {
      apiVersion: { type: 'string', description: 'Version of the schema of this object.' },
      kind: { type: 'string', description: 'Kind of this object.' },
      metadata: { type: 'object', properties: { name: { type: 'string', maxLength: NAME_LENGTH } } },
      spec: structuralSchema(kind.spec),
      ...(kind.status && { status: statusSchema(kind.status) }),
    },
  };
}

/**
 * Returns the schema of a status. Nobody applies a part of a status, so its fields need no owners one by one. Their names were a third of the
 * bytes of a VM.
 */
function statusSchema(status: z.ZodType): JsonSchema {
  return { ...structuralSchema(status), default: UNSEEN_STATUS, 'x-kubernetes-map-type': 'atomic' };
}
