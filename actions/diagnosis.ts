/** Finds the reason why a VM is not running, from the status of the VM and from related objects. All functions are pure. */
import { conditionOf } from '../api/http/conditions.ts';
import type { StatusCondition } from '../api/v1alpha1/conditions.ts';
import type { StoredContent } from '../api/http/imageitem.ts';
import {
  classOf,
  isReason,
  isSeen,
  meaningOf,
  type Reason,
  type ReasonClass,
  textsFor,
  UNCHECKED_GUEST,
} from '../api/v1alpha1/reasons.ts';
import type { VM } from '../api/v1alpha1/vm.ts';
import type { Node, Pod } from '../kube/core.ts';
import { ALL_REFUSED, NONE_ABLE, obstaclesIn } from '../api/v1alpha1/obstacles.ts';
import { placementAdvice } from './placementadvice.ts';

/** Areas where a problem can occur before a VM runs. A VM passes the areas in this order. */
export const AREAS = ['spec', 'scheduler', 'quota', 'image', 'network', 'host', 'machine', 'guest'] as const;
export type Area = (typeof AREAS)[number];

/** Objects from which the diagnosis is made. An object is absent if it does not exist, or if the user may not read it. */
export interface Seen {
  readonly vm: VM;
  readonly pod?: Pod | undefined;
  /** Image and ISO that the VM names. */
  readonly images?: readonly Pick<StoredContent, 'kind' | 'metadata' | 'status'>[];
  /** All Nodes. */
  readonly nodes?: readonly Node[] | undefined;
}

interface Problem {
  readonly area: Area;
  readonly reason: string;
  readonly message: string;
  /** Meaning of the reason in this case. If absent, the catalogue of reasons has the meaning. */
  readonly meaning?: string;
  /** Next steps for the user. If absent, the catalogue of reasons has the next step. */
  readonly todo?: readonly string[];
}

interface Check {
  readonly area: Area;
  /** `off` means that the machine is off, because the spec of the VM requests a stopped or suspended VM. */
  readonly state: 'ok' | 'problem' | 'off' | 'not yet' | 'not checked';
  readonly message: string;
}

export interface Diagnosis {
  readonly name: string;
  readonly namespace: string;
  readonly phase: string;
  /** Whether the VM runs and its guest is ready. */
  readonly ok: boolean;
  /** Area of the problem. Absent if the VM runs, or only needs time. */
  readonly area?: Area;
  readonly reason?: string;
  /** Sentence about the state of the VM, for example from the host, the scheduler or the API server. */
  readonly message: string;
  /** Meaning of the reason. */
  readonly meaning?: string;
  readonly class?: ReasonClass;
  /** Sentence about the reaction of Berth to the fault. */
  readonly outlook?: string;
  readonly todo: readonly string[];
  readonly checks: readonly Check[];
}

/** Reasons of faults in the network, including reasons of the condition NetworkReady. */
const NETWORK_REASONS: ReadonlySet<string> = new Set([
  'NATSelfHealFailed',
  'NetworkUnavailable',
  'NetworkModeUnsupported',
  'PortsNeedNAT',
  'PortTaken',
  'PortNotReservable',
  'NoFreePort',
]);
const HOST_REASONS: ReadonlySet<string> = new Set([
  'HostLost',
  'HostUnreachable',
  'HostPoweredOff',
  'HostDiskFull',
  'Evicted',
  'SecretNotRead',
]);
const GUEST_REASONS: ReadonlySet<string> = new Set<Reason>(['NotReady', 'NoSSHServer']);
/** Reason of a VM whose spec names a VMConfig that does not exist. Nobody can look for a host before there is one. */
const SPEC_REASON: Reason = 'ConfigNotFound';
const OWN_END: Reason = 'GuestShutdown';
const QUOTA = /exceeded quota: ([^,\s]+)/;
/** Pattern of a quota that a smaller VM would meet. The size of a disk can only grow, and other quotas count objects. */
const SIZES = /requested: [^:]*\b(cpu|memory)=/;

export function diagnose(seen: Seen): Diagnosis {
  const { vm } = seen;
  const { name, namespace = '' } = vm.metadata;
  const phase = phaseOf(vm);
  const problem = FINDERS.map((find) => find(seen)).find((found) => found !== undefined);
  const known = { name, namespace, phase, checks: checksOf(vm, problem) };
  if (problem !== undefined) {
    return { ...known, ok: false, ...explained(problem, vm) };
  }
  const guest = isUnchecked(vm) ? 'Its guest is not checked' : 'Nothing is wrong';
  return conditionOf(vm, 'Ready')?.status === 'True'
    ? { ...known, ok: true, message: `VM ${name} runs. ${guest}${bootNote(vm)}`, todo: [] }
    : { ...known, ok: false, message: waitsFor(vm, phase), todo: [patience(phase)] };
}

