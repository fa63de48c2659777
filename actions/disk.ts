/** Saves, pushes, commits and enlarges the disk of a VM: makes the objects that request the work from the host of the VM. */
import { PUSH_NAME } from '../api/http/imageitem.ts';
import type { Image, ImageSpec } from '../api/v1alpha1/image.ts';
import { CLUSTER_INFO, HAS_IMAGE_STORAGE, isObjectName, NO_IMAGE_STORAGE } from '../api/v1alpha1/names.ts';
import { parseQuantity } from '../api/v1alpha1/quantity.ts';
import type { VMPhase } from '../api/v1alpha1/phases.ts';
import { isImageReference, pushMistake } from '../api/v1alpha1/reference.ts';
import { IMAGES, VM_CONFIGS, VMS } from '../api/v1alpha1/resources.ts';
import type { VM } from '../api/v1alpha1/vm.ts';
import { undefinedIf } from '../base/errors.ts';
import type { KubeClient } from '../kube/client.ts';
import { readData } from '../kube/configmapdata.ts';
import { isConflict, isForbidden, unlessMissing } from '../kube/errors.ts';
import { changeObject } from './change.ts';
import { ActionError } from './error.ts';

const RUNNING: VMPhase = 'Running';
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

interface SaveRequest {
  readonly imageName: string;
  readonly description?: string | undefined;
  readonly memory?: boolean | undefined;
  /** Name of the VMSnapshot whose disk is saved instead of the present one. */
  readonly snapshot?: string | undefined;
}

/** How an action reaches the cluster. */
export interface ClusterAccess {
  readonly client: KubeClient;
  /** Namespace of the operator. */
  readonly systemNamespace: string;
}

/**
 * Refuses work for which the cluster needs an image storage, before anything is written. If the operator has not published yet whether there
 * is one, the work is not refused. The operator then refuses it.
 *
 * @throws ActionError `unsupported` when there is no image storage; ApiError.
 */
export async function requireImageStorage({ client, systemNamespace }: ClusterAccess): Promise<void> {
  const reading = readData(client, { namespace: systemNamespace, name: CLUSTER_INFO });
  const info = await undefinedIf(isForbidden, reading);
  if (info?.[HAS_IMAGE_STORAGE] === 'false') {
    const causes = [{ reason: 'NoImageStorage', message: NO_IMAGE_STORAGE }];
    throw new ActionError('unsupported', NO_IMAGE_STORAGE, { causes });
  }
}

/**
 * Returns a new Image whose content becomes a copy of the VM's disk, and of its memory if `memory` is true. With `snapshot`, it is the disk
 * of this VMSnapshot.
 *
 * @throws ActionError when the VM does not run and its memory is wanted: the save would wait; errors of {@link requireImageStorage}
 */
export async function savedImage(
  access: ClusterAccess,
  { metadata: { name, namespace = '' }, status = {} }: VM,
  { imageName, description, memory, snapshot }: SaveRequest,
): Promise<NewImage<Name>> {
  const { phase = 'Pending' } = status;
  if (memory === true && phase !== RUNNING) {
    throw new ActionError('refused', `VM ${name} is ${phase}, and only a running VM has a memory to save`);
  }
  await requireImageStorage(access);
  return {
    metadata: { name: imageName, namespace },
    spec: { description, source: { fromVM: { name, memory, snapshot } } },
  };
}

/**
 * Returns a new Image that represents a push of the VM's disk. The Image names no credentials, because the operator finds the credentials
 * of the namespace.
 *
 * @throws ActionError when no registry can take the reference, and errors of {@link requireImageStorage}: a host first saves the whole disk.
 */
export async function pushedImage(
  access: ClusterAccess,
  vm: Name,
  reference: string,
): Promise<NewImage<{ generateName: string; namespace: string }>> {
  const mistake = pushMistake(reference);
  if (mistake !== undefined) {
    throw new ActionError('invalid', `Nothing can be pushed as ${reference}: ${mistake}`);
  }
  await requireImageStorage(access);
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
 * @throws ActionError when the request is refused; errors of {@link requireImageStorage}.
 */
export async function requestCommit(
  access: ClusterAccess,
  vm: VM,
  description: string | undefined,
): Promise<Image> {
  await requireImageStorage(access);
  const { client } = access;
  const { name: vmName, namespace = '' } = vm.metadata;
  const name = await imageOf(client, vm, namespace);
  return await changeObject(
    () => `Image ${name}`,
    async () => {
      const found = await committable(client, { name, namespace }, vm);
      const { uid, resourceVersion } = found.metadata;
      const commit = { vmName, requestedAt: new Date().toISOString() };
      const spec = { commit, ...(description !== undefined && { description }) };
      const patch = { metadata: { uid, resourceVersion }, spec };
      const write = client.mergePatch<Image>(IMAGES, { name, namespace }, patch);
      return await undefinedIf(isConflict, write);
    },
  );
}

/** Returns the Image of the VM. @throws ActionError when it is no Image of the namespace, or must not be replaced now; ApiError. */
async function committable(client: KubeClient, { namespace, name }: Name, vm: VM): Promise<Image> {
  const isImage = isObjectName(name) && !isImageReference(name);
  const found = isImage ? await unlessMissing(client.get(IMAGES, { name, namespace })) : undefined;
  if (found === undefined) {
    const cause = `image ${name || '(none)'} of VM ${vm.metadata.name} is not an Image in namespace ${namespace}`;
    throw new ActionError('refused', `The ${cause}. Save the VM as a new image instead`);
  }
  const refusal = commitRefusal(found, vm);
  if (refusal !== undefined) {
    throw new ActionError('refused', refusal);
  }
  return found;
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
async function imageOf(client: KubeClient, { spec, status = {} }: VM, namespace: string): Promise<string> {
  if (spec.image !== undefined || spec.iso !== undefined) {
    return spec.image ?? '';
  }
  const { config } = status;
  if (config === undefined) {
    return '';
  }
  const ref = { namespace: config.namespace ?? namespace, name: config.name };
  const found = await unlessMissing(client.get(VM_CONFIGS, ref));
  // If the VMConfig has changed since the VM was made, nobody knows which image the VM was made from. Therefore the function compares the
  // generations of the VMConfig.
  return found?.metadata.generation === config.generation ? (found.spec.image ?? '') : '';
}

/**
 * Requests that the disk grows to the quantity `wanted`. Returns the VM with the request.
 *
 * @throws ActionError when the disk is already larger; ApiError.
 */
export async function requestResize(
  client: KubeClient,
  { metadata: { name, namespace = '', uid }, spec, status }: VM,
  wanted: string,
): Promise<VM> {
  // The function compares `wanted` with the size in the status and with the size in `spec`. While the host has not yet done an earlier
  // resize, the size in `spec` is larger than the size in the status.
  const larger = [status?.resources?.diskSize, spec.diskSize].find(
    (size) => size !== undefined && parseQuantity(size) > parseQuantity(wanted),
  );
  if (larger !== undefined) {
    const message = `The disk of VM ${name} has ${larger}. A disk can only grow, so ${wanted} is refused`;
    throw new ActionError('refused', message);
  }
  return await client.mergePatch<VM>(
    VMS,
    { namespace, name },
    { metadata: { uid }, spec: { diskSize: wanted } },
  );
}
