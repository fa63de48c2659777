/** Makes the specs of new Images and ISOs, for the HTTP API and the `berth` command. */
import type { Image } from '../v1alpha1/image.ts';
import type { Stored } from './imageitem.ts';

/**
 * Returns the spec of a copy in `namespace`. The copy has the description of the original if no other is given. If the original is in
 * another namespace, the copy has no pull secrets, because those Secrets do not exist in `namespace`.
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
  /** Size of the disk, as a quantity. */
  readonly size: string | number;
  readonly description?: string | undefined;
  readonly type?: Image['spec']['architecture'];
}

/** Returns the spec of an Image with an empty disk. */
export function emptySpec({ size, description, type: architecture }: Wanted): Image['spec'] {
  return { description, architecture, source: { empty: { size } } };
}
