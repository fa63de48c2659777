/**
 * Functions that make parts of the kinds' schemas. Zod has neither CEL rules nor list types. Therefore `.meta()` contains them, with the
 * field names of a CustomResourceDefinition. The TypeScript types, the CRD and the HTTP API all come from the same schema.
 */
import * as z from 'zod';
import { OBJECT_NAME_LENGTH, SUBDOMAIN } from './names.ts';
import { parseBytes, parseQuantity, type Quantity, QUANTITY_LENGTH } from './quantity.ts';

/** One CEL rule of a CustomResourceDefinition (`x-kubernetes-validations`). */
export interface CelRule {
  rule: string;
  /**
   * Message if the rule refuses a value. The API server requires this text if `messageExpression` is not set. If `messageExpression` is set
   * but fails, the API server uses this text, too.
   */
  message: string;
  messageExpression?: string;
  /** JSON path of the field that the message names. The path is relative to the field that has the rule. */
  fieldPath?: string;
  reason?: 'FieldValueForbidden' | 'FieldValueRequired';
}

/** Returns the argument of `.meta()` that adds a description and CEL rules. */
export function documented(description: string, ...rules: CelRule[]): Record<string, unknown> {
  return rules.length === 0 ? { description } : { description, 'x-kubernetes-validations': rules };
}

/**
 * Returns the schema of a text of 1 to `maximum` characters. `pattern` is optional. A text that is too long is refused before the pattern
 * is used.
 */
export function text(description: string, maximum: number, pattern?: RegExp) {
  const bounded = z.string().min(1).max(maximum, { abort: true });
  return (pattern === undefined ? bounded : bounded.regex(pattern)).meta({ description });
}

/** Returns the schema of a text that the operator reports. The text can be empty. */
export function report(description: string, maximum: number) {
  return z.string().max(maximum).meta({ description });
}

/** Returns the schema of an integer from `minimum` to `maximum`, both included. The error message names both bounds. */
export function integer(description: string, minimum: number, maximum: number) {
  return z
    .int()
    .min(minimum)
    .max(maximum)
    .meta(
      documented(`${description} From ${minimum} to ${maximum}.`, {
        rule: `self >= ${minimum} && self <= ${maximum}`,
        message: `must be from ${minimum} to ${maximum}`,
      }),
    );
}

/** Returns the schema of an integer that the operator reports. It has no message for users, because no user sets the value. */
export function count(description: string, maximum = 2_147_483_647) {
  return z.int().min(0).max(maximum).meta({ description });
}

/** Largest length of an RFC 3339 time, in characters. `2006-01-02T15:04:05.999999999+07:00` has 35. */
const TIMESTAMP_LENGTH = 40;

/** Returns the schema of an RFC 3339 time. */
export function timestamp(description: string) {
  return z.iso.datetime({ offset: true }).max(TIMESTAMP_LENGTH).meta({ description });
}

/** Returns the schema of a text that must be one of `words`. */
export function choice<const Values extends readonly [string, ...string[]]>(
  description: string,
  values: Values,
) {
  return z.enum(values).meta({ description });
}

/** Pattern of RFC 1123 labels. The pattern does not check their length, which is at most 63 characters. */
export const LABEL = /^[a-z0-9]([-a-z0-9]*[a-z0-9])?$/;

/** Pattern of the names of VMs that people choose. It does not check their length. */
export const VM_NAME = /^[a-z]([-a-z0-9]*[a-z0-9])?$/;

/** Returns the schema of the name of another object. */
export function objectName(description: string) {
  return text(description, OBJECT_NAME_LENGTH, SUBDOMAIN);
}

/** Returns the schema of the name of a namespace. */
export function namespaceName(description: string) {
  return text(description, 63, LABEL);
}

/** Pattern of SHA-256 checksums. */
export const SHA256 = /^[a-f0-9]{64}$/;

/** Returns the schema of a SHA-256 checksum in lower-case hexadecimal. */
export function sha256(description: string) {
  return text(description, 64, SHA256);
}

/** Returns a CEL expression that is true if a field was neither set, changed nor removed. */
export function isSame(field: string): string {
  return `has(self.${field}) ? has(oldSelf.${field}) && self.${field} == oldSelf.${field} : !has(oldSelf.${field})`;
}

/**
 * Returns rules for `spec`, one for each of `fields`. A rule forbids every change of its field after creation. If the field was not set, it
 * must stay unset.
 */
export function immutable(...fields: string[]): CelRule[] {
  return fields.map((field) => ({
    rule: isSame(field),
    message: `${field} is immutable: it cannot be set, changed or removed after creation`,
    reason: 'FieldValueForbidden',
    fieldPath: `.${field}`,
  }));
}

/** Returns a CEL rule for an object with these `fields`: exactly one of them must be set. */
export function oneOf(fields: readonly string[]): CelRule {
  const set = fields.map((field) => `has(self.${field})`).join(', ');
  const names = `${fields.slice(0, -1).join(', ')} and ${fields.at(-1)}`;
  return {
    rule: `[${set}].filter(x, x).size() == 1`,
    message: `exactly one of ${names} must be set`,
  };
}

function isWithin(quantity: Quantity, minimum: bigint, maximum: bigint): boolean {
  const bytes = parseBytes(String(quantity));
  return bytes !== undefined && bytes >= minimum && bytes <= maximum;
}

/** Returns the schema of a quantity of bytes from `minimum` to `maximum`, both included. `name` is the field's name in error messages. */
function quantity(name: string, description: string, minimum: string, maximum: string) {
  const lowest = parseQuantity(minimum);
  const highest = parseQuantity(maximum);
  const bounds = `must be a quantity from ${minimum} to ${maximum}, for example 4Gi`;
  return z
    .union([z.int(), z.string().max(QUANTITY_LENGTH)])
    .refine((value) => isWithin(value, lowest, highest), { error: bounds })
    .meta({
      ...documented(`${description} A quantity from ${minimum} to ${maximum}.`, {
        rule: `isQuantity(string(self)) && quantity(string(self)).compareTo(quantity('${minimum}')) >= 0 && quantity(string(self)).compareTo(quantity('${maximum}')) <= 0`,
        message: `${name} ${bounds}`,
        messageExpression: `'${name} ' + string(self) + ' is not allowed: it ${bounds}'`,
      }),
      maxLength: QUANTITY_LENGTH,
      'x-kubernetes-int-or-string': true,
    });
}

/** Returns a CEL expression that is true if the quantity in `field` is at least the quantity in `other`. */
export function atLeast(field: string, other: string): string {
  return `quantity(string(${field})).compareTo(quantity(string(${other}))) >= 0`;
}

/** Returns the schema of a machine's memory. No guest starts with less than 64Mi, and no host has more than 16Ti. */
export function memoryQuantity(description = 'Memory of the machine, for example 4Gi.', minimum = '64Mi') {
  return quantity('memory', description, minimum, '16Ti');
}

/**
 * Returns the schema of a disk's size. The maximum is one pebibyte, because a JavaScript number can represent every number of bytes up to
 * this value.
 */
export function diskQuantity(name: string, description: string) {
  return quantity(name, description, '1Mi', '1Pi');
}
