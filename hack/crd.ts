/** Makes a CustomResourceDefinition out of a kind's zod schemas. */
import * as z from 'zod';
import type { KindDefinition, PrinterColumn } from '../api/v1alpha1/kind.ts';
import { API_VERSION, GROUP } from '../api/v1alpha1/names.ts';

interface JsonSchema {
  [key: string]: unknown;
}

/** zod's way of saying that an integer has no bound. */
const UNBOUNDED = [Number.MIN_SAFE_INTEGER, Number.MAX_SAFE_INTEGER];

/** Fits one schema to what a structural schema of Kubernetes may say. */
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

/** The OpenAPI schema of a zod schema, as a CustomResourceDefinition takes it. */
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
  const { wide, ...rest } = column;
  return wide === undefined ? rest : { ...rest, priority: 1 };
}

/** Longest name of an object that Kubernetes stores. Said in the schema, so that the cost of a rule on names is known. */
const NAME_LENGTH = 253;

/** The whole CustomResourceDefinition of a kind. */
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
          subresources: { status: {} },
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
      status: structuralSchema(kind.status),
    },
  };
}
