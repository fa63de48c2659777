/**
 * Building blocks of the kinds' schemas. What zod cannot say (CEL rules, list types) travels in `.meta()` under the
 * names that a CustomResourceDefinition uses, so that one schema gives the types, the CRD and the HTTP API.
 */
import * as z from 'zod';

/** One CEL rule of a CustomResourceDefinition (`x-kubernetes-validations`). */
export interface CelRule {
  rule: string;
  /** Required by the API server unless `messageExpression` is given; also used where that expression fails. */
  message: string;
  messageExpression?: string;
  /** JSON path of the field the refusal names, relative to where the rule stands. */
  fieldPath?: string;
  reason?: 'FieldValueForbidden' | 'FieldValueRequired';
}

/** Description and CEL rules in the form that `.meta()` takes. */
export function documented(description: string, ...rules: CelRule[]): Record<string, unknown> {
  return rules.length === 0 ? { description } : { description, 'x-kubernetes-validations': rules };
}

/** A text of 1 to `maximum` characters, with an optional pattern. */
export function text(description: string, maximum: number, pattern?: RegExp) {
  const bounded = z.string().min(1).max(maximum);
  return (pattern === undefined ? bounded : bounded.regex(pattern)).meta({ description });
}

/** A text that may be empty, for what the operator reports. */
export function report(description: string, maximum: number) {
  return z.string().max(maximum).meta({ description });
}

/** An integer from `minimum` to `maximum`, both included; the refusal says both bounds. */
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

/** An integer that the operator reports, so without a refusal to explain. */
export function count(description: string, maximum = 2_147_483_647) {
  return z.int().min(0).max(maximum).meta({ description });
}

/** Longest RFC 3339 time accepted: `2006-01-02T15:04:05.999999999+07:00` has 35 characters. */
const TIMESTAMP_LENGTH = 40;

/** An RFC 3339 time. */
export function timestamp(description: string) {
  return z.iso.datetime({ offset: true }).max(TIMESTAMP_LENGTH).meta({ description });
}

/** One of a few words. */
export function choice<const Words extends readonly [string, ...string[]]>(
  description: string,
  words: Words,
) {
  return z.enum(words).meta({ description });
}

/** Names that Kubernetes gives to most objects: RFC 1123 subdomains of at most 253 characters. */
const SUBDOMAIN = /^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$/;
/** RFC 1123 labels, of at most 63 characters. */
export const LABEL = /^[a-z0-9]([-a-z0-9]*[a-z0-9])?$/;

/** The name of another object. */
export function objectName(description: string) {
  return text(description, 253, SUBDOMAIN);
}

/** The name of a namespace. */
export function namespaceName(description: string) {
  return text(description, 63, LABEL);
}

/** A SHA-256 checksum in lower-case hexadecimal. */
export function sha256(description: string) {
  return text(description, 64, /^[a-f0-9]{64}$/);
}

/** Rules for `spec` that keep each of `fields` as it was when the object was made, unset included. */
export function immutable(...fields: string[]): CelRule[] {
  return fields.map((field) => ({
    rule: `has(self.${field}) == has(oldSelf.${field}) && (!has(self.${field}) || self.${field} == oldSelf.${field})`,
    message: `${field} is immutable: it cannot be set, changed or removed after creation`,
    reason: 'FieldValueForbidden',
    fieldPath: `.${field}`,
  }));
}

/** Rule for `spec`: at most one of `fields` is set, or exactly one when `required`. */
export function oneOf(fields: readonly string[], required: boolean): CelRule {
  const set = fields.map((field) => `has(self.${field})`).join(', ');
  const names = `${fields.slice(0, -1).join(', ')} and ${fields.at(-1)}`;
  return {
    rule: `[${set}].filter(x, x).size() ${required ? '==' : '<='} 1`,
    message: `${required ? 'exactly' : 'at most'} one of ${names} may be set`,
  };
}
