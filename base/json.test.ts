import * as fc from 'fast-check';
import { expect, test } from 'vitest';
import { JSON_DEPTH, JsonCheck, JsonError, type JsonLimits, parseJson } from './json.ts';

const WIDE: JsonLimits = { bytes: 1024 * 1024, items: 100_000 };

/** Cuts the bytes at these places, which can be equal or after the end. */
function cut(bytes: Buffer, places: readonly number[]): Buffer[] {
  const ends = [...places.toSorted((a, b) => a - b), bytes.length];
  return ends.map((end, index) => bytes.subarray(ends[index - 1] ?? 0, end));
}

function outcome(read: () => unknown): { value: unknown } | { fault: string } {
  try {
    return { value: read() };
  } catch (error) {
    return { fault: error instanceof JsonError ? error.fault : String(error) };
  }
}

function inPieces(pieces: readonly Buffer[], limits: JsonLimits): unknown {
  const check = new JsonCheck(limits);
  for (const piece of pieces) {
    check.push(piece);
  }
  return check.parse(Buffer.concat(pieces));
}

/** Counts without a scanner: parses the text, and counts what the result contains. It is for texts without equal keys. */
function measure(value: unknown): { items: number; depth: number } {
  if (typeof value !== 'object' || value === null) {
    return { items: 0, depth: 0 };
  }
  const children = Object.values(value).map(measure);
  return {
    items: Math.max(1, children.length) + children.reduce((sum, { items }) => sum + items, 0),
    depth: 1 + Math.max(0, ...children.map(({ depth }) => depth)),
  };
}

const places = fc.array(fc.nat(400), { maxLength: 12 });
const limits = fc.record({ bytes: fc.integer({ min: 0, max: 400 }), items: fc.nat(60) });
/** Texts with many quotes, backslashes and long strings, and values around the largest depth. */
const values = fc.oneof(
  fc.jsonValue({ maxDepth: 6, noUnicodeString: false }),
  fc.string({ unit: fc.constantFrom('"', '\\', '[', ',', 'é', '\ud83d', 'a'), maxLength: 200 }),
  fc.dictionary(
    fc.constantFrom('__proto__', 'constructor', 'a"', 'b\\', '7', ''),
    fc.jsonValue({ maxDepth: 3 }),
  ),
  fc.integer({ min: JSON_DEPTH - 2, max: JSON_DEPTH + 2 }).map((depth) => {
    let value: unknown = 'end';
    for (let level = 0; level < depth; level += 1) {
      value = level % 2 === 0 ? [value] : { a: value };
    }
    return value;
  }),
);

test('any value in any pieces is parsed as JSON.parse does, or refused by the limit that it exceeds', () => {
  const seen = { value: 0, bytes: 0, items: 0, depth: 0 };
  const property = fc.property(values, places, limits, fc.nat(2), (value, ends, bounds, spaces) => {
    const text = JSON.stringify(value, undefined, spaces);
    const bytes = Buffer.from(text);
    const { items, depth } = measure(JSON.parse(text));
    const exceeded = new Set<string>();
    if (bytes.length > bounds.bytes) {
      exceeded.add('bytes');
    }
    if (items > bounds.items) {
      exceeded.add('items');
    }
    if (depth > JSON_DEPTH) {
      exceeded.add('depth');
    }
    const result = outcome(() => inPieces(cut(bytes, ends), bounds));
    if ('value' in result) {
      expect(exceeded).toEqual(new Set());
      expect(JSON.stringify(result.value)).toBe(JSON.stringify(JSON.parse(text)));
      seen.value += 1;
    } else {
      expect(exceeded).toContain(result.fault);
      seen[result.fault as keyof typeof seen] += 1;
    }
  });
  fc.assert(property, { numRuns: 3_000 });
  expect(Math.min(...Object.values(seen))).toBeGreaterThan(0);
});

test('any bytes in any pieces give the result of JSON.parse, or an error that repeats none of them', () => {
  const alphabet = [...Buffer.from('"\\[]{},:1 u00dn')];
  const noise = fc
    .array(
      fc.oneof({ weight: 8, arbitrary: fc.constantFrom(...alphabet) }, { weight: 1, arbitrary: fc.nat(255) }),
    )
    .map((bytes) => Buffer.from(bytes));
  const broken = fc.tuple(values, fc.nat(400), fc.nat(255)).map(([value, at, byte]) => {
    const bytes = Buffer.from(JSON.stringify(value));
    bytes[at % bytes.length] = byte;
    return bytes;
  });
  fc.assert(
    fc.property(fc.oneof(noise, broken), places, (bytes, ends) => {
      const result = outcome(() => inPieces(cut(bytes, ends), WIDE));
      const expected = outcome(() => JSON.parse(bytes.toString('utf8')));
      if ('value' in expected) {
        expect(JSON.stringify(result)).toBe(
          JSON.stringify('value' in result ? expected : { fault: 'depth' }),
        );
      } else {
        expect(['syntax', 'depth']).toContain('fault' in result ? result.fault : 'accepted');
      }
    }),
    { numRuns: 3_000 },
  );
});

test.for([
  ['empty lists', '[],'],
  ['commas', ','],
  ['numbers', '0,'],
  ['objects', '{"a":{}},'],
  ['different keys', '{"\\u0061":0},'],
  ['opening brackets', '['],
])('a flood of %s is refused while it arrives', ([, piece = '']) => {
  const check = new JsonCheck({ bytes: WIDE.bytes, items: 1_024 });
  let sent = 0;
  const receive = (): void => {
    for (check.push(Buffer.from('[')); sent < 1_000; sent += 1) {
      check.push(Buffer.from(piece.repeat(64)));
    }
  };
  expect(receive).toThrow(JsonError);
  expect(sent).toBeLessThan(32);
});

test('structure in strings does not count, wherever the pieces end', () => {
  const text = JSON.stringify({ [`a"${'[,{'.repeat(200)}`]: `\\"${'],}'.repeat(200)}\\\\` });
  const bytes = Buffer.from(text);
  for (let at = 0; at <= bytes.length; at += 1) {
    expect(inPieces(cut(bytes, [at]), { bytes: bytes.length, items: 1 })).toEqual(JSON.parse(text));
  }
});

test('a key named __proto__ is an ordinary key', () => {
  const value = parseJson('{"__proto__":{"isAdmin":true}}', WIDE) as Record<string, unknown>;
  expect(Object.keys(value)).toEqual(['__proto__']);
  expect(value['isAdmin']).toBeUndefined();
});

test('messages name the limit, and nothing of the text', () => {
  const message = (text: string): string => {
    try {
      parseJson(text, { bytes: 40, items: 4 });
    } catch (error) {
      return (error as Error).message;
    }
    return '';
  };
  expect(message('{"token":"secret"')).toBe('is not JSON');
  expect(message('[1,2,3,4,5]')).toBe('has more than 4 values');
  expect(message(`"${'x'.repeat(40)}"`)).toBe('is larger than 40 bytes');
  expect(message(`"${'é'.repeat(20)}"`)).toBe('is larger than 40 bytes');
});
