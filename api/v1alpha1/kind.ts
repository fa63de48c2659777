import type * as z from 'zod';
import type { CelRule } from './schema.ts';

/**
 * A column of `kubectl get`. If `wide` is set, only `-o wide` shows the column. If `selectable` is set, `--field-selector` selects objects by
 * the field of the column.
 */
export interface PrinterColumn {
  name: string;
  type: 'string' | 'integer' | 'date';
  description: string;
  jsonPath: string;
  wide?: true;
  selectable?: true;
}

/** Content of the CustomResourceDefinition of a kind. */
export interface KindContent {
  shortNames: readonly string[];
  description: string;
  spec: z.ZodType;
  /** Schema of the status. It is absent if objects of the kind have no status, for example a VMConfig. */
  status?: z.ZodType;
  /**
   * CEL rules for the whole object. Rules about `self.metadata.name` must be here, because rules for parts of the object cannot read the
   * name.
   */
  rules: readonly CelRule[];
  columns: readonly PrinterColumn[];
  /** Whether `spec.replicas` can be changed by the subresource `scale`, for example by an autoscaler. */
  isScalable?: true;
}

/** A kind, with the names that the URLs and the objects of the kind contain. */
export interface KindDefinition extends KindContent {
  apiVersion: string;
  kind: string;
  plural: string;
  namespaced: boolean;
}

/**
 * Returns a CEL rule: the name of an object must have at most `maximum` characters. If `o.dots` is false, the rule also forbids dots. For
 * example, the name of a VM must not contain a dot. Its Pod has the same name, and only names of emulators' Pods contain a dot.
 */
export function nameRule(maximum: number, o: { dots: boolean }): CelRule {
  const noDots = o.dots ? '' : " && !self.metadata.name.contains('.')";
  const form = o.dots ? 'a DNS name' : 'a DNS label without dots';
  return {
    rule: `size(self.metadata.name) <= ${maximum}${noDots}`,
    message: `metadata.name must be ${form} of at most ${maximum} characters`,
    fieldPath: '.metadata.name',
  };
}

/** Returns a column that shows one field of the object. */
export function column(
  name: string,
  jsonPath: string,
  description: string,
  type: PrinterColumn['type'] = 'string',
): PrinterColumn {
  return { name, type, description, jsonPath };
}

export const PHASE_COLUMN = selectable(column('Phase', '.status.phase', 'Phase of the object.'));
export const AGE_COLUMN = column('Age', '.metadata.creationTimestamp', 'Time since creation.', 'date');

/** Returns a column that shows one field of a condition. */
export function conditionColumn(
  name: string,
  type: string,
  field: 'status' | 'reason' | 'message',
): PrinterColumn {
  const jsonPath = `.status.conditions[?(@.type=="${type}")].${field}`;
  return column(name, jsonPath, `The ${field} of the condition ${type}.`);
}

/** Returns a copy of the column, whose field a field selector can name. The field is a text or a number. */
export function selectable(plain: PrinterColumn): PrinterColumn {
  return { ...plain, selectable: true };
}

/** Returns a copy of the column. `kubectl get` shows this copy only with `-o wide`. */
export function wide(narrow: PrinterColumn): PrinterColumn {
  return { ...narrow, wide: true };
}

/** Metadata of an object, with only the fields that Berth reads or writes. */
export interface KindMetadata {
  name: string;
  namespace?: string;
  generateName?: string;
  uid?: string;
  resourceVersion?: string;
  generation?: number;
  creationTimestamp?: string;
  deletionTimestamp?: string;
  deletionGracePeriodSeconds?: number;
  labels?: Record<string, string>;
  annotations?: Record<string, string>;
  finalizers?: string[];
  ownerReferences?: OwnerReference[];
}

interface OwnerReference {
  apiVersion: string;
  kind: string;
  name: string;
  uid: string;
  controller?: boolean;
  blockOwnerDeletion?: boolean;
}

/** One object of a kind. Users write `spec`, and the operator writes `status`. A new object has no `status`. */
export interface ApiObject<Spec, Status> {
  apiVersion: string;
  kind: string;
  metadata: KindMetadata;
  spec: Spec;
  status?: Status;
}
