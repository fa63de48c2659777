/** The steps that take long, each as one function: it drives the host, and writes down what it achieved, before and after. */
import { timestamp } from '../../base/time.ts';
import { describeSource } from '../../api/v1alpha1/describe.ts';
import type { Desired, MachineImageSource } from '../../api/v1alpha1/machine.ts';
import { HOST_DISK_FULL } from '../../api/v1alpha1/names.ts';
import type { Pod } from '../../kube/core.ts';
import type { LaunchPlan } from '../drivers/driver.ts';
import type { Keyring } from '../images/oci/credentials.ts';
import type { BaseImage } from '../disks/disk.ts';
import type { Holder } from '../images/local/holders.ts';
import type { ImageFormat } from '../images/local/inspect.ts';
import type { GuestNetwork } from '../network/network.ts';
import { connect } from './network.ts';
import { PAUSED_MESSAGE } from './diskguard.ts';
import { type Host, ownUser } from './host.ts';
import { type MachineRecord, needed } from './machine.ts';
import { grantedSize } from './resize.ts';
import type { Runtime, Task, TaskKind } from './runtime.ts';

/** A download tells its progress this often at most: every telling is a write to the API server. */
const PROGRESS_MILLISECONDS = 2_000;

export interface Action {
  host: Host;
  record: MachineRecord;
  runtime: Runtime;
  task: Task;
  /** For Events; undefined when the Pod is gone. */
  pod: Readonly<Pod> | undefined;
  desired: Desired | undefined;
  graceMilliseconds: number;
  /** The task's phase or progress has changed. */
  changed: () => void;
}

/** Fetches what the machine boots from and makes its disk. */
async function create(action: Action): Promise<void> {
  const holder: Holder = `machine/${action.record.uid}`;
  try {
    await makeDisk(action);
    action.host.images.cloned(holder);
  } catch (error) {
    // Another attempt asks again; until then nobody need wait for this one.
    action.host.images.release(holder);
    throw error;
  }
}

async function makeDisk(action: Action): Promise<void> {
  const { host, record, runtime, task } = action;
  const { machine } = record;
  const { folder } = runtime;
  const keyring = await keyringOf(action);
  const { image, imageFormat: format = 'Auto', imageName, iso: isoSource, isoName } = machine ?? {};
  const base = await fetch(action, { source: image, format, name: imageName, keyring });
  const iso = await fetch(action, { source: isoSource, format: 'Raw', name: isoName, keyring });
  task.abort.signal.throwIfAborted();
  task.phase = 'Cloning';
  task.progressPercent = undefined;
  action.changed();
  if (runtime.state.kind !== 'absent') {
    // Left by an agent that did not live to finish it.
    await host.driver.delete(folder);
  }
  const isoPath = iso?.path;
  record.isoPath = isoPath;
  await host.driver.create(folder, launchPlan(action, { arguments: [], address: undefined }), base);
  host.records.update(record, { created: true, base, isoPath });
}

/** What the secrets of a Pod open that boots from a registry; the others need none. */
async function keyringOf({ host, pod, record }: Action): Promise<Keyring | undefined> {
  const sources = [record.machine?.image, record.machine?.iso];
  const isNeeded = sources.some((source) => source?.type === 'registry');
  return isNeeded && pod !== undefined ? await host.keyring(pod) : undefined;
}

interface Wanted {
  source: MachineImageSource | undefined;
  format: ImageFormat;
  name: string | undefined;
  keyring: Keyring | undefined;
}

async function fetch(action: Action, wanted: Wanted): Promise<BaseImage | undefined> {
  const { host, task, record } = action;
  const { source, ...options } = wanted;
  if (source === undefined || source.type === 'empty') {
    return undefined;
  }
  let toldAt = performance.now();
  const began = toldAt;
  event(action, 'Normal', 'Pulling', 'Pull', `fetching ${describeSource(source)}`);
  const image = await host.images.ensure(source, {
    ...options,
    architecture: record.machine?.architecture,
    holder: `machine/${record.uid}`,
    signal: task.abort.signal,
    onProgress: (percent) => {
      task.progressPercent = Math.floor(percent);
      if (performance.now() - toldAt >= PROGRESS_MILLISECONDS) {
        toldAt = performance.now();
        action.changed();
      }
    },
  });
  const seconds = ((performance.now() - began) / 1000).toFixed(1);
  event(action, 'Normal', 'Pulled', 'Pull', `image is on the host as ${image.digest} after ${seconds} s`);
  return image;
}

