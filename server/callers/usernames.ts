/** Finds the user names of callers. */
import { createHash } from 'node:crypto';
import { LRUCache } from 'lru-cache';
import type { KubeClient } from '../../kube/client.ts';
import { SELF_SUBJECT_REVIEWS } from '../../kube/core.ts';

/**
 * Time in milliseconds for which the name of a token's user is stored. During this time, the server does not notice that the token has
 * expired. This is acceptable, because API servers also accept a token for this long after it has expired.
 */
const NAME_MILLISECONDS = 10_000;
/**
 * Largest number of stored names. CI systems can call with hundreds of tokens at the same time. If more tokens are in use, some names are
 * not stored, and the server asks the API server more often.
 */
const NAMES = 8_192;

/**
 * Asks the API server for the name of the user who has a token, and stores the answer for a few seconds. For several requests with the same
 * token, the server asks only once. Refusals are not stored.
 */
export class Usernames {
  readonly #names = new LRUCache<string, string, KubeClient>({
    max: NAMES,
    ttl: NAME_MILLISECONDS,
    // While the API server is asked for a name, the cache might remove the entry for this name, to make room for another entry. With this
    // option, the caller still gets the name.
    ignoreFetchAbort: true,
    fetchMethod: async (_hash, _known, { context }) => {
      const { status } = await context.create(SELF_SUBJECT_REVIEWS, { metadata: {} });
      return status?.userInfo?.username ?? '';
    },
  });

  /**
   * Returns the name of the user who has the token. `client` sends this token to the API server. @throws ApiError 401 when the API server
   * does not accept the token.
   */
  async of(token: string, client: KubeClient): Promise<string> {
    // The key is a hash, because the memory must not contain tokens in plain text.
    const hash = createHash('sha256').update(token).digest('base64');
    return await this.#names.forceFetch(hash, { context: client });
  }
}
