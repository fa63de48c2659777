/** Saves, commits, pushes and enlarges the disk of a VM. */
import {
  type CommitAccess,
  pushedImage,
  requestCommit,
  resizeChange,
  savedImage,
} from '../../api/http/vmdisk.ts';
import { IMAGES, VM_CONFIGS, VMS } from '../../api/v1alpha1/resources.ts';
import { undefinedIf } from '../../base/errors.ts';
import type { KubeClient } from '../../kube/client.ts';
import { isConflict, unlessMissing } from '../../kube/errors.ts';
import type { CallerClient } from '../callers/caller.ts';
import { createAs, getAs, type NamespacedRef } from '../callers/objects.ts';
import { StatusError } from '../http/errors.ts';

interface Saved {
  readonly imageName: string;
  readonly description?: string | undefined;
}

/**
 * Creates an Image whose content is a copy of the VM's disk. @throws ApiError 404 when the VM does not exist, 409 when an Image of this
 * name already exists.
 */
export async function save(client: CallerClient, ref: NamespacedRef, saved: Saved): Promise<void> {
  await getAs(client, VMS, ref);
  await createAs(client, IMAGES, savedImage(ref, saved));
}

/** Replaces the content of the VM's Image with the disk of the VM. @throws StatusError 409 when {@link requestCommit} refuses. */
export async function commit(client: KubeClient, ref: NamespacedRef, description?: string): Promise<void> {
  const access: CommitAccess = {
    config: async (config) => await unlessMissing(getAs(client, VM_CONFIGS, config)),
    image: async (image) => await unlessMissing(getAs(client, IMAGES, image)),
    write: async (image, patch) => await undefinedIf(isConflict, client.mergePatch(IMAGES, image, patch)),
  };
  const requested = await requestCommit(await getAs(client, VMS, ref), description, access);
  if ('refusal' in requested) {
    throw new StatusError(409, requested.refusal);
  }
}

/** Pushes the VM's disk to a registry. Returns the name of the Image object that represents the push. */
export async function push(client: CallerClient, ref: NamespacedRef, reference: string): Promise<string> {
  await getAs(client, VMS, ref);
  const { metadata } = await createAs(client, IMAGES, pushedImage(ref, reference));
  return metadata.name;
}

/** Enlarges the disk to `gigabytes` (GB). @throws StatusError 409 when the disk is already larger. */
export async function resize(client: KubeClient, ref: NamespacedRef, gigabytes: number): Promise<void> {
  const change = resizeChange(await getAs(client, VMS, ref), `${gigabytes}G`);
  if ('refusal' in change) {
    throw new StatusError(409, change.refusal);
  }
  await client.mergePatch(VMS, ref, change.patch);
}
