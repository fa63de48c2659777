/**
 * Reads image names in paths. An image reference contains slashes, which clients encode once, twice or not at all. Some proxies also decode
 * a path before they pass it on.
 */
import { StatusError } from '../http/errors.ts';

/** Largest number of times that a parameter is decoded after the router has decoded it once. */
const ENCODINGS = 2;
const ENCODED = /%[0-9a-f]{2}/i;

/**
 * Returns the image name in a parameter of a path. The router has already decoded the parameter once. Image names contain no percent sign,
 * so a percent sign means that the client encoded the name more than once.
 *
 * @throws StatusError 400 when the encoding is not valid.
 */
export function decodedImageName(parameter: string): string {
  let name = parameter;
  for (let round = 0; round < ENCODINGS && ENCODED.test(name); round += 1) {
    try {
      name = decodeURIComponent(name);
    } catch {
      throw new StatusError(400, 'the image name in the path has an invalid encoding');
    }
  }
  return name;
}

/**
 * Separates an image name with unencoded slashes from the action after it. If the path does not end with an action, `action` is undefined.
 * An image name that itself ends like an action, for example with `/add`, must have percent-encoded slashes. Such an encoded name is one
 * part of the path, so another route handles it, and this function is not called.
 *
 * @throws StatusError 400 when an encoding in the path is not valid.
 */
export function splitImagePath<Action extends string>(
  path: string,
  actions: readonly Action[],
): { image: string; action: Action | undefined } {
  const action = actions.find((word) => path.endsWith(`/${word}`));
  const name = action === undefined ? path : path.slice(0, -(action.length + 1));
  return { image: decodedImageName(name), action };
}
