/** Finds the Images that represent a push of a VM's disk to a registry. */
import { PUSH_NAME } from '../../api/http/vmdisk.ts';
import type { Image } from '../../api/v1alpha1/image.ts';

export function isPush({ metadata, spec }: Image): boolean {
  return metadata.name.startsWith(PUSH_NAME) && spec.push !== undefined && spec.source.fromVM !== undefined;
}
