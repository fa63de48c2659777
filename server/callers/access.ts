/** Asks the API server what a caller may do. */
import type { KubeClient } from '../../kube/client.ts';
import type { SubjectAccessReview } from '../../kube/core.ts';
import type { Resource } from '../../kube/objects.ts';

/** Question of a caller about the caller's own rights. Every user may ask it. */
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
