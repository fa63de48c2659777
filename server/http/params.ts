/** Parameters of paths. */
import * as z from 'zod';

/** A namespace. The API server checks the name, so that a wrong one is answered like a missing one. */
export const namespaceParams = z.object({ namespace: z.string().min(1).max(253) });
