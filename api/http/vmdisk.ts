/**
 * Turns requests to save, push, commit or resize the disk of a VM into the objects to write, or into reasons for a refusal. The HTTP API
 * and the `berth` command use this code.
 */
import type { Image, ImageSpec } from '../v1alpha1/image.ts';
import { parseQuantity } from '../v1alpha1/quantity.ts';
import { isImageReference } from '../v1alpha1/reference.ts';
import type { VM } from '../v1alpha1/vm.ts';
import type { VMConfig } from '../v1alpha1/vmconfig.ts';

/** Prefix of the name of each push. */
export const PUSH_NAME = 'vm-push-';
/** Longest name of a saved image. */
export const SAVED_NAME_LENGTH = 63;
/** Time in seconds after the end of a push until its Image is deleted. In this time, clients can read the result. */
const PUSH_KEPT_SECONDS = 3_600;

interface Name {
  readonly namespace: string;
  readonly name: string;
}

interface NewImage<Metadata> {
  metadata: Metadata;
  spec: ImageSpec;
}

/** Functions that read the objects for a commit. Each resolves with undefined if the object does not exist. */
export interface CommitReads {
  readonly config: (name: Name) => Promise<VMConfig | undefined>;
  readonly image: (name: Name) => Promise<Image | undefined>;
}

/** Returns a new Image whose content becomes a copy of the VM's disk. */
export function savedImage(
  vm: Name,
  { imageName, description }: { imageName: string; description?: string | undefined },
): NewImage<Name> {
  return {
    metadata: { name: imageName, namespace: vm.namespace },
    spec: { description, source: { fromVM: { name: vm.name } } },
  };
}

/**
 * Returns a new Image that represents a push of the VM's disk. The Image names no credentials, because the operator finds the credentials
 * of the namespace.
 */
export function pushedImage(
  vm: Name,
  reference: string,
): NewImage<{ generateName: string; namespace: string }> {
  return {
    metadata: { generateName: PUSH_NAME, namespace: vm.namespace },
    spec: {
      source: { fromVM: { name: vm.name } },
      push: { reference, requestedAt: new Date().toISOString() },
      ttlSecondsAfterFinished: PUSH_KEPT_SECONDS,
    },
  };
}

/**
 * Returns the name of the VM's Image, and the merge patch that replaces the Image's content with the disk of the VM. The request is refused
 * if the VM's image is not an Image of the VM's namespace. It is also refused if the VM was not made from the present content of the Image.
 *
 * @throws the errors of `reads`.
 */
export async function commitChange(
  vm: VM,
  description: string | undefined,
  reads: CommitReads,
): Promise<{ name: string; patch: object } | { refusal: string }> {
  const { name: vmName, namespace = '' } = vm.metadata;
  const name = await imageOf(vm, namespace, reads);
  const found = name === '' || isImageReference(name) ? undefined : await reads.image({ name, namespace });
  if (found === undefined) {
    const cause = `image ${name || '(none)'} of VM ${vmName} is not an Image in namespace ${namespace}`;
    return { refusal: `The ${cause}. Save the VM as a new image instead` };
  }
  if (isOther(found, vm)) {
    return {
      refusal: `VM ${vmName} was not made from the present content of Image ${name}. Save the VM as a new image instead`,
    };
  }
  const requestedAt = new Date().toISOString();
  const spec = { commit: { vmName, requestedAt }, ...(description !== undefined && { description }) };
  return { name, patch: { metadata: { uid: found.metadata.uid }, spec } };
}

/**
 * Reports whether the VM was made from an earlier Image of the same name, or from earlier content of this Image. If so, a commit would
 * destroy content that somebody else made. If an earlier commit of this VM made the present content, the result is false.
 */
function isOther(image: Image, vm: VM): boolean {
  const [made = '', deployed = ''] = [image, vm].map(({ metadata }) => metadata.creationTimestamp);
  return made > deployed || (hasChanged(image, vm) && image.spec.commit?.vmName !== vm.metadata.name);
}

function hasChanged(image: Image, vm: VM): boolean {
  const [current, used] = [image.status?.digest, vm.status?.image?.digest];
  return current !== undefined && used !== undefined && current !== used;
}

/** Returns the image that the VM or its VMConfig names. The result is empty if neither names an image. */
async function imageOf(
  { spec, status = {} }: VM,
  namespace: string,
  { config: read }: CommitReads,
): Promise<string> {
  if (spec.image !== undefined || spec.iso !== undefined) {
    return spec.image ?? '';
  }
  const { config } = status;
  if (config === undefined) {
    return '';
  }
  const found = await read({ namespace: config.namespace ?? namespace, name: config.name });
  // If the VMConfig has changed since the VM was made, nobody knows which image the VM was made from. Therefore the function compares the
  // generations of the VMConfig.
  return found?.metadata.generation === config.generation ? (found.spec.image ?? '') : '';
}

/** Returns the merge patch that enlarges the disk to the quantity `wanted`. The request is refused if the disk is already larger. */
export function resizeChange(
  { metadata: { name, uid }, spec, status }: VM,
  wanted: string,
): { patch: object } | { refusal: string } {
  // The function compares both sizes, because the size in `spec` is larger while the host has not yet done an earlier resize.
  const larger = [status?.resources?.diskSize, spec.diskSize].find(
    (size) => size !== undefined && parseQuantity(size) > parseQuantity(wanted),
  );
  return larger === undefined
    ? { patch: { metadata: { uid }, spec: { diskSize: wanted } } }
    : { refusal: `The disk of VM ${name} has ${larger}. A disk can only grow, so ${wanted} is refused` };
}
