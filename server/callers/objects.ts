/** Reads, creates and deletes objects with the rights of the caller. */
import { createBy } from '../../actions/objects.ts';
import { GROUP, isObjectName } from '../../api/v1alpha1/names.ts';
import { undefinedIf } from '../../base/errors.ts';
import { deleteExisting, type KubeClient } from '../../kube/client.ts';
import { isForbidden, isNotFound } from '../../kube/errors.ts';
import type { KubeObject, Ref, Resource, Unsaved } from '../../kube/objects.ts';
import { notFound } from '../http/errors.ts';
import type { CallerClient } from './caller.ts';
import type { SubjectAccessReview } from '../../kube/core.ts';

/** Reference to an object in a namespace. */
export interface NamespacedRef extends Ref {
  namespace: string;
}

/** Creates the object with the name of the caller as its creator. @throws ApiError when the API server refuses. */
export async function createAs<T extends KubeObject>(
  client: CallerClient,
  type: Resource<T>,
  object: Unsaved<T>,
): Promise<T> {
  return await createBy(client, await client.username(), type, object);
}

/** Returns the object. @throws ApiError when the API server refuses. @throws StatusError 404 when no object can have the name. */
export async function getAs<T extends KubeObject>(
  client: KubeClient,
  type: Resource<T>,
  ref: NamespacedRef,
): Promise<T> {
  return await client.get(type, checked(type, ref));
}

/**
 * Returns the object of that name in the namespace. If there is none, returns the object of that name in the default namespace. The caller
 * needs the right to get the returned object, even if it is in the default namespace.
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
  await deleteExisting(client, type, checked(type, ref));
}

/** Refuses a name that no object can have. For example, a slash in the name would change the path of the request to the API server. */
export function checked<T extends KubeObject>(type: Resource<T>, ref: NamespacedRef): NamespacedRef {
  if (!isObjectName(ref.name)) {
    const kind = type.apiVersion.includes('/') ? `${type.plural}.${GROUP}` : type.plural;
    throw notFound(kind, ref.name);
  }
  return ref;
}

/** Request (SelfSubjectAccessReview) with which callers ask about their own rights. Every user is allowed to send it. */
const SELF_SUBJECT_ACCESS_REVIEWS: Resource<SubjectAccessReview> = {
  apiVersion: 'authorization.k8s.io/v1',
  kind: 'SelfSubjectAccessReview',
  plural: 'selfsubjectaccessreviews',
  namespaced: false,
};

/** Reports whether the caller has the right. @throws ApiError when the API server does not know the caller. */
export async function callerMay(
  client: KubeClient,
  resourceAttributes: NonNullable<SubjectAccessReview['spec']['resourceAttributes']>,
): Promise<boolean> {
  const { status } = await client.create(SELF_SUBJECT_ACCESS_REVIEWS, {
    metadata: {},
    spec: { resourceAttributes },
  });
  return status?.allowed === true;
}
