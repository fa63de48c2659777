/**
 * Implements each long step of a machine as a function. The function first saves its intent, then changes the host, and then saves the
 * result.
 */
import type { EmulatorMachine } from '../../api/v1alpha1/emulatormachine.ts';
import { describeSource, type MachineImageSource, registryReference } from '../../api/v1alpha1/source.ts';
import { HOST_DISK_FULL, MACOS_DRIVER } from '../../api/v1alpha1/names.ts';
import { messageWithoutPaths } from '../../base/errors.ts';
import { timestamp } from '../../base/time.ts';
import { refOf } from '../../kube/objects.ts';
import type { BaseImage } from '../disks/disk.ts';
import { requireDevice } from '../drivers/emulator/arguments.ts';
import { acceleratorOf, driverOf, driverOfVM } from '../drivers/hostdrivers.ts';
import type { Holder } from '../images/local/holders.ts';
import type { ImageFormat } from '../images/local/inspect.ts';
import { nameOfISO } from '../images/local/catalog.ts';
import type { Keyring } from '../images/oci/credentials.ts';
import { ownUser } from '../processes/users.ts';
import { PAUSED_MESSAGE } from './diskguard.ts';
import { event, type PodHost, tell, tellPod, warn } from './host.ts';
import {
  keepVncPassword,
  launchPlan,
  machinePlan,
  prepareStart,
  prepareVnc,
  requireVncPassword,
} from './launch.ts';
import {
  type MachineRecord,
  needed,
  type MachineOperation,
  type OperationKind,
  type Runtime,
} from './machine.ts';
import { connect } from './network.ts';
import { offChange, takenSnapshot, wantsOff } from './plan.ts';
import { explainPortTaken, holdPorts } from './ports.ts';
import { startMachine } from './warmstart.ts';
import { ReasonedError } from '../../api/v1alpha1/reasons.ts';
import { dropSnapshots, takeSnapshot } from './snapshots.ts';

/** Shortest time between two progress reports of a download, because each report causes a request to the API server. */
const PROGRESS_MILLISECONDS = 2_000;
/** Shortest time over which the speed of a download is measured. Over a shorter time, the measured speed would be too inaccurate. */
const SPEED_MILLISECONDS = 500;

type StepFunction = (host: PodHost, runtime: Runtime, operation: MachineOperation) => Promise<void>;

async function create(host: PodHost, runtime: Runtime, operation: MachineOperation): Promise<void> {
  const { emulator } = runtime.record;
  await (emulator === undefined
    ? createVm(host, runtime, operation)
    : createEmulator(host, runtime, emulator));
}

/** Chooses the machine's host ports, fetches the images that it boots from, and creates its disk. */
async function createVm(host: PodHost, runtime: Runtime, operation: MachineOperation): Promise<void> {
  const holder: Holder = `machine/${runtime.record.uid}`;
  try {
    await holdPorts(host, runtime.record);
    const password = await requireVncPassword(host, runtime);
    const base = await makeDisk(host, runtime, operation);
    await keepVncPassword(runtime, password);
    host.records.update(runtime.record, { created: true, base, fresh: true });
    host.images.cloned(holder);
  } catch (error) {
    // The machine releases its images after a failure, so that the host can remove the images if it needs space. The next attempt requests
    // the images again.
    host.images.release(holder);
    throw error;
  }
}

/** Fetches the images and creates the disk. Returns the image of the disk; undefined if the disk is made without an image. */
async function makeDisk(
  host: PodHost,
  runtime: Runtime,
  operation: MachineOperation,
): Promise<BaseImage | undefined> {
  const { record, folder } = runtime;
  const { image, imageFormat: format = 'Auto', imageName, iso: isoSource, isoName } = record.machine ?? {};
  requireInstaller(record);
  const keyring = await keyringOf(host, record, operation);
  const fetch = fetcher(host, record, operation);
  const base = await fetch(image, { format, name: imageName, keyring });
  const iso = await fetch(isoSource, { format: 'ISO', name: isoName && nameOfISO(isoName), keyring });
  operation.abort.signal.throwIfAborted();
  operation.phase = 'Cloning';
  operation.progressPercent = undefined;
  operation.bytesPerSecond = undefined;
  operation.changed();
  if (runtime.state.kind !== 'absent') {
    // The folder is incomplete, because the agent was restarted while it created the folder.
    await driverOf(host, record).delete(folder);
  }
  record.isoPath = iso?.path;
  await createFrom(host, runtime, operation, base);
  return base;
}

