/** Parameters of paths. */
import * as z from 'zod';
import { LABEL, text } from '../../api/v1alpha1/schema.ts';

export const NAMESPACES_PATH = '/api/v1/namespaces';

/** A namespace. With a slash in its name, the request would be for another path of the API server. */
export const namespaceParams = z.object({ namespace: text('Namespace.', 63, LABEL) });

/** An object in a namespace. An impossible name is answered like a missing object. */
export const objectParams = namespaceParams.extend({ name: z.string().min(1) });
