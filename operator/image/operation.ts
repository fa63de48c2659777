/** Determines which operation an Image or ISO needs next. One operation runs at a time, and others wait. All functions are pure. */
import type { Image } from '../../api/v1alpha1/image.ts';
import type { ISO } from '../../api/v1alpha1/iso.ts';
import { MACHINE_MEMORY_OVERHEAD_BYTES } from '../../api/v1alpha1/machine.ts';
import type { MachineImageSource } from '../../api/v1alpha1/source.ts';
import { NO_IMAGE_STORAGE, STORAGE_SECRET } from '../../api/v1alpha1/names.ts';
import type { Reason } from '../../api/v1alpha1/reasons.ts';
import { parseQuantity } from '../../api/v1alpha1/quantity.ts';
import { normaliseImageName } from '../../api/v1alpha1/reference.ts';
import { type StorageTarget, TASK_API_VERSION, type Task, type TaskImage } from '../../api/v1alpha1/task.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import {
  contentOf,
  directSource,
  imageObjectName,
  isKeptFromCopies,
  NO_DISK,
  storedContent,
  originKeys,
  traitsOf,
} from './content.ts';
import { finalFailure } from './facts.ts';
import type { ImageJob, ImageOperationType, ObservedImage } from './observe.ts';
import { storageTarget } from './place.ts';

const apiVersion = TASK_API_VERSION;

export interface ImageOperation {
  readonly kind: 'operation';
  readonly type: ImageOperationType;
  /**
   * Time in the spec (`requestedAt`) at which a commit, push or download was requested. It is undefined for a pull, save or upload,
   * because the spec has no such time for them.
   */
  readonly requestedAt?: string | undefined;
  readonly task: Task;
  readonly pullSecrets?: readonly string[];
  /** Name of the VM's host if the task copies a VM's disk. If it is undefined, any host can do the task. */
  readonly nodeName?: string;
  /** Memory in bytes of the clone in which the host prepares the memory of the VM. */
  readonly machineBytes?: bigint | undefined;
}

/** Reason why an operation is not possible yet, or will never be possible. */
export interface BlockedImage {
  readonly kind: 'blocked';
  /** Action that is blocked. It is undefined if the image itself cannot be created. */
  readonly operation?: 'commit' | 'download' | undefined;
  readonly requestedAt?: string | undefined;
  readonly reason: Reason;
  readonly message: string;
}

/** State of the operation that an Image or ISO needs next. */
export interface ImageProgress {
  readonly operation: ImageOperation | undefined;
  readonly blocked: BlockedImage | undefined;
  /** Job of the last attempt. */
  readonly job: ImageJob | undefined;
  /**
   * Time of the next attempt after a failure, in milliseconds since the epoch. It is undefined if there was no failure, or if there will be
   * no further attempt.
   */
  readonly retryAt: number | undefined;
  /** Message of the API server if it refused the Job of the operation. */
  readonly refused: string | undefined;
}

/**
 * Returns the operation that the object needs next, or the reason why this operation is blocked. The result is undefined if no operation is
 * needed.
 */
export function dueOperation(observed: ObservedImage): ImageOperation | BlockedImage | undefined {
  const { content, contentFailure } = observed.object.status ?? {};
  if (content === undefined) {
    const failure = finalFailure(contentFailure);
    return failure === undefined ? first(observed) : blocked(failure.reason, failure.message);
  }
  return pendingCommit(observed) ?? pendingPush(observed) ?? pendingDownload(observed);
}

/**
 * Returns the operation that creates the content, or the reason why this operation is blocked. Copies and empty disks never need an
 * operation. A copy refers to the content of its original, and an empty disk is described completely in the spec.
 */
function first(observed: ObservedImage): ImageOperation | BlockedImage {
  const { source } = observed.object.spec;
  if ('fromVM' in source && source.fromVM !== undefined) {
    const { name: vmName, memory, snapshot } = source.fromVM;
    return save(observed, { type: 'save', vmName, withMemory: memory === true, snapshot });
  }
  if (source.copyOf !== undefined) {
    return noCopy(observed);
  }
  if (source.upload !== undefined) {
    return upload(observed, Number(parseQuantity(source.upload.maxSize)));
  }
  const direct = directSource(source);
  return direct === undefined
    ? blocked('SourceUnsupported', 'The image has no source')
    : pull(observed, direct);
}

function noCopy({ kind, object, origin, config }: ObservedImage): BlockedImage {
  if (origin === undefined) {
    const places = originKeys(object, config).join(' or ');
    return blocked('CopySourceNotReady', `${kind} ${places} was not found`);
  }
  const { name } = origin.metadata;
  return isKeptFromCopies(origin, object)
    ? blocked(
        'CopyWouldShowURL',
        `${kind} ${name} has a URL with a query, which can contain credentials. A copy would show this URL to users of another namespace. Set imageStorage in the configuration of the operator to store the content`,
      )
    : blocked('CopySourceNotReady', `${kind} ${name} has no content yet`);
}

