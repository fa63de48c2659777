/** Makes the specs of new Images and ISOs, for the HTTP API and the `berth` command. */
import type { Image } from '../v1alpha1/image.ts';
import type { Stored } from './imageitem.ts';

/**
 * Returns the spec of a copy for `namespace`. It has the description of the original unless another one is given. If the original is in
 * another namespace, the copy has no pull secrets, because they do not exist in this namespace.
 */
export function copySpec(
  { metadata, spec }: Stored,
  namespace: string,
  description?: string,
): Stored['spec'] {
  const { architecture, os, format, imagePullSecrets } = spec;
  return {
    description: description ?? spec.description,
    source: { copyOf: { name: metadata.name, namespace: metadata.namespace } },
    architecture,
    os,
    format,
    imagePullSecrets: metadata.namespace === namespace ? imagePullSecrets : undefined,
  };
}

interface Wanted {
  /** Quantity. */
  readonly size: string | number;
  readonly description?: string | undefined;
  readonly type?: Image['spec']['architecture'];
}

/** Returns the spec of an Image with an empty disk. */
export function emptySpec({ size, description, type: architecture }: Wanted): Image['spec'] {
  return { description, architecture, source: { empty: { size } } };
}