/** Returns why a machine booted that could have started from a saved memory. The text is empty for all other machines. */
function bootNote(vm: VM): string {
  const warm = conditionOf(vm, 'WarmStart');
  return warm?.status === 'False'
    ? `. It did not start from the saved memory: ${warm.message || warm.reason}`
    : '';
}

/** Returns the phase of a VM. A VM that is being deleted is Terminating. */
export function phaseOf({ metadata, status = {} }: VM): string {
  return metadata.deletionTimestamp === undefined ? (status.phase ?? 'Pending') : 'Terminating';
}

/**
 * Returns the problem, and the texts of the catalogue for its reason. The catalogue might not contain the reason, because the host can have
 * another release.
 */
function explained({ area, reason, message, meaning, todo }: Problem, vm: VM) {
  const texts = isReason(reason) ? textsFor(reason, 'VM') : undefined;
  const known = classOf(reason, 'VM');
  const outlook = outlookOf(vm);
  const steps = todo ?? [texts?.todo ?? []].flat();
  return {
    area,
    reason,
    message,
    ...(texts && { meaning: meaning ?? texts.says }),
    ...(known && { class: known }),
    ...(outlook !== undefined && { outlook }),
    todo: isFinal(vm) ? withNew(steps) : steps,
  };
}

/** Pattern of steps that tell to create a VM in the place of a failed one, and nothing else in its place. */
const CREATES = /again|^Create the VM /;

/** Returns the steps, of which at least one tells to create the VM again. */
function withNew(steps: readonly string[]): readonly string[] {
  return steps.some((step) => CREATES.test(step)) ? steps : [...steps, 'Create the VM again'];
}

/**
 * Returns how Berth reacts to the fault. This depends on the state of the VM and not on the reason: a VM that waits for an image starts by
 * itself, and a VM that failed for the same reason does not.
 */
function outlookOf(vm: VM): string | undefined {
  const { phase, firstRunningTime, nodeName } = vm.status ?? {};
  if (vm.metadata.deletionTimestamp !== undefined) {
    return undefined;
  }
  if (phase === 'Stopped' || phase === 'Suspended') {
    return 'The VM stays off until somebody starts it';
  }
  if (isFinal(vm)) {
    return finalOutlook(vm);
  }
  if (firstRunningTime !== undefined || phase === 'Running' || phase === 'Failed') {
    return 'Berth keeps the VM, and looks again until the cause is gone';
  }
  return nodeName === undefined
    ? outlookWithoutHost(vm)
    : 'The host tries again. The VM fails if it is not Running deployTimeoutSeconds after it got its host';
}

function finalOutlook({ status }: VM): string {
  return status?.phase === 'Failed'
    ? 'The VM has failed, and Berth does not start it again'
    : 'Berth does not start this VM, because its spec is not possible here';
}

/** Says how a VM goes on that no host has. The scheduler never gives it to a host that has refused it. */
function outlookWithoutHost(vm: VM): string {
  return conditionOf(vm, 'Scheduled')?.message.startsWith(ALL_REFUSED) === true
    ? 'The VM waits without a time limit for another host, and does not go back to hosts that refused it'
    : 'The VM waits without a time limit, and goes on by itself when the cause is gone';
}

/** Returns true if only another VM can run in the place of this one. A VM that is off can be started. */
function isFinal(vm: VM): boolean {
  const isOff = ['Stopped', 'Suspended', 'Terminating'].includes(phaseOf(vm));
  return !isOff && (vm.status?.failure !== undefined || conditionOf(vm, 'Stalled')?.status === 'True');
}

/** Returns true if Ready means only that the machine runs: nobody checks the guest, and no guest agent has answered. */
function isUnchecked(vm: VM): boolean {
  return (
    conditionOf(vm, 'Ready')?.message === UNCHECKED_GUEST &&
    conditionOf(vm, 'GuestAgentConnected')?.status !== 'True'
  );
}

