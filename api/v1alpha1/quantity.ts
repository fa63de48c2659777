/** Converts Kubernetes quantities (`4Gi`, `1500M`, `0.5Ti`) to whole bytes, and back. */

/** Largest length of a quantity's text, in characters. */
export const QUANTITY_LENGTH = 32;
/**
 * Pattern of the texts that the API server accepts as a quantity. It allows 32 digits in a number or an exponent, because the first digits
 * can be zeros.
 */
const QUANTITY =
  /^([+-]?)(\d{1,32}(?:\.\d{0,32})?|\.\d{1,32})(?:[eE]([+-]?\d{1,32})|([numkMGTPE]|[KMGTPE]i))?$/;
/**
 * Largest power of ten, positive or negative, for which a value is computed. A text with a larger power is refused. Its value would be
 * outside the bounds of every field, because a text has too few digits ({@link QUANTITY_LENGTH}) to compensate for such a power.
 */
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
export type Quantity = string | number;

/**
 * Returns the number of bytes that a quantity stands for. A fraction of a byte is rounded away from zero, as in Kubernetes.
 * @throws RangeError when the text is not a quantity.
 */
export function parseQuantity(quantity: Quantity): bigint {
  const bytes = parseBytes(String(quantity));
  if (bytes === undefined) {
    throw new RangeError(`${JSON.stringify(String(quantity).slice(0, QUANTITY_LENGTH))} is not a quantity`);
  }
  return bytes;
}

/** Returns the number of bytes that a quantity stands for. The result is undefined if the text is not a quantity. */
export function parseBytes(text: string): bigint | undefined {
  const match = QUANTITY.exec(text);
  if (match === null) {
    return undefined;
  }
  const [, sign, digits = '0', exponent = '0', suffix = ''] = match;
  // Only the low 32 bits of the exponent count, because the API server stores the exponent in 32 bits.
  const ten = DECIMAL_EXPONENTS[suffix] ?? Number(BigInt.asIntN(32, BigInt(exponent)));
  if (Math.abs(ten) > EXPONENT) {
    return undefined;
  }
  const bytes = scaledUp(digits, suffix, ten);
  return sign === '-' ? -bytes : bytes;
}

/**
 * Returns a number of bytes: the decimal number `digits`, multiplied by the value of a binary `suffix` and by ten to the power `ten`. A
 * fraction of a byte is rounded up.
 */
function scaledUp(digits: string, suffix: string, ten: number): bigint {
  const [whole = '', fraction = ''] = digits.split('.');
  const power = ten - fraction.length;
  const scaled = BigInt(whole + fraction) << BigInt(10 * Math.max(BINARY_SUFFIXES.indexOf(suffix), 0));
  return power >= 0 ? scaled * 10n ** BigInt(power) : divideUp(scaled, 10n ** BigInt(-power));
}

/** Divides two numbers that are not negative, and rounds the result up. */
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

/**
 * Returns a size for people, in the largest binary unit of which there is at least one, with at most one decimal: `256Mi`, `19.5Mi`, `120Gi`.
 * The result is undefined if the quantity is absent or not valid. If the function threw an error instead, one wrong object would make a
 * whole list fail.
 */
export function formatSize(quantity: Quantity | undefined): string | undefined {
  const bytes = parseBytes(String(quantity ?? ''));
  if (bytes === undefined) {
    return undefined;
  }
  let value = Number(bytes);
  let suffix = 0;
  // A value that the rounding would turn into 1024 gets the next unit.
  while (value >= 1023.95 && suffix < BINARY_SUFFIXES.length - 1) {
    value /= 1024;
    suffix += 1;
  }
  return `${Math.round(value * 10) / 10}${BINARY_SUFFIXES[suffix]}`;
}

/** Formats thousandths of a processor in the spelling of Kubernetes: `4`, `1500m`. */
export function formatMillis(millis: number): string {
  return millis % 1000 === 0 ? String(millis / 1000) : `${Math.floor(millis)}m`;
}

const GIBIBYTE = 1024 ** 3;
const MEBIBYTES_PER_GIBIBYTE = 1024;

/**
 * Returns a quantity in GiB with two decimals, for example `4.80`. The result is undefined if the quantity is absent or not valid. If the
 * function threw an error instead, one wrong object would make a whole list fail.
 */
export function gibibytes(quantity: string | number = ''): string | undefined {
  const bytes = parseBytes(String(quantity));
  return bytes === undefined ? undefined : (Number(bytes) / GIBIBYTE).toFixed(2);
}

/**
 * Returns a quantity as the number of GiB that {@link quantityOf} turns into the same number of whole MiB, with two decimals if they are
 * enough. The result is undefined as that of {@link gibibytes} is.
 */
export function gibibytesOf(quantity: string | number = ''): number | undefined {
  const bytes = parseBytes(String(quantity));
  if (bytes === undefined) {
    return undefined;
  }
  const exact = Number(bytes) / GIBIBYTE;
  const rounded = Number(exact.toFixed(2));
  return quantityOf(rounded) === quantityOf(exact) ? rounded : exact;
}

/** Turns a number of GiB into a quantity of whole MiB. */
export function quantityOf(gibibytes: number): string {
  return `${Math.round(gibibytes * MEBIBYTES_PER_GIBIBYTE)}Mi`;
}
