/** Schemas for parts of the JSON of registries and token servers on which nothing depends. */
import * as z from 'zod';

/**
 * A text that may be absent. Null, an empty text and a value of another type count as absent, because servers write them in place of a
 * field that they do not use.
 */
export const optionalText = z.string().min(1).optional().catch(undefined);
