/** Reads, creates and deletes objects with the rights of the caller. */
import { CREATED_BY_ANNOTATION, GROUP } from '../../api/v1alpha1/names.ts';
import { isObjectName } from '../../api/v1alpha1/schema.ts';
import { undefinedIf } from '../../base/errors.ts';
import type { KubeClient } from '../../kube/client.ts';
import { apiErrorFrom, isForbidden, isNotFound } from '../../kube/errors.ts';
import { type KubeObject, pathOf, type Ref, type Resource, type Unsaved } from '../../kube/objects.ts';
import { notFound } from '../http/errors.ts';
import type { CallerClient } from './caller.ts';

/** Reference to an object in a namespace. */
export interface NamespacedRef extends Ref {
  namespace: string;
}

/** Creates the object with the name of the caller in its annotation. @throws ApiError when the API server refuses. */
export async function createAs<T extends KubeObject>(
  client: CallerClient,
  type: Resource<T>,
  object: Unsaved<T>,
): Promise<T> {
  const annotations = {
    ...object.metadata.annotations,
    [CREATED_BY_ANNOTATION]: await client.username(),
  };
  return await client.create(type, { ...object, metadata: { ...object.metadata, annotations } });
}

/** @throws ApiError when the API server refuses. @throws StatusError 404 when no object can have the name. */
export async function getAs<T extends KubeObject>(
  client: KubeClient,
  type: Resource<T>,
  ref: NamespacedRef,
): Promise<T> {
  return await client.get(type, checked(type, ref));
}

/**
 * Returns the object of that name in the namespace, or else in the default namespace. A caller without rights in the default namespace gets
 * none of its objects.
 *
 * @throws ApiError when the API server refuses. @throws StatusError 404 when no object can have the name.
 */
export async function findAs<T extends KubeObject>(
  client: KubeClient,
  type: Resource<T>,
  ref: NamespacedRef,
  defaultNamespace: string,
): Promise<T> {
  try {
    return await getAs(client, type, ref);
  } catch (error) {
    if (!isNotFound(error) || ref.namespace === defaultNamespace) {
      throw error;
    }
    const shared = client.get(type, { ...ref, namespace: defaultNamespace });
    const found = await undefinedIf((reason) => isNotFound(reason) || isForbidden(reason), shared);
    if (found === undefined) {
      throw error;
    }
    return found;
  }
}

/** Deletes the object. @throws ApiError when the API server refuses. @throws StatusError 404 when no object can have the name. */
export async function deleteAs<T extends KubeObject>(
  client: KubeClient,
  type: Resource<T>,
  ref: NamespacedRef,
): Promise<void> {
  const { status, body, retryAfterMilliseconds } = await client.raw(
    'DELETE',
    pathOf(type, checked(type, ref)),
  );
  if (status >= 400) {
    throw apiErrorFrom(body, status, retryAfterMilliseconds);
  }
}

/** Refuses a name that no object can have. A name with a slash would lead to another path of the API server. */
export function checked<T extends KubeObject>(type: Resource<T>, ref: NamespacedRef): NamespacedRef {
  if (!isObjectName(ref.name)) {
    const kind = type.apiVersion.includes('/') ? `${type.plural}.${GROUP}` : type.plural;
    throw notFound(kind, ref.name);
  }
  return ref;
}
