/** Which changes of the world concern which certificate requests. */
import type { IndexFunctions } from '../../kube/cache.ts';
import type { Controller } from '../../kube/controller.ts';
import type { CertificateSigningRequest, Node } from '../../kube/core.ts';
import type { Informer } from '../../kube/informer.ts';
import { isHost } from '../host/observe.ts';
import { NODE_USER_PREFIX } from './content.ts';
import { type JoiningConfig, joiningOf } from './joining.ts';

const REQUESTS_BY_USER = 'user';
/** Requests with what hosts join with, by the host that it is for. */
export const REQUESTS_BY_HOST = 'host';

export function requestIndexes(config: JoiningConfig): IndexFunctions<CertificateSigningRequest> {
  return {
    [REQUESTS_BY_USER]: ({ spec: { username = '' } }) => [username],
    [REQUESTS_BY_HOST]: (csr) => {
      const host = joiningOf(csr, config)?.host;
      return typeof host === 'string' ? [host] : [];
    },
  };
}

export interface RequestWatches {
  readonly requests: Informer<CertificateSigningRequest>;
  readonly nodes: Informer<Node>;
}

export function enqueueRequests(controller: Controller, { requests, nodes }: RequestWatches): void {
  requests.cache.onChange(({ object }) => controller.enqueue(object.metadata.name));
  // What a host asked for before its Node was marked was nobody's to judge.
  nodes.cache.onChange(({ object, previous }) => {
    if (isHost(object) && !isHost(previous)) {
      const user = `${NODE_USER_PREFIX}${object.metadata.name}`;
      const asked = requests.cache.byIndex(REQUESTS_BY_USER, user);
      asked.forEach(({ metadata }) => controller.enqueue(metadata.name));
    }
  });
}
