/** Memory of machines in the units of the HTTP API. */
import { parseQuantity } from '../../api/v1alpha1/quantity.ts';

const GIBIBYTE = 1024 ** 3;

/** Returns a quantity in GiB with two decimals, for example `4.80`. */
export function gibibytes(quantity: string | number): string {
  return (Number(parseQuantity(quantity)) / GIBIBYTE).toFixed(2);
}