/** Checks that the host can make a disk from the image, before it fetches the image. @throws ReasonedError `NoAppleHost` when it cannot. */
function requireInstaller({ machine, driver }: Readonly<MachineRecord>): void {
  if (machine?.image?.type === 'ipsw' && driver !== MACOS_DRIVER) {
    throw new ReasonedError('NoAppleHost', 'This host cannot install macOS, because it is no Apple host');
  }
}

async function createFrom(
  host: PodHost,
  { record, folder }: Runtime,
  operation: MachineOperation,
  base: BaseImage | undefined,
): Promise<void> {
  const isInstalled = record.machine?.image?.type === 'ipsw';
  if (isInstalled) {
    tell(host, record, 'Installing', 'Clone', 'The host installs macOS, which takes many minutes');
  }
  const began = performance.now();
  const { signal } = operation.abort;
  await driverOf(host, record).create(folder, machinePlan(host, record, operation), base, signal);
  if (base !== undefined) {
    const done = isInstalled ? 'installed macOS' : 'cloned the image';
    tell(host, record, 'Cloned', 'Clone', `The host ${done} in ${secondsSince(began)} s`);
  }
}

/** Returns the credentials of the Pod's pull secrets if an image comes from a registry. Images from other sources need no credentials. */
async function keyringOf(
  host: PodHost,
  { machine }: MachineRecord,
  { pod }: MachineOperation,
): Promise<Keyring | undefined> {
  const isNeeded = [machine?.image, machine?.iso].some((source) => registryReference(source) !== undefined);
  return isNeeded && pod !== undefined ? await host.keyring(pod) : undefined;
}

type Fetch = (
  source: MachineImageSource | undefined,
  options: { format: ImageFormat; name: string | undefined; keyring: Keyring | undefined },
) => Promise<BaseImage | undefined>;

function fetcher(host: PodHost, record: MachineRecord, operation: MachineOperation): Fetch {
  return async (source, options) => {
    if (source === undefined || source.type === 'empty') {
      return undefined;
    }
    let reportedAt = performance.now();
    const began = reportedAt;
    const speed = meanSpeed();
    tell(host, record, 'Pulling', 'Pull', `The host is fetching ${describeSource(source)}`);
    const image = await host.images.ensure(source, {
      ...options,
      architecture: record.machine?.architecture,
      holder: `machine/${record.uid}`,
      tenant: refOf(record.key).namespace ?? '',
      signal: operation.abort.signal,
      onProgress: (percent, bytes) => {
        operation.progressPercent = Math.floor(percent);
        operation.bytesPerSecond = speed(bytes);
        if (performance.now() - reportedAt >= PROGRESS_MILLISECONDS) {
          reportedAt = performance.now();
          operation.changed();
        }
      },
      onWait: (reason) => tell(host, record, 'Pulling', 'Pull', `The fetch is waiting. ${reason}`),
    });
    const message = `The image is on the host as ${image.digest} after ${secondsSince(began)} s`;
    tell(host, record, 'Pulled', 'Pull', message);
    return image;
  };
}

async function start(host: PodHost, runtime: Runtime, operation: MachineOperation): Promise<void> {
  const { record } = runtime;
  const { restartRequestedAt: restartedAt } = needed(operation.desired);
  const restart = record.everRan;
  // With this change, the record shows that the machine occupies its slot. The record is saved before the start is prepared, because the
  // Pod can be deleted during the preparation.
  host.records.update(record, { released: false });
  const { plan, change } = await prepareStart(host, runtime, operation);
  // From now on, the requested restart counts as done. So an earlier shutdown of the guest must no longer count, because a machine whose guest
  // has shut down stays off. Otherwise the agent would not try again after a failed start.
  const end = record.end?.how === 'GuestShutdown' ? undefined : record.end;
  host.records.update(record, { restartedAt, end, ...change });
  host.disk.startsAnew(record.uid);
  const warmStart = await startMachine(host, runtime, plan, operation);
  runtime.unseen = false;
  host.records.update(record, {
    running: true,
    everRan: true,
    fresh: false,
    warmStart,
    end: undefined,
    startedAt: timestamp(Date.now()),
    restarts: record.restarts + (restart ? 1 : 0),
  });
  runtime.state = await driverOf(host, record).inspect(runtime.folder);
  tell(host, record, 'Started', 'Start', startMessage(host, runtime));
}

