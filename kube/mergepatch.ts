/** Computes JSON merge patches (RFC 7386) from two versions of an object. */

type Json = Record<string, unknown>;

/**
 * Returns the patch that turns `before` into `after`. The result is undefined if they are equal. A changed list is included as a whole, and
 * a removed field becomes null.
 */
export function mergeDiff(before: object | undefined, after: object): object | undefined {
  const from = (before ?? {}) as Json;
  const to = after as Json;
  const patch: Json = {};
  for (const key of Object.keys({ ...from, ...to })) {
    const change = difference(from[key], to[key]);
    if (change !== undefined) {
      patch[key] = change;
    }
  }
  return Object.keys(patch).length === 0 ? undefined : patch;
}

function difference(before: unknown, after: unknown): unknown {
  if (after === undefined) {
    return before === undefined ? undefined : null;
  }
  if (isObject(before) && isObject(after)) {
    return mergeDiff(before, after);
  }
  return equal(before, after) ? undefined : after;
}

function isObject(value: unknown): value is Json {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** Returns true if two JSON values are deeply equal. The order of keys does not matter, and an undefined value equals a missing key. */
export function equal(a: unknown, b: unknown): boolean {
  if (a === b) {
    return true;
  }
  if (Array.isArray(a) && Array.isArray(b)) {
    return a.length === b.length && a.every((item, index) => equal(item, b[index]));
  }
  if (!isObject(a) || !isObject(b)) {
    return false;
  }
  const isMissing = (key: string) => b[key] !== undefined && !Object.hasOwn(a, key);
  return Object.keys(a).every((key) => equal(a[key], b[key])) && !Object.keys(b).some(isMissing);
}
