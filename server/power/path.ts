/** Reads the target of a request to the power API. */
import { POWER_ACTIONS, type PowerAction } from '../../api/v1alpha1/server.ts';
import { undefinedIfSync } from '../../base/errors.ts';
import { HttpError } from '../../kube/serving/httperror.ts';

/** Path below which all paths of the power API lie. */
export const POWER_PATH = '/core/api';
/** Longest name of a Server, as for every object of Kubernetes. Addresses are shorter. */
const NAME_LENGTH = 253;

/** Request of a client. `id` is the name or an address of a Server. The request asks for an action if `action` is set. */
export type PowerTarget =
  | { readonly kind: 'list' }
  | { readonly kind: 'server'; readonly id: string }
  | { readonly kind: 'action'; readonly id: string; readonly action: PowerAction };

/**
 * Returns the parts of the path of a request target, which is a path or a URL. Empty parts are left out, because clients write slashes twice
 * or at the end. The path is not normalized otherwise: `..` is a part like every other.
 *
 * @throws HttpError 400 when a part is not percent-encoded UTF-8.
 */
export function partsOfTarget(target: string): string[] {
  const [, path = ''] = /^(?:https?:\/\/[^/?#]*)?([^?#]*)/i.exec(target) ?? [];
  return path
    .split('/')
    .filter((part) => part !== '')
    .map((part) => {
      const text = undefinedIfSync(
        (error) => error instanceof URIError,
        () => decodeURIComponent(part),
      );
      if (text === undefined) {
        throw new HttpError(400, 'The path is not valid percent-encoded UTF-8');
      }
      return text;
    });
}

/** Returns the request for the parts of a path. @throws HttpError 404 when there is no such path, 400 when there is no such action. */
export function parsePowerTarget(parts: readonly string[]): PowerTarget {
  const [core, api, servers, id, action, ...more] = parts;
  if (core !== 'core' || api !== 'api' || servers !== 'servers' || more.length > 0) {
    throw new HttpError(
      404,
      `There is no such path. The paths are ${POWER_PATH}/servers, ${POWER_PATH}/servers/ID and ${POWER_PATH}/servers/ID/ACTION`,
    );
  }
  if (id === undefined) {
    return { kind: 'list' };
  }
  if (id.length > NAME_LENGTH) {
    throw new HttpError(404, `No server has a name of more than ${NAME_LENGTH} characters`);
  }
  return action === undefined ? { kind: 'server', id } : { kind: 'action', id, action: parseAction(action) };
}

function parseAction(text: string): PowerAction {
  const action = POWER_ACTIONS.find((one) => one.toLowerCase() === text.toLowerCase());
  if (action === undefined) {
    throw new HttpError(400, `The action must be ${POWER_ACTIONS.join(', ')}, in any letter case`);
  }
  return action;
}
