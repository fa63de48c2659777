import type * as z from 'zod';
import { API_VERSION } from './names.ts';
import type { CelRule } from './schema.ts';

/** A column of `kubectl get`; `wide` ones show with `-o wide` only. */
export interface PrinterColumn {
  name: string;
  type: 'string' | 'integer' | 'date';
  description: string;
  jsonPath: string;
  wide?: true;
}

/** Everything that a CustomResourceDefinition says of a kind. */
export interface KindDefinition {
  kind: string;
  plural: string;
  shortNames: readonly string[];
  namespaced: boolean;
  description: string;
  spec: z.ZodType;
  status: z.ZodType;
  /** Rules on the whole object: they may read `self.metadata.name`. */
  rules: readonly CelRule[];
  columns: readonly PrinterColumn[];
}

/** What a client needs to address a kind. */
export interface KindResource {
  readonly apiVersion: string;
  readonly kind: string;
  readonly plural: string;
  readonly namespaced: boolean;
}

export function kindResource(kind: string, plural: string, namespaced = true): KindResource {
  return { apiVersion: API_VERSION, kind, plural, namespaced };
}

/** Rule on an object's name: at most `maximum` characters and, where its Pod takes the name, no dots. */
export function nameRule(maximum: number, o: { dots: boolean }): CelRule {
  const noDots = o.dots ? '' : " && !self.metadata.name.contains('.')";
  const form = o.dots ? 'a DNS name' : 'a DNS label without dots';
  return {
    rule: `size(self.metadata.name) <= ${maximum}${noDots}`,
    message: `metadata.name must be ${form} of at most ${maximum} characters`,
    fieldPath: '.metadata.name',
  };
}

export const PHASE_COLUMN: PrinterColumn = {
  name: 'Phase',
  type: 'string',
  description: 'Where the object is in its life.',
  jsonPath: '.status.phase',
};
export const AGE_COLUMN: PrinterColumn = {
  name: 'Age',
  type: 'date',
  description: 'Time since creation.',
  jsonPath: '.metadata.creationTimestamp',
};

/** A column showing one field of a condition. */
export function conditionColumn(
  name: string,
  type: string,
  field: 'status' | 'reason' | 'message',
): PrinterColumn {
  return {
    name,
    type: 'string',
    description: `The ${field} of the condition ${type}.`,
    jsonPath: `.status.conditions[?(@.type=="${type}")].${field}`,
  };
}

/** The same column, for `-o wide` only. */
export function wide(column: PrinterColumn): PrinterColumn {
  return { ...column, wide: true };
}
