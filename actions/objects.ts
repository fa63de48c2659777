/** Creates objects. An annotation of each object contains the name of the user who created the object. */
import { CREATED_BY_ANNOTATION } from '../api/v1alpha1/names.ts';
import type { CallOptions, KubeClient } from '../kube/client.ts';
import type { KubeObject, Resource, Unsaved } from '../kube/objects.ts';

/**
 * Creates the object, and returns the version that the API server stored. The API server refuses fields that it does not know, instead of
 * dropping them. This happens if the CustomResourceDefinitions of the cluster are older than this program. @throws ApiError.
 */
export async function createBy<T extends KubeObject>(
  client: KubeClient,
  username: string,
  type: Resource<T>,
  object: Unsaved<T>,
  options: CallOptions = {},
): Promise<T> {
  const annotations = { ...object.metadata.annotations, [CREATED_BY_ANNOTATION]: username };
  const metadata = { ...object.metadata, annotations };
  return await client.create(type, { ...object, metadata }, { fieldValidation: 'Strict', ...options });
}
