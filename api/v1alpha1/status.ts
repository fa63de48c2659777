/**
 * Cuts the values of a status to the limits of its schema before the operator writes the status. Otherwise the API server could refuse the
 * status because of a text that is too long.
 */
import * as z from 'zod';

/** The fields of a JSON schema that limit a value. */
interface BoundedSchema {
  maxLength?: number;
  maxItems?: number;
  maxProperties?: number;
  properties?: Record<string, BoundedSchema>;
  items?: BoundedSchema;
  additionalProperties?: BoundedSchema | boolean;
}

const UNBOUNDED: BoundedSchema = {};

const bounds = new WeakMap<z.ZodType, BoundedSchema>();

function boundsOf(schema: z.ZodType): BoundedSchema {
  const known = bounds.get(schema) ?? (z.toJSONSchema(schema, { io: 'input' }) as BoundedSchema);
  bounds.set(schema, known);
  return known;
}

/**
 * Returns a copy of `value` that fits the bounds of its schema. If a text is too long, its end is kept, because the last lines of a log
 * contain the reason. If a list or map is too long, its start is kept. Undefined fields are left out. `schema` is the status schema of a
 * kind, or a part of that schema.
 */
export function boundStatus<Schema extends z.ZodType>(
  schema: Schema,
  value: z.input<Schema>,
): z.input<Schema> {
  return bound(boundsOf(schema), value) as z.input<Schema>;
}

function bound(schema: BoundedSchema, value: unknown): unknown {
  if (typeof value === 'string') {
    return keepEnd(value, schema.maxLength);
  }
  if (Array.isArray(value)) {
    return value.slice(0, schema.maxItems).map((item) => bound(schema.items ?? UNBOUNDED, item));
  }
  if (typeof value !== 'object' || value === null) {
    return value;
  }
  return boundFields(schema, value as Record<string, unknown>);
}

/**
 * Returns a copy of an object with each field bounded. This function uses a loop, because a loop takes only a fifth of the time that
 * `Object.entries` and `Object.fromEntries` take. The time matters, because every reconciliation computes a whole status.
 */
function boundFields(schema: BoundedSchema, value: Record<string, unknown>): Record<string, unknown> {
  const bounded: Record<string, unknown> = {};
  let left = schema.maxProperties ?? Number.POSITIVE_INFINITY;
  for (const key of Object.keys(value)) {
    const field = value[key];
    if (field !== undefined && left > 0) {
      bounded[key] = bound(fieldSchema(schema, key), field);
      left -= 1;
    }
  }
  return bounded;
}

function fieldSchema(schema: BoundedSchema, key: string): BoundedSchema {
  const { properties, additionalProperties: further } = schema;
  return properties?.[key] ?? (typeof further === 'object' ? further : UNBOUNDED);
}

/**
 * Returns the end of a text: at most `maximum` UTF-16 units. A character of two units is never split. The API server counts characters and
 * not units. A text never has more characters than units, so the result is within the API server's limit.
 */
export function keepEnd(text: string, maximum: number | undefined): string {
  if (maximum === undefined || text.length <= maximum) {
    return text;
  }
  const start = text.length - maximum;
  const unit = text.charCodeAt(start);
  const isSecondHalf = unit >= 0xdc_00 && unit <= 0xdf_ff;
  return text.slice(isSecondHalf ? start + 1 : start);
}