function startMessage(host: PodHost, { record, state }: Readonly<Runtime>): string {
  if (record.emulator !== undefined) {
    return 'The process of the emulator is running, and Android is still booting';
  }
  const accelerator = acceleratorOf(host, record, state)?.toUpperCase() ?? 'an unknown accelerator';
  return `The machine runs with ${accelerator}`;
}

/** Stops the guest. The intent is saved first, so that the end of the hypervisor during the stop does not count as a crash. */
async function stop(host: PodHost, { record, folder }: Runtime, operation: MachineOperation): Promise<void> {
  const { graceMilliseconds, hurry, discard } = operation;
  host.records.update(record, { ...offChange(record, wantsOff(operation.desired)), end: undefined });
  operation.deadline = Date.now() + graceMilliseconds;
  const signals = { hurry: hurry.signal, discard: discard.signal };
  await driverOf(host, record).stop(folder, { graceMilliseconds, ...signals });
  host.records.update(record, { startedWith: undefined });
  tellPod(host, operation, 'Stopped', 'Stop', 'The machine is stopped');
}

async function pauseGuest(
  host: PodHost,
  { record, folder }: Runtime,
  operation: MachineOperation,
): Promise<void> {
  await driverOf(host, record).pause(folder);
  event(host, operation, {
    type: 'Warning',
    reason: HOST_DISK_FULL,
    action: 'Pause',
    message: PAUSED_MESSAGE,
  });
}

async function unpauseGuest(
  host: PodHost,
  { record, folder }: Runtime,
  operation: MachineOperation,
): Promise<void> {
  await driverOf(host, record).unpause(folder, operation.abort.signal);
  tellPod(
    host,
    operation,
    'Unpaused',
    'Unpause',
    'The disk of the host has room again, and the machine continues',
  );
}

async function suspend(
  host: PodHost,
  { record, folder }: Runtime,
  operation: MachineOperation,
): Promise<void> {
  host.records.update(record, { running: false });
  try {
    await driverOfVM(host, record).suspend(folder);
  } catch (error) {
    // The VM stays Running, so no condition has this message.
    warn(
      host,
      record,
      'SuspendFailed',
      'Suspend',
      `The machine was not suspended: ${messageWithoutPaths(error)}`,
    );
    throw error;
  }
  // The stop counts only now, because a stop ends the emulators of the VM, with their data.
  host.records.update(record, offChange({ ...record, running: true }, wantsOff(operation.desired)));
  tellPod(host, operation, 'Suspended', 'Suspend', 'The machine is suspended to disk');
}

async function resume(host: PodHost, runtime: Runtime, operation: MachineOperation): Promise<void> {
  const { record, folder } = runtime;
  const network = await connect(host, runtime);
  const vnc = await prepareVnc(host, runtime);
  const plan = { ...launchPlan(host, record, operation, network), vnc };
  await driverOfVM(host, record).resume(folder, plan, operation.abort.signal);
  runtime.unseen = false;
  host.records.update(record, { running: true });
  tell(host, record, 'Resumed', 'Resume', 'The machine continues from its suspended state');
}

async function revert(
  host: PodHost,
  { record, folder }: Runtime,
  operation: MachineOperation,
): Promise<void> {
  const { revertRequestedAt: revertedAt, revertTo } = needed(operation.desired);
  const snapshot = revertTo === undefined ? undefined : takenSnapshot(record, revertTo);
  if (revertTo !== undefined && snapshot === undefined) {
    throw new ReasonedError('SnapshotNotFound', 'The host does not have the snapshot in revertTo');
  }
  const plan = machinePlan(host, record, operation);
  await driverOfVM(host, record).revert(folder, plan, record.base, revertTo, operation.abort.signal);
  const hasSnapshotMemory = snapshot?.memory !== undefined;
  const fresh = revertTo === undefined || hasSnapshotMemory;
  const began = { warmStart: undefined, fresh, hasSnapshotMemory };
  host.records.update(record, { revertedAt, end: undefined, ...began });
  const message =
    revertTo === undefined
      ? 'The disk was reset to the content that it had when the machine was made'
      : 'The disk was reset to the snapshot';
  tell(host, record, 'Reverted', 'Revert', message);
}

