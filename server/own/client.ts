/** Client with the server's own identity. */
import { KubeClient } from '../../kube/client.ts';
import { apiErrorFrom } from '../../kube/errors.ts';
import type { Answer } from '../../kube/transport.ts';
import { OwnRefusalError } from '../http/errors.ts';

/**
 * Pattern of the API server's message if this server lacks a right. The message of a refusal by admission does not match. A refusal by
 * admission concerns the object that the caller chose, so the caller gets this refusal as the answer.
 */
const LACKS_RIGHT = /forbidden: User "/;

export class OwnClient extends KubeClient {
  /** Sends a request. @throws OwnRefusalError when the API server does not know this server, or when this server lacks a right. */
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
