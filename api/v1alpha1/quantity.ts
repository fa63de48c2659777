/** Converts Kubernetes quantities (`4Gi`, `1500M`, `0.5Ti`) to whole bytes, and back. */
import * as z from 'zod';
import { documented } from './schema.ts';

/** Largest length of a quantity's text, in characters. */
const QUANTITY_LENGTH = 32;
/** Texts that the API server accepts as a quantity. It bounds only the length, so digits and exponents may begin with many zeros. */
const QUANTITY =
  /^([+-]?)(\d{1,32}(?:\.\d{0,32})?|\.\d{1,32})(?:[eE]([+-]?\d{1,32})|([numkMGTPE]|[KMGTPE]i))?$/;
/** Largest exponent of ten. No field allows a number that needs more in a text of that length. */
const EXPONENT = 99;

const DECIMAL_EXPONENTS: Readonly<Record<string, number>> = {
  n: -9,
  u: -6,
  m: -3,
  k: 3,
  M: 6,
  G: 9,
  T: 12,
  P: 15,
  E: 18,
};
const BINARY_SUFFIXES: readonly string[] = ['', 'Ki', 'Mi', 'Gi', 'Ti', 'Pi', 'Ei'];
const DECIMAL_SUFFIXES: readonly string[] = ['', 'k', 'M', 'G', 'T', 'P', 'E'];

/** A quantity as people write it: a text with a suffix, or a number of bytes. */
type Quantity = string | number;

/**
 * Returns the bytes of a quantity. A fraction of a byte is rounded away from zero, as in Kubernetes.
 * @throws RangeError when the text is not a quantity.
 */
export function parseQuantity(quantity: Quantity): bigint {
  const bytes = bytesIn(String(quantity));
  if (bytes === undefined) {
    throw new RangeError(`${JSON.stringify(String(quantity).slice(0, QUANTITY_LENGTH))} is not a quantity`);
  }
  return bytes;
}

/** Returns the bytes of a quantity; undefined when the text is not a quantity. */
function bytesIn(text: string): bigint | undefined {
  const match = QUANTITY.exec(text);
  if (match === null) {
    return undefined;
  }
  const [, sign, digits = '0', exponent = '0', suffix = ''] = match;
  // The API server keeps the exponent in 32 bits.
  const ten = DECIMAL_EXPONENTS[suffix] ?? Number(BigInt.asIntN(32, BigInt(exponent)));
  if (Math.abs(ten) > EXPONENT) {
    return undefined;
  }
  const bytes = scaledUp(digits, suffix, ten);
  return sign === '-' ? -bytes : bytes;
}

/** Returns the bytes of a decimal number with a suffix and a power of ten, rounded up. */
function scaledUp(digits: string, suffix: string, ten: number): bigint {
  const [whole = '', fraction = ''] = digits.split('.');
  const power = ten - fraction.length;
  const scaled = BigInt(whole + fraction) << BigInt(10 * Math.max(BINARY_SUFFIXES.indexOf(suffix), 0));
  return power >= 0 ? scaled * 10n ** BigInt(power) : divideUp(scaled, 10n ** BigInt(-power));
}

/** Returns the quotient of two numbers, rounded up. Neither number may be negative. */
export function divideUp(value: bigint, divisor: bigint): bigint {
  return (value + divisor - 1n) / divisor;
}

/** Returns the shortest exact text for a number of bytes, in the spelling of Kubernetes: `4Gi`, `1536Mi`, `1500k`. */
export function formatQuantity(bytes: bigint | number): string {
  const value = BigInt(bytes);
  return value % 1024n === 0n
    ? shortened(value, 1024n, BINARY_SUFFIXES)
    : shortened(value, 1000n, DECIMAL_SUFFIXES);
}

function shortened(bytes: bigint, base: bigint, suffixes: readonly string[]): string {
  let value = bytes;
  let suffix = 0;
  while (value !== 0n && value % base === 0n && suffix < suffixes.length - 1) {
    value /= base;
    suffix += 1;
  }
  return `${value}${suffixes[suffix]}`;
}

/** Formats thousandths of a processor in the spelling of Kubernetes: `4`, `1500m`. */
export function formatMillis(millis: number): string {
  return millis % 1000 === 0 ? String(millis / 1000) : `${Math.floor(millis)}m`;
}

function isWithin(quantity: Quantity, minimum: bigint, maximum: bigint): boolean {
  const bytes = bytesIn(String(quantity));
  return bytes !== undefined && bytes >= minimum && bytes <= maximum;
}

/**
 * Returns the schema of a quantity of bytes from `minimum` to `maximum`, both included. `name` is the field's name in messages of
 * refusals.
 */
function quantity(name: string, description: string, minimum: string, maximum: string) {
  const lowest = parseQuantity(minimum);
  const highest = parseQuantity(maximum);
  const bounds = `must be a quantity from ${minimum} to ${maximum}`;
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

/** Returns the schema of a disk's size. The maximum of one pebibyte is still an exact integer in a JavaScript number. */
export function diskQuantity(name: string, description: string) {
  return quantity(name, description, '1Mi', '1Pi');
}
