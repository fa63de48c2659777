/** Client with the server's own identity. */
import { KubeClient } from '../../kube/client.ts';
import { apiErrorFrom } from '../../kube/errors.ts';
import type { Answer } from '../../kube/transport.ts';
import { OwnRefusalError } from '../http/errors.ts';

/**
 * Words in the message of a refusal for a missing right. A refusal by admission has other words. It is about the object, which the caller
 * chose.
 */
const LACKS_RIGHT = /forbidden: User "/;

export class OwnClient extends KubeClient {
  /** @throws OwnRefusalError when the API server does not know the server, or when the server lacks a right. */
  override async raw(...request: Parameters<KubeClient['raw']>): Promise<Answer> {
    const answer = await super.raw(...request);
    if (answer.status === 401 || answer.status === 403) {
      const error = apiErrorFrom(answer.body, answer.status, answer.retryAfterMilliseconds);
      if (error.status === 401 || LACKS_RIGHT.test(error.message)) {
        throw new OwnRefusalError(error.message, error);
      }
    }
    return answer;
  }
}
