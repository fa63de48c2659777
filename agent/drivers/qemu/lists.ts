/** Checks lists that a guest or its hypervisor sends. Neither is trusted. */
import * as z from 'zod';

/**
 * The agent reads at most this number of items of a list. A guest with many containers has a few dozen network interfaces, and QEMU has
 * fewer devices, block nodes and properties.
 */
const LIST_LIMIT = 256;

/**
 * Returns the schema of a list. The schema checks only the first {@link LIST_LIMIT} items, and drops the rest. A sender can send a list of
 * 500,000 invalid items. The schema makes an error for each invalid item, so a check of the whole list would block the agent for seconds.
 */
export function beginningOf<T extends z.ZodType>(item: T) {
  return z.preprocess((value) => (Array.isArray(value) ? value.slice(0, LIST_LIMIT) : value), z.array(item));
}