function pull(observed: ObservedImage, source: MachineImageSource): ImageOperation | BlockedImage {
  const { object, config } = observed;
  const { isLasting } = traitsOf(source);
  const target = isLasting ? undefined : storageTarget(object, config, versionOf(observed));
  return {
    kind: 'operation',
    type: 'pull',
    task: { apiVersion, type: 'import', image: taskImage(observed, source), target },
    pullSecrets: [...secretNames(object), ...storageSecrets(target)],
  };
}

/** Returns the name of the Secret with which a host writes to the target. The namespace need not have this Secret. */
function storageSecrets(target: StorageTarget | undefined): string[] {
  return target?.type === 'registry' ? [STORAGE_SECRET] : [];
}

function secretNames({ spec: { imagePullSecrets = [] } }: Image | ISO): string[] {
  return imagePullSecrets.map(({ name }) => name);
}

/** An upload has only one attempt, because the client does not send the file again. */
function upload(observed: ObservedImage, limitBytes: number): ImageOperation | BlockedImage {
  const { object, config } = observed;
  const failure = object.status?.uploadFailure;
  if (failure !== undefined) {
    return blocked('UploadFailed', failure);
  }
  const target = storageTarget(object, config, object.metadata.uid ?? '');
  if (target === undefined) {
    return blocked('NoImageStorage', NO_IMAGE_STORAGE);
  }
  const { format, architecture } = formOf(observed);
  return {
    kind: 'operation',
    type: 'upload',
    task: { apiVersion, type: 'receive', limitBytes, format, architecture, target },
    pullSecrets: storageSecrets(target),
  };
}

function pendingCommit(observed: ObservedImage): ImageOperation | BlockedImage | undefined {
  const { object } = observed;
  const commit = 'commit' in object.spec ? object.spec.commit : undefined;
  const done = (object as Image).status?.lastCommit?.requestedAt;
  if (commit === undefined || commit.requestedAt === done) {
    return undefined;
  }
  const { vmName, requestedAt } = commit;
  return save(observed, { type: 'commit', vmName, withMemory: false, requestedAt });
}

interface Saving {
  readonly type: 'save' | 'commit';
  readonly vmName: string;
  readonly withMemory: boolean;
  /** Name of the snapshot whose disk is saved instead of the present one. */
  readonly snapshot?: string | undefined;
  readonly requestedAt?: string;
}

function save(
  observed: ObservedImage,
  { type, vmName, withMemory, snapshot, requestedAt }: Saving,
): ImageOperation | BlockedImage {
  const { object, config } = observed;
  const action = { operation: type === 'commit' ? type : undefined, requestedAt };
  // For a commit, `version` contains the commit's `requestedAt` and the current tag or file name. The new tag or file name depends on
  // `version`. Therefore the new name always differs from the current name, even if another commit has the same `requestedAt`.
  const version = requestedAt === undefined ? versionOf(observed) : `${requestedAt} ${placeName(object)}`;
  const target = storageTarget(object, config, version);
  if (target === undefined) {
    return { ...blocked('NoImageStorage', NO_IMAGE_STORAGE), ...action };
  }
  const disk = diskToSave(observed, { vmName, snapshot });
  if ('kind' in disk) {
    return { ...disk, ...action };
  }
  const { vm, nodeName, ref } = disk;
  const saved = { vm: ref, memory: withMemory ? true : undefined, snapshot: disk.snapshot } as const;
  const task: Task = { apiVersion, type: 'save', ...saved, target };
  const machineBytes = withMemory ? bytesOf(vm) : undefined;
  const pullSecrets = storageSecrets(target);
  return { kind: 'operation', type, requestedAt, task, nodeName, pullSecrets, machineBytes };
}

/** The disk that is saved, with the host that has it. */
interface SavedDisk {
  readonly vm: VM;
  readonly nodeName: string;
  readonly ref: { namespace: string; name: string; uid: string };
  /** Uid of the snapshot that has the disk. It is undefined for the present disk. */
  readonly snapshot: string | undefined;
}

/** Returns the disk that is saved, or why there is none. */
function diskToSave(
  observed: ObservedImage,
  { vmName, snapshot: name }: Pick<Saving, 'vmName' | 'snapshot'>,
): SavedDisk | BlockedImage {
  const vm = observed.vm(vmName);
  const nodeName = hostOf(vm);
  if (vm === undefined || nodeName === undefined) {
    return noDisk(vm, vmName);
  }
  const snapshot = name === undefined ? undefined : snapshotOf(observed, vm, name);
  const { uid = '', namespace = '' } = vm.metadata;
  const ref = { namespace, name: vmName, uid };
  return typeof snapshot === 'object' ? snapshot : { vm, nodeName, ref, snapshot };
}

