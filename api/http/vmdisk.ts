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
/**
 * Largest number of attempts to write a commit. An attempt fails if the operator has written the status of the Image since the last read.
 */
const COMMIT_ATTEMPTS = 5;

interface Name {
  readonly namespace: string;
  readonly name: string;
}

interface NewImage<Metadata> {
  metadata: Metadata;
  spec: ImageSpec;
}

/** Functions that read and write the objects for a commit. The reads resolve with undefined if the object does not exist. */
export interface CommitAccess {
  readonly config: (name: Name) => Promise<VMConfig | undefined>;
  readonly image: (name: Name) => Promise<Image | undefined>;
  /** Writes a merge patch. Resolves with undefined if the Image no longer has the uid and the resourceVersion of the patch. */
  readonly write: (name: Name, patch: object) => Promise<Image | undefined>;
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
 * Requests that the disk of the VM replaces the content of the VM's Image. Returns the Image with the request. The request is refused if
 * the VM's image is not an Image of the VM's namespace. It is also refused if the VM was not made from the present content of the Image, or
 * if another commit of the Image has not ended.
 *
 * @throws the errors of `access`.
 */
export async function requestCommit(
  vm: VM,
  description: string | undefined,
  access: CommitAccess,
): Promise<{ image: Image } | { refusal: string }> {
  const { name: vmName, namespace = '' } = vm.metadata;
  const name = await imageOf(vm, namespace, access);
  for (let attempt = 1; attempt <= COMMIT_ATTEMPTS; attempt += 1) {
    const found = name === '' || isImageReference(name) ? undefined : await access.image({ name, namespace });
    if (found === undefined) {
      const cause = `image ${name || '(none)'} of VM ${vmName} is not an Image in namespace ${namespace}`;
      return { refusal: `The ${cause}. Save the VM as a new image instead` };
    }
    const refusal = commitRefusal(found, vm);
    if (refusal !== undefined) {
      return { refusal };
    }
    const { uid, resourceVersion } = found.metadata;
    const commit = { vmName, requestedAt: new Date().toISOString() };
    const spec = { commit, ...(description !== undefined && { description }) };
    const image = await access.write({ name, namespace }, { metadata: { uid, resourceVersion }, spec });
    if (image !== undefined) {
      return { image };
    }
  }
  return { refusal: `Other clients are changing Image ${name}. Try again` };
}

/**
 * Returns the reason why the disk of the VM must not replace the content of the Image now. One such reason is an earlier commit that has
 * not ended. A new commit would make the operator drop the result of the earlier commit.
 */
function commitRefusal(image: Image, vm: VM): string | undefined {
  const { name } = vm.metadata;
  const { commit } = image.spec;
  if (isOther(image, vm)) {
    return `VM ${name} was not made from the present content of Image ${image.metadata.name}. Save the VM as a new image instead`;
  }
  return commit === undefined || commit.requestedAt === image.status?.lastCommit?.requestedAt
    ? undefined
    : `The commit of VM ${commit.vmName} to Image ${image.metadata.name}, requested at ${commit.requestedAt}, has not ended. Wait for its end, or save VM ${name} as a new image`;
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
  { config: read }: Pick<CommitAccess, 'config'>,
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
  // The function compares `wanted` with the size in the status and with the size in `spec`. While the host has not yet done an earlier
  // resize, the size in `spec` is larger than the size in the status.
  const larger = [status?.resources?.diskSize, spec.diskSize].find(
    (size) => size !== undefined && parseQuantity(size) > parseQuantity(wanted),
  );
  return larger === undefined
    ? { patch: { metadata: { uid }, spec: { diskSize: wanted } } }
    : { refusal: `The disk of VM ${name} has ${larger}. A disk can only grow, so ${wanted} is refused` };
}