/** Functions that each look for one type of problem. The functions with the most certain results come first. */
const FINDERS: readonly ((seen: Seen) => Problem | undefined)[] = [
  deletion,
  failure,
  placement,
  silentHost,
  missingImage,
  ({ vm }) => fault(vm, 'UserDataReady', 'guest'),
  ({ vm }) => fault(vm, 'NetworkReady', 'network'),
  power,
  notReady,
];

function deletion({ vm }: Seen): Problem | undefined {
  return vm.metadata.deletionTimestamp === undefined
    ? undefined
    : {
        area: 'host',
        reason: 'Terminating',
        message: 'The VM is being deleted',
        todo: [
          'Wait until the VM no longer exists, then create the VM again. If its host does not report, the deletion waits for the host',
        ],
      };
}

function failure({ vm }: Seen): Problem | undefined {
  const { failure: recorded } = vm.status ?? {};
  const stalled = conditionOf(vm, 'Stalled');
  // A guest that powered itself off has not failed.
  const isFinal = stalled?.status === 'True' && stalled.reason !== OWN_END;
  const { reason, message } = recorded ?? (isFinal ? stalled : {});
  return reason === undefined ? undefined : { area: areaOf(reason), reason, message: message || reason };
}

function placement(seen: Seen): Problem | undefined {
  const scheduled = conditionOf(seen.vm, 'Scheduled');
  if (scheduled?.status !== 'False') {
    return undefined;
  }
  const { reason, message } = scheduled;
  if (reason === 'Unschedulable') {
    const meaning = meaningOfPlacement(message);
    return { area: 'scheduler', reason, message, meaning, todo: placementAdvice(message, seen) };
  }
  const [, quota] = QUOTA.exec(message) ?? [];
  return quota === undefined
    ? { area: areaOfWait(reason), reason, message }
    : {
        area: 'quota',
        reason,
        message,
        todo: [
          `Delete VMs of the namespace, ${SIZES.test(message) ? 'make the VM smaller, ' : ''}or ask an admin to raise the ResourceQuota ${quota}`,
        ],
      };
}

function areaOfWait(reason: string): Area {
  if (reason === SPEC_REASON) {
    return 'spec';
  }
  return reason === 'PodRefused' ? 'quota' : 'scheduler';
}

function meaningOfPlacement(message: string): string {
  if (message.startsWith(ALL_REFUSED)) {
    return 'Each host that matches the VM has refused it. Room is not the cause';
  }
  if (obstaclesIn(message) === undefined) {
    return 'No host matches the VM. Room is not the cause';
  }
  return message.startsWith(NONE_ABLE)
    ? 'No host can take the VM, even when it is empty'
    : 'The hosts that match the VM cannot take it now. The message has the number of hosts for each cause';
}

function silentHost({ vm }: Seen): Problem | undefined {
  const ready = conditionOf(vm, 'Ready');
  return ready !== undefined && HOST_REASONS.has(ready.reason) ? problemOf('host', ready) : undefined;
}

/** Returns the problem of the image. If an Image or ISO is not ready, the message includes its own message. */
function missingImage({ vm, images = [] }: Seen): Problem | undefined {
  const found = fault(vm, 'ImageReady', 'image');
  const own = images.flatMap((image) => {
    const ready = conditionOf(image, 'Ready');
    return ready === undefined || ready.status === 'True'
      ? []
      : [`${image.kind} ${image.metadata.name}: ${ready.message || ready.reason}`];
  });
  return found && { ...found, message: [found.message, ...own].join('. ') };
}

/**
 * Returns why the machine is off. The result is undefined if the VM is to run and its guest did not power itself off, because its host then
 * starts it.
 */
function power({ vm }: Seen): Problem | undefined {
  const { metadata, spec, status = {} } = vm;
  const { phase } = status;
  if (phase !== 'Stopped' && phase !== 'Suspended') {
    return undefined;
  }
  const { powerState: wanted = 'Running' } = spec;
  const asked = { reason: phase, message: `spec.powerState asks for ${wanted}` };
  const cause = wanted === 'Running' ? ownEnd(vm) : asked;
  const verb = phase === 'Suspended' ? 'resume' : 'start';
  return (
    cause && { area: 'machine', ...cause, todo: [`Start the VM again: berth vm ${verb} ${metadata.name}`] }
  );
}

function ownEnd(vm: VM): Pick<Problem, 'reason' | 'message'> | undefined {
  return conditionOf(vm, 'Ready')?.reason === OWN_END
    ? { reason: OWN_END, message: 'The guest has powered itself off' }
    : undefined;
}

