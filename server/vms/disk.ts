/** Work with the disk of a VM: save it as an image, commit it, push it, and let it grow. */
import type { Image } from '../../api/v1alpha1/image.ts';
import { isImageReference } from '../../api/v1alpha1/reference.ts';
import { parseQuantity } from '../../api/v1alpha1/quantity.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { KubeClient } from '../../kube/client.ts';
import { unlessMissing } from '../../kube/errors.ts';
import type { CallerClient } from '../callers/caller.ts';
import { createAs, getAs, type NamespacedRef } from '../callers/objects.ts';
import { StatusError } from '../http/errors.ts';
import { IMAGES, VM_CONFIGS, VMS } from '../resources.ts';

/** Start of the name of each push. */
export const PUSH_NAME = 'vm-push-';
/** Time for which a push can be read after its end, in seconds. */
const PUSH_KEPT_SECONDS = 3_600;

interface Saved {
  readonly imageName: string;
  readonly description?: string | undefined;
}

/** Makes an Image of the VM's disk. @throws ApiError 404 without the VM, 409 when the image exists. */
export async function save(
  client: CallerClient,
  ref: NamespacedRef,
  { imageName, description }: Saved,
): Promise<void> {
  await getAs(client, VMS, ref);
  const metadata = { name: imageName, namespace: ref.namespace };
  await createAs(client, IMAGES, { metadata, spec: { description, source: { fromVM: { name: ref.name } } } });
}

/**
 * Replaces the content of the VM's Image by the disk of the VM.
 *
 * @throws StatusError 409 when the VM has no Image of its namespace, or when the VM was not made from the present content of the Image.
 */
export async function commit(client: KubeClient, ref: NamespacedRef, description?: string): Promise<void> {
  const vm = await getAs(client, VMS, ref);
  const image = await imageOf(client, vm, ref.namespace);
  const target = { name: image, namespace: ref.namespace };
  const found = isImageReference(image) ? undefined : await unlessMissing(getAs(client, IMAGES, target));
  if (found === undefined) {
    const cause = `image ${image || '(none)'} of VM ${ref.name} is no Image in namespace ${ref.namespace}`;
    throw new StatusError(409, `The ${cause}. Save the VM as a new image instead`);
  }
  if (isOther(found, vm)) {
    throw new StatusError(
      409,
      `VM ${ref.name} was not made from the present content of Image ${image}. Save the VM as a new image instead`,
    );
  }
  const requestedAt = new Date().toISOString();
  await client.mergePatch(IMAGES, target, {
    metadata: { uid: found.metadata.uid },
    spec: { commit: { vmName: ref.name, requestedAt }, ...(description !== undefined && { description }) },
  });
}

/**
 * Reports whether the VM was made from another Image of that name, or from an earlier content. A commit would then destroy content of
 * somebody else. Content from an earlier commit of this VM does not count.
 */
function isOther(image: Image, vm: VM): boolean {
  const [made = '', deployed = ''] = [image, vm].map(({ metadata }) => metadata.creationTimestamp);
  return made > deployed || (hasChanged(image, vm) && image.spec.commit?.vmName !== vm.metadata.name);
}

function hasChanged(image: Image, vm: VM): boolean {
  const [current, used] = [image.status?.digest, vm.status?.image?.digest];
  return current !== undefined && used !== undefined && current !== used;
}

/** Returns the name of the VM's image, as the VM or its config gives it; empty without one. */
async function imageOf(client: KubeClient, { spec, status = {} }: VM, namespace: string): Promise<string> {
  if (spec.image !== undefined || spec.iso !== undefined) {
    return spec.image ?? '';
  }
  const { config } = status;
  if (config === undefined) {
    return '';
  }
  const ref = { namespace: config.namespace ?? namespace, name: config.name };
  const found = await unlessMissing(getAs(client, VM_CONFIGS, ref));
  // The config may have changed since the deployment, and may name another image.
  return found?.metadata.generation === config.generation ? (found.spec.image ?? '') : '';
}

/** Pushes the VM's disk to a registry, and returns the name of the push. The operator finds the credentials of the namespace. */
export async function push(client: CallerClient, ref: NamespacedRef, reference: string): Promise<string> {
  await getAs(client, VMS, ref);
  const { metadata } = await createAs(client, IMAGES, {
    metadata: { generateName: PUSH_NAME, namespace: ref.namespace },
    spec: {
      source: { fromVM: { name: ref.name } },
      push: { reference, requestedAt: new Date().toISOString() },
      ttlSecondsAfterFinished: PUSH_KEPT_SECONDS,
    },
  });
  return metadata.name;
}

/** Lets the disk grow to `gigabytes`. @throws StatusError 409 when the disk is larger already. */
export async function resize(client: KubeClient, ref: NamespacedRef, gigabytes: number): Promise<void> {
  const { metadata, spec, status } = await getAs(client, VMS, ref);
  const wanted = `${gigabytes}G`;
  // The host may not have followed an earlier resize yet.
  const larger = [status?.resources?.diskSize, spec.diskSize].find(
    (size) => size !== undefined && parseQuantity(size) > parseQuantity(wanted),
  );
  if (larger !== undefined) {
    throw new StatusError(
      409,
      `The disk of VM ${ref.name} has ${larger}. A disk can only grow, so ${wanted} is refused`,
    );
  }
  await client.mergePatch(VMS, ref, { metadata: { uid: metadata.uid }, spec: { diskSize: wanted } });
}
