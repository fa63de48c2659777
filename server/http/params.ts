/** Parameters of paths. */
import * as z from 'zod';
import { LABEL, text } from '../../api/v1alpha1/schema.ts';

export const NAMESPACES_PATH = '/api/v1/namespaces';

/** Name of a namespace. A name with a slash would lead to another path of the API server. */
export const namespaceParams = z.object({ namespace: text('Namespace.', 63, LABEL) });

/** Names of a namespace and of an object in it. A name that no object can have gets the answer for a missing object. */
export const objectParams = namespaceParams.extend({ name: z.string().min(1) });