/**
 * Returns the fault that the condition Ready names. Before the first run, the reason of the condition can name the current step instead of
 * a fault. In this case, the result is undefined.
 */
function notReady({ vm }: Seen): Problem | undefined {
  const ready = conditionOf(vm, 'Ready');
  if (ready === undefined || ready.status === 'True') {
    return undefined;
  }
  const isStep =
    classOf(ready.reason, 'VM') === 'state' ||
    (!isReason(ready.reason) && ready.message === meaningOf(ready.reason));
  return isStep ? undefined : problemOf(areaOf(ready.reason), ready);
}

function fault(vm: VM, type: string, area: Area): Problem | undefined {
  const condition = conditionOf(vm, type);
  return condition?.status === 'False' ? problemOf(area, condition) : undefined;
}

function problemOf(area: Area, { reason, message }: StatusCondition): Problem {
  return { area, reason, message: message || reason };
}

function areaOf(reason: string): Area {
  if (NETWORK_REASONS.has(reason)) {
    return 'network';
  }
  if (HOST_REASONS.has(reason)) {
    return 'host';
  }
  if (isSeen(reason, 'VM', 'ImageReady') || reason === 'NoImage') {
    return 'image';
  }
  return GUEST_REASONS.has(reason) || isSeen(reason, 'VM', 'UserDataReady') ? 'guest' : 'machine';
}

function waitsFor(vm: VM, phase: string): string {
  const { progress } = vm.status ?? {};
  const reported = ['Scheduled', 'Ready'].map((type) => conditionOf(vm, type)?.message).find(Boolean);
  if (vm.status?.phase === undefined) {
    return 'The operator has not processed the VM yet';
  }
  return progress ?? reported ?? `The phase is ${phase}`;
}

function patience(phase: string): string {
  return phase === 'Pending'
    ? 'Wait. If the VM is still Pending after a minute, check that the operator and the scheduler of the cluster run'
    : 'Wait. The host is working on the VM';
}

/** Areas that only a host can check. */
const REPORTED: ReadonlySet<Area> = new Set(['network', 'machine', 'guest']);

function isSilent(vm: VM): boolean {
  return conditionOf(vm, 'Ready')?.status === 'Unknown';
}

/** Returns the areas whose state nobody knows, because the host is silent, or because nobody checks the guest. */
function uncheckedAreas(vm: VM): ReadonlySet<Area> {
  return isSilent(vm) ? REPORTED : new Set<Area>(isUnchecked(vm) ? ['guest'] : []);
}

function checksOf(vm: VM, problem: Problem | undefined): Check[] {
  const { nodeName } = vm.status ?? {};
  const passed = passedAreas(vm);
  const unknown = uncheckedAreas(vm);
  const missing = isFinal(vm) ? 'not checked' : 'not yet';
  return AREAS.map((area) => {
    if (problem?.area === area) {
      const isOff = problem.reason === 'Stopped' || problem.reason === 'Suspended';
      return { area, state: isOff ? 'off' : 'problem', message: problem.message };
    }
    if (unknown.has(area) || !passed[area]) {
      return { area, state: unknown.has(area) ? 'not checked' : missing, message: '' };
    }
    return {
      area,
      state: 'ok',
      message: area === 'scheduler' && nodeName !== undefined ? `Host ${nodeName}` : '',
    };
  });
}

/** Returns for each area whether the VM has passed it. */
function passedAreas(vm: VM): Readonly<Record<Area, boolean>> {
  const { phase, nodeName, firstRunningTime } = vm.status ?? {};
  const isOn = (type: string) => conditionOf(vm, type)?.status === 'True';
  const runs = phase === 'Running';
  const hasRun = firstRunningTime !== undefined;
  // A VM that has ended has no host any more.
  const hadHost = nodeName !== undefined || hasRun;
  return {
    ...(hadHost ? { spec: true, scheduler: true, quota: true } : passedWithoutHost(vm)),
    // A host starts a machine when its disk is made.
    image: runs || hasRun || phase === 'Starting' || isOn('ImageReady'),
    network: isOn('NetworkReady'),
    host: nodeName !== undefined && !isSilent(vm),
    machine: runs,
    guest: runs && isOn('Ready'),
  };
}

function passedWithoutHost(vm: VM): Record<'spec' | 'scheduler' | 'quota', boolean> {
  const { reason = SPEC_REASON } = conditionOf(vm, 'Scheduled') ?? {};
  return { spec: reason !== SPEC_REASON, scheduler: false, quota: reason === 'Unschedulable' };
}
