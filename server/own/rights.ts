/** Checks the rights of a caller before the server acts with its own identity. */
import type { IncomingHttpHeaders } from 'node:http';
import { GROUP } from '../../api/v1alpha1/names.ts';
import type { Authorizer } from '../../kube/serving/authorization.ts';
import { tokenOf } from '../callers/caller.ts';
import { StatusError } from '../http/errors.ts';

/**
 * Right in a namespace, or in the whole cluster if `namespace` is absent. The resource need not exist as a CRD, because roles can name any
 * resource.
 */
export interface Right {
  readonly verb: 'create' | 'get' | 'list' | 'update';
  readonly resource: 'hosts' | 'certificates' | 'vms' | 'emulators';
  readonly subresource?: 'imagecache' | 'namespace' | 'tags';
  readonly namespace?: string;
}

export class Rights {
  readonly #authorizer: Authorizer;

  constructor(authorizer: Authorizer) {
    this.#authorizer = authorizer;
  }

  /** Checks a right of the caller. @throws StatusError 401 when the API server does not know the caller, 403 when the right is missing. */
  async require(headers: IncomingHttpHeaders, right: Right): Promise<void> {
    const user = await this.#authorizer.authenticate(tokenOf(headers));
    if (user === undefined) {
      throw new StatusError(401, 'Unauthorized');
    }
    if (!(await this.#authorizer.authorize(user, { resourceAttributes: { group: GROUP, ...right } }))) {
      throw new StatusError(403, refusal(user.username ?? '', right));
    }
  }
}

/** Returns the message of a refusal. It is the same as the message of the API server. */
function refusal(user: string, { verb, resource, subresource, namespace }: Right): string {
  const full = subresource === undefined ? resource : `${resource}/${subresource}`;
  const scope = namespace === undefined ? 'at the cluster scope' : `in the namespace "${namespace}"`;
  return `${resource}.${GROUP} is forbidden: User "${user}" cannot ${verb} resource "${full}" in API group "${GROUP}" ${scope}`;
}
