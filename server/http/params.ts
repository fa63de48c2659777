/** Schemas of the parameters in paths. */
import * as z from 'zod';
import { LABEL, text } from '../../api/v1alpha1/schema.ts';

export const NAMESPACES_PATH = '/api/v1/namespaces';

/** Schema of the name of a namespace. It refuses a slash, which would change the path of the request to the API server. */
export const namespaceParams = z.object({ namespace: text('Namespace.', 63, LABEL) });

/**
 * Schema of the names of a namespace and of an object in it. This schema accepts an object name that no object can have. A request with
 * such a name then gets the same answer as a request for a missing object.
 */
export const objectParams = namespaceParams.extend({ name: z.string().min(1) });