/** Ends the machine's process and releases its network and ports. The disk of a VM stays. A failed emulator keeps only its log. */
async function release(host: PodHost, runtime: Runtime, operation: MachineOperation): Promise<void> {
  const { record, folder, state } = runtime;
  const { graceMilliseconds, hurry, discard } = operation;
  const deadline = Date.now() + graceMilliseconds;
  host.records.update(record, { running: false });
  operation.deadline = deadline;
  if (state.kind !== 'absent') {
    const ignoresReadErrors = state.kind === 'unreadable';
    const signals = { hurry: hurry.signal, discard: discard.signal };
    await driverOf(host, record).stop(folder, { graceMilliseconds, ...signals, ignoresReadErrors });
  }
  // The failed machine keeps its slot until its data is removed. Otherwise the next machine could start while the old data still uses disk
  // space.
  const change = await discardFailed(host, runtime);
  await host.network.detach(record.uid);
  const killed = graceMilliseconds === 0 || hurry.signal.aborted || Date.now() >= deadline;
  const end = record.released ? {} : { released: true, finishedAt: timestamp(Date.now()), killed };
  host.records.update(record, { ...change, ...end });
}

async function remove(host: PodHost, { record, folder }: Runtime): Promise<void> {
  await driverOf(host, record).delete(folder);
  host.records.update(record, { created: false, base: undefined, isoPath: undefined });
  host.images.release(`machine/${record.uid}`);
}

function withPorts(step: StepFunction): StepFunction {
  return async (host, runtime, operation) => {
    try {
      await step(host, runtime, operation);
    } catch (error) {
      throw await explainPortTaken(host, runtime.record, error);
    }
  };
}

/** The function of each step that takes long and runs in the background. The key is the kind of the step. */
export const STEPS: Readonly<Record<OperationKind, StepFunction>> = {
  create,
  start: withPorts(start),
  stop,
  pause: pauseGuest,
  unpause: unpauseGuest,
  suspend,
  resume: withPorts(resume),
  revert,
  snapshot: takeSnapshot,
  dropSnapshots,
  release,
  remove,
};

/** Returns the seconds since `began`, a time of the clock `performance.now()`, with one decimal. */
function secondsSince(began: number): string {
  return ((performance.now() - began) / 1000).toFixed(1);
}

/**
 * Returns a function that takes the number of bytes fetched so far, and returns the mean speed in bytes per second since its first call.
 * The speed does not include bytes that an earlier attempt fetched. The result is undefined until the speed is known. `now` is a clock in
 * milliseconds.
 */
export function meanSpeed(now = () => performance.now()): (bytes: number | undefined) => number | undefined {
  let first: { bytes: number; at: number } | undefined;
  return (bytes) => {
    if (bytes === undefined) {
      return undefined;
    }
    first ??= { bytes, at: now() };
    const milliseconds = now() - first.at;
    return milliseconds < SPEED_MILLISECONDS
      ? undefined
      : Math.round(((bytes - first.bytes) * 1000) / milliseconds);
  };
}

/** Chooses the host port of an emulator with exposure Host, and creates the emulator's folder. */
async function createEmulator(
  host: PodHost,
  { record, folder, state }: Runtime,
  emulator: EmulatorMachine,
): Promise<void> {
  requireDevice(emulator.device);
  await holdPorts(host, record);
  if (state.kind !== 'absent') {
    // The folder is incomplete, because the agent was restarted while it created the folder.
    await host.emulators.delete(folder);
  }
  await host.emulators.create(folder, { guest: { emulator }, runAs: ownUser(host, record) }, undefined);
  host.records.update(record, { created: true });
}

/**
 * Removes the data of an emulator that has failed, and returns the change to save in its record. The data is removed, because nothing else
 * limits the disk space of failed emulators: they do not use slots or quota. Call this function only after all processes of the
 * machine have ended.
 */
async function discardFailed(
  host: PodHost,
  { record, folder, state }: Runtime,
): Promise<Pick<Partial<MachineRecord>, 'runAs'>> {
  if (record.failure === undefined || record.emulator === undefined) {
    return {};
  }
  if (state.kind !== 'absent') {
    await host.emulators.discard(folder);
  }
  return { runAs: undefined };
}