async function start(action: Action): Promise<void> {
  const { host, record, runtime } = action;
  const desired = needed(action.desired);
  const restart = record.everRan;
  const network = await connect(action);
  host.records.update(record, startFacts(record, desired));
  host.disk.startsAnew(record.uid);
  await host.driver.start(runtime.folder, launchPlan(action, network));
  runtime.unseen = false;
  host.records.update(record, {
    running: true,
    everRan: true,
    end: undefined,
    startedAt: timestamp(Date.now()),
    restarts: record.restarts + (restart ? 1 : 0),
  });
  event(action, 'Normal', 'Started', 'Start', 'the machine runs');
}

function startFacts({ claim }: MachineRecord, desired: Desired): Partial<MachineRecord> {
  const { restartRequestedAt } = desired;
  return { released: false, startedWith: grantedSize(claim, desired), restartedAt: restartRequestedAt };
}

/** Intent first: an end that comes while it is being asked for is no crash. */
async function stop(action: Action): Promise<void> {
  const { host, record, runtime, task, graceMilliseconds } = action;
  host.records.update(record, { running: false, end: undefined });
  task.deadline = Date.now() + graceMilliseconds;
  await host.driver.stop(runtime.folder, { graceMilliseconds, hurry: task.hurry.signal });
  host.records.update(record, { startedWith: undefined });
  event(action, 'Normal', 'Stopped', 'Stop', 'the machine is stopped');
}

async function pauseGuest(action: Action): Promise<void> {
  const { host, runtime } = action;
  await host.driver.pause(runtime.folder);
  event(action, 'Warning', HOST_DISK_FULL, 'Pause', PAUSED_MESSAGE);
}

async function unpauseGuest(action: Action): Promise<void> {
  const { host, runtime } = action;
  await host.driver.unpause(runtime.folder);
  event(action, 'Normal', 'Unpaused', 'Unpause', "the host's disk has room again, the machine goes on");
}

async function suspend(action: Action): Promise<void> {
  const { host, record, runtime } = action;
  host.records.update(record, { running: false });
  await host.driver.suspend(runtime.folder);
  event(action, 'Normal', 'Suspended', 'Suspend', 'the machine is suspended to disk');
}

async function resume(action: Action): Promise<void> {
  const { host, record, runtime } = action;
  const network = await connect(action);
  await host.driver.resume(runtime.folder, launchPlan(action, network));
  runtime.unseen = false;
  host.records.update(record, { running: true });
  event(action, 'Normal', 'Resumed', 'Resume', 'the machine goes on');
}

async function revert(action: Action): Promise<void> {
  const { host, record, runtime } = action;
  const revertedAt = needed(action.desired).revertRequestedAt;
  const plan = launchPlan(action, { arguments: [], address: undefined });
  await host.driver.revert(runtime.folder, plan, record.base);
  host.records.update(record, { revertedAt, end: undefined });
  event(action, 'Normal', 'Reverted', 'Revert', 'the disk is as it was when the machine was made');
}

/** Ends the process and gives back network and ports; the disk stays. */
async function release(action: Action): Promise<void> {
  const { host, record, runtime, task, graceMilliseconds } = action;
  const deadline = Date.now() + graceMilliseconds;
  host.records.update(record, { running: false });
  task.deadline = deadline;
  if (runtime.state.kind !== 'absent') {
    await host.driver.stop(runtime.folder, { graceMilliseconds, hurry: task.hurry.signal });
  }
  await host.network.detach(record.uid);
  const killed = graceMilliseconds === 0 || task.hurry.signal.aborted || Date.now() >= deadline;
  host.records.update(record, { released: true, finishedAt: timestamp(Date.now()), killed });
}

async function remove(action: Action): Promise<void> {
  await action.host.driver.delete(action.runtime.folder);
  action.host.records.update(action.record, { created: false, base: undefined, isoPath: undefined });
  action.host.images.release(`machine/${action.record.uid}`);
}

/** By the planner's name for the step. */
export const ACTIONS: Readonly<Record<TaskKind, (action: Action) => Promise<void>>> = {
  create,
  start,
  stop,
  pause: pauseGuest,
  unpause: unpauseGuest,
  suspend,
  resume,
  revert,
  release,
  remove,
};

function launchPlan(action: Action, network: GuestNetwork): LaunchPlan {
  const machine = needed(action.record.machine);
  const desired = needed(action.desired);
  const blank = machine.image?.type === 'empty' ? machine.image.sizeBytes : undefined;
  return {
    machine,
    ...grantedSize(action.record.claim, desired),
    diskSizeBytes: desired.diskSizeBytes ?? machine.diskSizeBytes ?? blank,
    iso: action.record.isoPath,
    network,
    runAs: ownUser(action.host, action.record),
  };
}

function event(
  action: Action,
  type: 'Normal' | 'Warning',
  reason: string,
  verb: string,
  message: string,
): void {
  if (action.pod !== undefined) {
    action.host.event(action.pod, { type, reason, action: verb, message });
  }
}