/** Returns the memory in bytes that a machine like that of the VM needs on its host. */
function bytesOf({ status }: VM): bigint {
  return parseQuantity(status?.resources?.memory ?? '0') + BigInt(MACHINE_MEMORY_OVERHEAD_BYTES);
}

/** Returns the uid of a snapshot of the VM, or why there is none to save. */
function snapshotOf(observed: ObservedImage, vm: VM, name: string): string | BlockedImage {
  const { status, metadata } = observed.snapshot(name) ?? {};
  if (status?.vmUID === undefined || status.vmUID !== vm.metadata.uid || metadata?.uid === undefined) {
    return blocked('SnapshotNotFound', `VM ${vm.metadata.name} has no VMSnapshot ${name}`);
  }
  return status.takenAt === undefined
    ? blocked('SnapshotNotReady', `VMSnapshot ${name} is ${status.phase ?? 'new'}`)
    : metadata.uid;
}

/**
 * Returns the `version` of the first content. Each attempt writes a file of its own. A host that did not respond can still end an earlier
 * attempt, and must not replace the file of a later attempt. In a registry all attempts have one tag, because the digest names the content.
 */
function versionOf({ object, config, now }: ObservedImage): string {
  const { uid = '' } = object.metadata;
  return config.imageStorage?.folder === true ? `${uid} ${now}` : uid;
}

function placeName(object: Image | ISO): string {
  const content = storedContent(object);
  return content === undefined ? '' : JSON.stringify(content);
}

/** Returns the name of the host that has the VM's disk, even if the VM is stopped. The result is undefined if the VM has never run. */
function hostOf(vm: VM | undefined): string | undefined {
  return vm?.status?.firstRunningTime === undefined ? undefined : vm.status.nodeName;
}

/** Returns why there is no disk to copy. A VM that has failed never runs again, so users must create it again. */
function noDisk(vm: VM | undefined, name: string): BlockedImage {
  return vm === undefined
    ? blocked('VMNotFound', `There is no VM ${name} in this namespace`)
    : vm.status?.failure === undefined
      ? blocked('VMNotReady', `VM ${name} has not run yet`)
      : blocked('NoMachine', `VM ${name} failed and left no disk. Delete the VM and create it again`);
}

function pendingPush(observed: ObservedImage): ImageOperation | undefined {
  const object = observed.object as Image;
  const { push } = object.spec;
  const content = contentOf(object);
  if (
    push === undefined ||
    content === undefined ||
    push.requestedAt === object.status?.lastPush?.requestedAt
  ) {
    return undefined;
  }
  const secrets = [push.secretName, ...secretNames(object)];
  return {
    kind: 'operation',
    type: 'push',
    requestedAt: push.requestedAt,
    task: {
      apiVersion,
      type: 'push',
      image: taskImage(observed, content.source),
      reference: normaliseImageName(push.reference),
    },
    pullSecrets: [...new Set(secrets.filter((name) => name !== undefined))],
  };
}

/**
 * Returns the download that is requested and not yet done. Clients download an image as qcow2, because they use it as the writable disk of
 * a VM. They download an ISO without conversion.
 */
function pendingDownload(observed: ObservedImage): ImageOperation | BlockedImage | undefined {
  const { object, kind, config } = observed;
  const { requestedAt } = object.spec.download ?? {};
  const content = contentOf(object);
  if (requestedAt === undefined || content === undefined) {
    return undefined;
  }
  if (requestedAt === object.status?.lastDownload?.requestedAt) {
    return undefined;
  }
  const action = { operation: 'download', requestedAt } as const;
  if (traitsOf(content.source).isInstaller === true) {
    return { ...blocked('SourceUnsupported', NO_DISK), ...action };
  }
  if (storageTarget(object, config, '') === undefined) {
    return { ...blocked('NoImageStorage', NO_IMAGE_STORAGE), ...action };
  }
  const format = kind === 'ISO' ? 'raw' : 'qcow2';
  return {
    kind: 'operation',
    type: 'download',
    requestedAt,
    task: { apiVersion, type: 'send', image: taskImage(observed, content.source), format },
    pullSecrets: secretNames(object),
  };
}

function taskImage(observed: ObservedImage, source: TaskImage['source']): TaskImage {
  return { source, ...formOf(observed), name: imageObjectName(observed.object) };
}

function formOf({ kind, object: { spec } }: ObservedImage): Pick<TaskImage, 'format' | 'architecture'> {
  const format = 'format' in spec ? spec.format : undefined;
  return { format: format ?? (kind === 'ISO' ? 'ISO' : 'Auto'), architecture: spec.architecture };
}

function blocked(reason: Reason, message: string): BlockedImage {
  return { kind: 'blocked', reason, message };
}
