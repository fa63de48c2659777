/** Names of images in the store. */
import type { MachineImageSource } from '../../../api/v1alpha1/machine.ts';
import { normaliseImageName, parseReference } from '../../../api/v1alpha1/reference.ts';
import type { Keyring } from '../oci/credentials.ts';
import { scopeFor } from './origins.ts';

/**
 * Returns the names under which the store can find an image after this request. `object` is the name of the Image or ISO object.
 *
 * @throws ReasonedError `ImageSourceUnsupported` when a reference is wrong.
 */
export function namesOf(
  source: MachineImageSource,
  object: string | undefined,
  keyring: Keyring | undefined,
): string[] {
  const names = object === undefined ? [] : [object];
  switch (source.type) {
    case 'registry': {
      const scope = scopeFor(parseReference(source.reference), keyring);
      const name = normaliseImageName(source.reference);
      // An image from an insecure route does not get the name of an Image object. Other namespaces could find it by this name.
      return scope === '' ? [name, ...names] : [`${scope}${name}`];
    }
    case 'storedArtifact':
      return [normaliseImageName(source.reference), ...names];
    case 'http':
      return object === undefined ? [`sha256:${source.sha256.toLowerCase()}`] : names;
    default:
      return names;
  }
}
