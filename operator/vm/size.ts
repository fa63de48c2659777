/**
 * Determines the size of a machine. The requests and limits of its Pod contain this size, because the scheduler and ResourceQuota read them.
 * After the Pod's creation, only `pods/resize` changes the resource requests. The operator always tells the agent the size in the resource
 * requests, never a larger size.
 */
import { waitAfter } from '../../base/backoff.ts';
import { sizeRequests } from '../../api/v1alpha1/hostspace.ts';
import { MACHINE_MEMORY_OVERHEAD_BYTES } from '../../api/v1alpha1/machine.ts';
import { MACHINE_CONTAINER } from '../../api/v1alpha1/names.ts';
import { formatQuantity, parseQuantity } from '../../api/v1alpha1/quantity.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { Container, Pod } from '../../kube/core.ts';
import type { ConditionDraft } from '../objects/conditions.ts';
import type { ObservedVM, ResizeRefusal, Size } from './observe.ts';
import { machineContainer, machineReport, podCondition } from '../podbacked/pod.ts';

/**
 * First wait in milliseconds after a refused resize. The operator must try again, because no watch shows when a quota allows the new size.
 * The wait doubles with each refusal, so that many VMs with the same quota do not overload the API server.
 */
const RESIZE_RETRY_FIRST_MILLISECONDS = 10_000;
/** Longest wait in milliseconds after a refused resize. It is the interval at which the controller-manager computes every quota again. */
const RESIZE_RETRY_CAP_MILLISECONDS = 300_000;

/** Returns the size in the Pod's requests. The result is undefined if the requests contain no cpu or memory. */
export function podSize(pod: Pod): Size | undefined {
  const { cpu, memory } = machineContainer(pod)?.resources?.requests ?? {};
  return cpu === undefined || memory === undefined
    ? undefined
    : {
        cpu: Number(parseQuantity(cpu)),
        memoryBytes: parseQuantity(memory) - BigInt(MACHINE_MEMORY_OVERHEAD_BYTES),
      };
}

/**
 * Returns the size that the VM requests. The result is undefined if the Pod already has this size, or if the size of the Pod is unknown.
 */
export function wantedSize({ vm, pod }: Pick<ObservedVM, 'vm' | 'pod'>): Size | undefined {
  const counted = pod && podSize(pod);
  if (counted === undefined) {
    return undefined;
  }
  const { cpu = counted.cpu, memory } = vm.spec;
  const memoryBytes = memory === undefined ? counted.memoryBytes : parseQuantity(memory);
  return isSameSize({ cpu, memoryBytes }, counted) ? undefined : { cpu, memoryBytes };
}

function isSameSize(one: Size, other: Size): boolean {
  return one.cpu === other.cpu && one.memoryBytes === other.memoryBytes;
}

/**
 * Returns the Pod's containers with the requests and limits of another size, for a PATCH of `pods/resize`. Both stay equal, because the QoS
 * class of a Pod cannot change.
 */
export function resizedContainers(pod: Pod, size: Size): Container[] {
  return pod.spec.containers.map((container) => {
    const { requests, limits } = container.resources ?? {};
    const wanted = sizeRequests(size);
    const resources = { requests: { ...requests, ...wanted }, limits: { ...limits, ...wanted } };
    return container.name === MACHINE_CONTAINER ? { ...container, resources } : container;
  });
}

/** Returns the record of a new refusal. Its `attempts` count how many times in a row the API server refused the wanted size. */
export function refusedAgain(
  { resizeRefused: last, now }: ObservedVM,
  wanted: Size,
  message: string,
): ResizeRefusal {
  const attempts = last !== undefined && isSameSize(last.wanted, wanted) ? last.attempts + 1 : 1;
  const wait = waitAfter(attempts, RESIZE_RETRY_FIRST_MILLISECONDS, RESIZE_RETRY_CAP_MILLISECONDS);
  return { wanted, message, attempts, retryAt: now + wait };
}

/** Returns the last refusal if the VM still requests the refused size. Otherwise returns undefined. */
export function standingRefusal(observed: ObservedVM): ResizeRefusal | undefined {
  const { resizeRefused } = observed;
  if (resizeRefused === undefined) {
    return undefined;
  }
  const wanted = wantedSize(observed);
  return wanted !== undefined && isSameSize(wanted, resizeRefused.wanted) ? resizeRefused : undefined;
}

/**
 * Returns the condition RestartRequired if the machine does not have the size that the VM requests. Otherwise returns undefined. The
 * machine gets the new size at its next start, unless this size was refused or waits for room on the host.
 */
export function restartRequired(observed: ObservedVM): ConditionDraft | undefined {
  const draft = { type: 'RestartRequired', status: 'True' } as const;
  const { pod } = observed;
  if (pod === undefined) {
    return undefined;
  }
  const refused = standingRefusal(observed);
  if (refused !== undefined) {
    return { ...draft, reason: 'ResizeRefused', message: keeps(pod, refused.wanted, refused.message) };
  }
  const pending = podCondition(pod, 'PodResizePending');
  const counted = podSize(pod);
  if (pending?.status === 'True' && counted !== undefined) {
    const { reason, message = '' } = pending;
    return reason === 'Deferred'
      ? {
          ...draft,
          reason: 'ResizeDeferred',
          message: `The host has no room yet for the size ${formatSize(counted)}: ${message}`,
        }
      : { ...draft, reason: 'ResizeRefused', message: keeps(pod, counted, message) };
  }
  const message = differs(observed.vm, pod, counted);
  return message === undefined ? undefined : { ...draft, reason: 'ResourcesChanged', message };
}

function keeps(pod: Pod, wanted: Size, text: string): string {
  const started = startedSize(pod);
  const size = started === undefined ? 'its old size' : formatSize(started);
  return `The machine keeps ${size} at every start, because ${formatSize(wanted)} was refused: ${text}`;
}

/** Returns a message with the machine's sizes now and after its next start. The result is undefined if they are the same or unknown. */
function differs(vm: VM, pod: Pod, counted: Size | undefined): string | undefined {
  const started = startedSize(pod);
  const changes: (readonly [string, string])[] = [];
  if (started !== undefined && counted !== undefined && !isSameSize(started, counted)) {
    changes.push([formatSize(started), formatSize(counted)]);
  }
  const { diskSizeBytes } = machineReport(pod);
  const { diskSize = '0' } = vm.spec;
  if (diskSizeBytes !== undefined && parseQuantity(diskSize) > BigInt(diskSizeBytes)) {
    changes.push([`diskSize ${formatQuantity(BigInt(diskSizeBytes))}`, `diskSize ${diskSize}`]);
  }
  const [before, after] = [0, 1].map((side) => changes.map((change) => change[side]).join(', '));
  return changes.length === 0
    ? undefined
    : `The machine runs with ${before}; ${after} takes effect at the next start`;
}

/** Returns the size that the running or suspended machine was started with, as its host reports it. */
export function startedSize(pod: Pod): Size | undefined {
  const { cpu, memoryBytes } = machineReport(pod);
  return cpu === undefined || memoryBytes === undefined
    ? undefined
    : { cpu, memoryBytes: BigInt(memoryBytes) };
}

function formatSize({ cpu, memoryBytes }: Size): string {
  return `cpu ${cpu}, memory ${formatQuantity(memoryBytes)}`;
}
