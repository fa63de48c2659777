/** Checks the rights of a caller before the server does something with its own identity. */
import type { IncomingHttpHeaders } from 'node:http';
import { GROUP } from '../../api/v1alpha1/names.ts';
import type { Authorizer } from '../../kube/serving/authorization.ts';
import { tokenOf } from '../callers/caller.ts';
import { StatusError } from '../http/errors.ts';

/**
 * Right in a namespace. If `namespace` is absent, it is a right in the whole cluster. Roles can name the resource even if no CRD defines
 * it.
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

  /** @throws StatusError 401 when the API server does not know the caller, and 403 when the caller lacks the right. */
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

/** Returns a refusal with the same message as a refusal of the API server. */
function refusal(user: string, { verb, resource, subresource, namespace }: Right): string {
  const full = subresource === undefined ? resource : `${resource}/${subresource}`;
  const scope = namespace === undefined ? 'at the cluster scope' : `in the namespace "${namespace}"`;
  return `${resource}.${GROUP} is forbidden: User "${user}" cannot ${verb} resource "${full}" in API group "${GROUP}" ${scope}`;
}
