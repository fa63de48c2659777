/** Asks the API server about the rights of a caller. */
import type { KubeClient } from '../../kube/client.ts';
import type { SubjectAccessReview } from '../../kube/core.ts';
import type { Resource } from '../../kube/objects.ts';

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
