/** Names of the callers, as the API server knows them. */
import { createHash } from 'node:crypto';
import { LRUCache } from 'lru-cache';
import type { KubeClient } from '../../kube/client.ts';
import type { KubeObject, Resource } from '../../kube/objects.ts';

/** Time for which a name is reused. API servers also accept a token for this time after its end. */
const NAME_MILLISECONDS = 10_000;
/** Largest number of stored names. CI systems with hundreds of tokens may call at once. Further callers only cost further questions. */
const NAMES = 8_192;

interface SelfSubjectReview extends KubeObject {
  status?: { userInfo?: { username?: string } };
}
const SELF_SUBJECT_REVIEWS: Resource<SelfSubjectReview> = {
  apiVersion: 'authentication.k8s.io/v1',
  kind: 'SelfSubjectReview',
  plural: 'selfsubjectreviews',
  namespaced: false,
};

/**
 * Asks the API server for the name of each token, and stores the answer for some seconds. Callers with the same token share one question.
 * Refusals are not stored.
 */
export class Usernames {
  readonly #names = new LRUCache<string, string, KubeClient>({
    max: NAMES,
    ttl: NAME_MILLISECONDS,
    // A caller gets the answer also if other callers have meanwhile filled the memory.
    ignoreFetchAbort: true,
    fetchMethod: async (_hash, _known, { context }) => {
      const { status } = await context.create(SELF_SUBJECT_REVIEWS, { metadata: {} });
      return status?.userInfo?.username ?? '';
    },
  });

  /** Returns the name of the user with the token. `client` sends this token. @throws ApiError 401 when nobody has the token. */
  async of(token: string, client: KubeClient): Promise<string> {
    // The memory must not contain tokens in plain text.
    const hash = createHash('sha256').update(token).digest('base64');
    return await this.#names.forceFetch(hash, { context: client });
  }
}
