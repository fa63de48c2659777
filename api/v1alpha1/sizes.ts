/** Schemas and CEL rules for the sizes of memory and disks. */
import * as z from 'zod';
import { bytesIn, parseQuantity, QUANTITY_LENGTH, type Quantity } from './quantity.ts';
import { documented } from './schema.ts';

function isWithin(quantity: Quantity, minimum: bigint, maximum: bigint): boolean {
  const bytes = bytesIn(String(quantity));
  return bytes !== undefined && bytes >= minimum && bytes <= maximum;
}

/** Returns the schema of a quantity of bytes from `minimum` to `maximum`, both included. `name` is the field's name in error messages. */
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

/**
 * Returns the schema of a disk's size. The maximum is one pebibyte, because a JavaScript number can represent every number of bytes up to
 * this value.
 */
export function diskQuantity(name: string, description: string) {
  return quantity(name, description, '1Mi', '1Pi');
}
