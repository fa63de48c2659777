/** Memory of machines in the units of the HTTP API. */
import { parseQuantity } from '../../api/v1alpha1/quantity.ts';

const GIBIBYTE = 1024 ** 3;

/**
 * Returns a quantity in GiB with two decimals, for example `4.80`. The result is undefined if there is no quantity, or if it cannot be read:
 * one object must not end the list of all objects.
 */
export function gibibytes(quantity: string | number | undefined): string | undefined {
  try {
    return quantity === undefined ? undefined : (Number(parseQuantity(quantity)) / GIBIBYTE).toFixed(2);
  } catch (error) {
    if (error instanceof RangeError) {
      return undefined;
    }
    throw error;
  }
}
