/** Converts the memory of machines to and from the units of the HTTP API and the `berth` command. */
import { bytesIn } from '../v1alpha1/quantity.ts';

const GIBIBYTE = 1024 ** 3;
const MEBIBYTES_PER_GIBIBYTE = 1024;

/**
 * Returns a quantity in GiB with two decimals, for example `4.80`. The result is undefined if the quantity is absent or not valid. If the
 * function threw an error instead, one wrong object would make a whole list fail.
 */
export function gibibytes(quantity: string | number = ''): string | undefined {
  const bytes = bytesIn(String(quantity));
  return bytes === undefined ? undefined : (Number(bytes) / GIBIBYTE).toFixed(2);
}

/** Turns a number of GiB into a quantity of whole MiB. */
export function quantityOf(gibibytes: number): string {
  return `${Math.round(gibibytes * MEBIBYTES_PER_GIBIBYTE)}Mi`;
}
