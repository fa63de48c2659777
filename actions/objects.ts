/** Creates and changes objects. An annotation of each object contains the name of the user who created the object. */
import type { Image } from '../api/v1alpha1/image.ts';
import type { ISO } from '../api/v1alpha1/iso.ts';
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

/** Sets the description of an Image or ISO, and returns the new version. An empty text removes the description. @throws ApiError. */
export async function setDescription<T extends Image | ISO>(
  client: KubeClient,
  type: Resource<T>,
  ref: { readonly namespace: string; readonly name: string },
  description: string,
): Promise<T> {
  return await client.mergePatch(type, ref, {
    spec: { description: description === '' ? null : description },
  });
}
