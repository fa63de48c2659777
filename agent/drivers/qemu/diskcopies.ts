/** Makes copies of one machine's disk. Ensures that no copy overlaps with a conflicting step of the machine. */
import { rm, stat } from 'node:fs/promises';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { messageOf } from '../../../base/errors.ts';
import { Serial } from '../../../base/concurrency.ts';
import type { MemoryFiles } from '../../disks/disk.ts';
import { convertToRaw, markArgument } from '../../disks/qemuimg.ts';
import { killByArgument } from '../../processes/process.ts';
import { processUser } from '../../processes/users.ts';
import { type CopyOptions, type DiskCopy, type MachineFolder, type MachineState } from '../driver.ts';
import { UNREADABLE } from '../statefile.ts';
import { diskNode } from './arguments.ts';
import { diskReader, requireOwnDisk } from './files.ts';
import type { RunAs } from '../../../base/exec.ts';
import {
  type Freeze,
  type Freezing,
  type FrozenWork,
  type GuestAgent,
  thaw,
  whileFrozen,
} from './guestagent.ts';
import type { Hypervisor } from './hypervisor.ts';
import type { MachineContext } from './launch.ts';
import {
  dropImageMemory,
  makeStreamFolder,
  preparedDisk,
  prepareImage,
  removeMemoryFiles,
  saveStream,
} from './imagememory.ts';
import type { QemuMachine } from './machine.ts';
import {
  notRunning,
  requireFrozen,
  requireGuestAgent,
  requireMemory,
  requireSavable,
  requireStartable,
} from './memorychecks.ts';
import type { HostPlatforms } from './platform.ts';
import type { QmpConnection } from './qmp.ts';
import {
  dropSnapshot,
  prepareSnapshot,
  removeSnapshotFiles,
  serveSnapshot,
  takeSnapshot,
} from './snapshot.ts';
import { type CopyNote, type MachineFile, readCopyNote, removeCopyNote, writeCopyNote } from './state.ts';
import { endMerge } from './layermerge.ts';
import { requireSnapshot, repairLayers, sweepLayers } from './layers.ts';

/** Inspections of a machine start at most one cleanup in this time. A cleanup can take seconds, and delays the inspection. */
const TIDY_INTERVAL_MILLISECONDS = 30_000;
/**
 * If this number of thaw requests stay unconfirmed, the guest gets no more requests to freeze or thaw until its next start. This limits the
 * work that a hostile guest can cause. The requests come about 30 s apart, so a slow guest has about five minutes to confirm one.
 */
const THAW_LIMIT = 10;

/** Reasons of errors that tell exactly why there is no copy. */
const EXACT_REASONS: ReadonlySet<string> = new Set(['MemoryNotSaved', 'SaveHookFailed', 'SnapshotNotFound']);

/** Why a copy that prepares the memory of an image ends. */
const STARTED = 'The machine was started, continued or reset while its memory was prepared';
export const SNAPSHOT_CHANGED =
  'A snapshot of the VM was taken or removed while its memory was prepared. Take and delete no VMSnapshot of the VM until the Image is Ready';

interface RunningCopy extends CopyOptions {
  interruption: AbortController;
}

/** Result of a copy without the size of the disk. */
type Copied = Omit<DiskCopy, 'virtualSizeBytes'>;

export class DiskCopies {
  readonly #folder: MachineFolder;
  readonly #machine: QemuMachine;
  readonly #context: MachineContext;
  readonly #platforms: HostPlatforms;
  /** Promises of the copies that run or wait. The key of each promise is the `AbortController` of its copy. */
  readonly #copies = new Map<AbortController, Promise<unknown>>();
  readonly #serial = new Serial();
  #copying = false;
  /** Aborts the copy that prepares the memory of an image. Undefined if no copy does. */
  #preparation: AbortController | undefined;
  #tidied = false;
  #tidying: Promise<void> | undefined;
  /** Time of the next cleanup for an inspection, in milliseconds since the start of this process. */
  #nextTidy = 0;

  constructor(
    folder: MachineFolder,
    machine: QemuMachine,
    { context, platforms }: { context: MachineContext; platforms: HostPlatforms },
  ) {
    this.#platforms = platforms;
    this.#folder = folder;
    this.#machine = machine;
    this.#context = context;
  }

  /**
   * Runs `work` when all earlier copies have ended. Copies that are requested after this call wait until `work` has ended. If the signal
   * aborts before `work` begins, the promise rejects at once and `work` never runs. Later, the signal has no effect.
   *
   * A copy that prepares the memory of an image ends at once with the message `why`, because its clone can run for minutes and the machine
   * must not wait for it.
   */
  async exclusively<T>(work: () => Promise<T>, signal?: AbortSignal, why = STARTED): Promise<T> {
    this.#preparation?.abort(new ReasonedError('Interrupted', why));
    return await this.#serial.run(work, signal);
  }

  /** Aborts all copies that were requested before this call. Resolves when these copies have ended. */
  async interrupt(message: string): Promise<void> {
    for (const interruption of this.#copies.keys()) {
      interruption.abort(new ReasonedError('Interrupted', message));
    }
    await Promise.allSettled(this.#copies.values());
  }

  async run(options: CopyOptions): Promise<DiskCopy> {
    return await this.#interruptibly(
      options.signal,
      async (signal, interruption) => await this.#runWhenFree({ ...options, signal }, interruption),
    );
  }

  /**
   * Runs `work`, which takes a snapshot of the disk, when all earlier work is done. An interruption of copies ends it, too. What it leaves
   * after a failure is removed as that of a copy.
   */
  async runSnapshot<T>(
    signal: AbortSignal,
    work: (freezing: Freezing, signal: AbortSignal) => Promise<T>,
  ): Promise<T> {
    return await this.#interruptibly(signal, async (either) => {
      const freezing: Freezing = async (agent, take) => await this.#whileFrozen(agent, either, take);
      const take = async () => await this.#noted({}, async () => await work(freezing, either));
      return await this.exclusively(take, either, SNAPSHOT_CHANGED);
    });
  }

  /** Does the same with `work` that merges layers. It also waits for a copy that prepares the memory of an image, because it can wait. */
  async runMerge(signal: AbortSignal, work: (signal: AbortSignal) => Promise<void>): Promise<void> {
    await this.#interruptibly(signal, async (either) => {
      const merge = async () => await this.#noted({ merging: true }, async () => await work(either));
      await this.#serial.run(merge, either);
    });
  }

  /** Runs `work` with a note, so that what it leaves is removed, also after the death of the agent. */
  async #noted<T>(note: Pick<CopyNote, 'merging'>, work: () => Promise<T>): Promise<T> {
    this.#copying = true;
    try {
      await this.tidy();
      this.#tidied = false;
      await this.#note(note);
      return await work();
    } finally {
      this.#copying = false;
      await this.#tidyOrLog();
    }
  }

  /**
   * Checks whether the memory of the machine could be kept, when all earlier work is done. An interruption of copies ends the check, too.
   *
   * @throws ReasonedError `MemoryNotSaved` when it cannot.
   */
  async requireMemory(signal: AbortSignal): Promise<void> {
    const platformOf = async (architecture: MachineFile['architecture']) =>
      await this.#platforms.of(architecture);
    await this.#interruptibly(signal, async (either) => {
      const check = { platformOf, context: this.#context, signal: either };
      await this.#serial.run(async () => await requireMemory(this.#machine, check), either);
    });
  }

  /** Runs `work` with a signal that aborts with `outer`, or by {@link interrupt}. */
  async #interruptibly<T>(
    outer: AbortSignal,
    work: (signal: AbortSignal, interruption: AbortController) => Promise<T>,
  ): Promise<T> {
    const interruption = new AbortController();
    const result = work(AbortSignal.any([outer, interruption.signal]), interruption);
    this.#copies.set(interruption, result);
    try {
      return await result;
    } finally {
      this.#copies.delete(interruption);
    }
  }

  /**
   * Removes the files and QEMU objects that an ended copy has left, for example because the agent died during the copy. Also thaws the
   * guest's file systems if they are perhaps frozen. If the guest does not confirm the thaw, the function does not fail, and its next call
   * requests the thaw again.
   */
  async tidy(): Promise<void> {
    if (this.#tidied) {
      return;
    }
    this.#tidying ??= this.#clear();
    try {
      await this.#tidying;
    } finally {
      this.#tidying = undefined;
    }
  }

  /** Calls {@link tidy} for an inspection of the machine, at most every 30 s and never during a copy. Errors are only logged. */
  async tryTidy(): Promise<void> {
    if (this.#copying || this.#tidied || performance.now() < this.#nextTidy) {
      return;
    }
    this.#nextTidy = performance.now() + TIDY_INTERVAL_MILLISECONDS;
    await this.#tidyOrLog();
  }

  async #tidyOrLog(): Promise<void> {
    try {
      await this.tidy();
    } catch (error) {
      const { uid } = this.#folder;
      this.#context.logger.warn({ uid, err: error }, 'The files of an ended disk copy could not be removed');
    }
  }

  /**
   * Copies the disk when all earlier work is done. If the signal aborts, a waiting copy ends at once, and a running copy removes its files.
   */
  async #runWhenFree(options: CopyOptions, interruption: AbortController): Promise<DiskCopy> {
    return await this.#serial.run(async () => {
      this.#copying = true;
      try {
        await this.tidy();
        return await this.#copy({ ...options, interruption });
      } finally {
        this.#copying = false;
        this.#preparation = undefined;
      }
    }, options.signal);
  }

  async #copy(options: RunningCopy): Promise<DiskCopy> {
    await this.#machine.dropHalfRenewed(this.#platforms);
    const file = await this.#machine.state.read();
    if (file === undefined) {
      throw new ReasonedError('NoMachine', `There is no machine ${this.#folder.uid}`);
    }
    if (file.diskBytes === undefined) {
      throw new ReasonedError('NoDisk', 'The machine has no disk');
    }
    const state = await this.#machine.inspect();
    const running = state.kind === 'running';
    await this.#note({ target: options.target });
    try {
      const copied =
        options.snapshot !== undefined
          ? await this.#copyLayer(file, options.snapshot, options)
          : running
            ? await this.#copyRunning(file, options)
            : await this.#copyStill(file, state, options);
      const { size } = await stat(options.target);
      await this.#note({ target: undefined });
      return { ...copied, virtualSizeBytes: size };
    } catch (error) {
      throw await this.#explained(error, running, options.signal);
    } finally {
      // This cleanup is the same as after a crash of the agent. If the cleanup fails, later inspections of the machine repeat it.
      this.#tidied = false;
      await this.#tidyOrLog();
    }
  }

  async #note(change: Partial<CopyNote>): Promise<void> {
    const { path } = this.#folder;
    const known = (await readCopyNote(path)) ?? { frozen: false, thawsFailed: 0 };
    await writeCopyNote(path, { ...known, ...change });
  }

  async #copyRunning(file: MachineFile, options: RunningCopy): Promise<Copied> {
    const { target, memory, signal, onProgress } = options;
    const { path, uid } = this.#folder;
    const { isRoot } = this.#context;
    const hypervisor = await this.#machine.required();
    const qmp = await hypervisor.qmp();
    const runAs = processUser(isRoot, file.launched?.runAs);
    const take = await (memory === undefined
      ? this.#prepareDisk(qmp, file, runAs)
      : this.#prepareMemory(qmp, file, { runAs, signal }));
    const { frozen } = await this.#whileFrozen(hypervisor.guestAgent, signal, take);
    const savedAt = Date.now();
    const source = await serveSnapshot(qmp);
    onProgress(0);
    const as = runAs && { ...runAs, gid: this.#context.readers ?? runAs.gid };
    const disk = memory === undefined ? target : preparedDisk(this.#folder);
    await convertToRaw(source, disk, { folder: path, mark: markOf(uid), as, signal, onProgress });
    const consistency = frozen ? 'FileSystem' : 'Crash';
    if (memory === undefined) {
      return { consistency };
    }
    // The rest of the work does not need the machine, and its guest writes faster without the filter.
    await dropSnapshot(qmp, file);
    await removeSnapshotFiles(path, true);
    return { consistency, memory: await this.#prepareImage(file, { ...options, memory }, savedAt) };
  }

  /** Prepares a snapshot of the disk. Returns the function that takes it. */
  async #prepareDisk(
    qmp: QmpConnection,
    file: MachineFile,
    runAs: RunAs | undefined,
  ): Promise<() => Promise<void>> {
    const drive = await prepareSnapshot(qmp, this.#folder.path, { file, runAs });
    return async () => await takeSnapshot(qmp, drive);
  }

  /** Prepares a snapshot of the memory and the disk. Returns the function that takes it. */
  async #prepareMemory(
    qmp: QmpConnection,
    file: MachineFile,
    { runAs, signal }: { runAs: RunAs | undefined; signal: AbortSignal },
  ): Promise<FrozenWork> {
    const { memoryBytes } = requireSavable(file);
    requireStartable(await this.#platforms.of(file.architecture), this.#context);
    await requireGuestAgent(qmp);
    await makeStreamFolder(this.#folder, this.#context);
    const { state } = this.#machine;
    const saving = { memoryBytes, runAs, qmp, file, state, signal };
    const save = async () => await saveStream(this.#folder, saving);
    return async (freeze) => {
      requireFrozen(freeze);
      await this.#machine.whileSaving(save);
    };
  }

  async #prepareImage(
    file: MachineFile,
    {
      target,
      memory,
      signal,
      onStep,
      interruption,
    }: RunningCopy & { memory: NonNullable<CopyOptions['memory']> },
    savedAt: number,
  ): Promise<MemoryFiles> {
    this.#preparation = interruption;
    try {
      const platform = await this.#platforms.of(file.architecture);
      const files = { ...memory, disk: target };
      const preparation = { file, platform, files, savedAt, signal, onStep };
      return await prepareImage(this.#folder, preparation, this.#context);
    } catch (error) {
      await removeMemoryFiles(memory);
      throw error;
    }
  }

  /** Runs `work` while the guest's file systems are frozen. After {@link THAW_LIMIT} unconfirmed thaws, runs `work` without a freeze. */
  async #whileFrozen(agent: GuestAgent, signal: AbortSignal, work: FrozenWork): Promise<Freeze> {
    const { path } = this.#folder;
    if (((await readCopyNote(path))?.thawsFailed ?? 0) >= THAW_LIMIT) {
      const problems = [
        'The guest did not confirm earlier thaws, so the host copies the disk without a freeze',
      ];
      const none: Freeze = { frozen: false, confirmed: false, problems };
      await work(none);
      return none;
    }
    const remember = async (frozen: boolean) => await this.#note({ frozen });
    const freeze = await whileFrozen({ agent, signal, remember }, work);
    const { uid } = this.#folder;
    if (freeze.problems.length > 0) {
      this.#context.logger.warn(
        { uid, problems: freeze.problems },
        'The guest agent had problems with the freeze of the file systems',
      );
    }
    return freeze;
  }

  async #copyStill(
    file: MachineFile,
    state: MachineState,
    { target, memory, signal, onProgress }: CopyOptions,
  ): Promise<Copied> {
    if (memory !== undefined) {
      throw notRunning();
    }
    await this.#copyFiles(file, { target, signal, onProgress });
    const lostPower = state.kind === 'suspended' || (state.kind === 'exited' && state.reason === 'Crashed');
    return { consistency: lostPower ? 'Crash' : 'Stopped' };
  }

  /** Copies a snapshot. Nobody writes to its layer, also while the machine runs. */
  async #copyLayer(file: MachineFile, uid: string, options: CopyOptions): Promise<Copied> {
    const { file: disk, parent, snapshot } = requireSnapshot(file, uid);
    await this.#copyFiles({ ...file, disk, parent }, options, file);
    return { consistency: snapshot?.consistency ?? 'Crash' };
  }

  /** Copies the disk of `file` and the layers under it, as the owner of the disk of `own`. No process may write to them. */
  async #copyFiles(
    file: MachineFile,
    { target, signal, onProgress }: Pick<CopyOptions, 'target' | 'signal' | 'onProgress'>,
    own = file,
  ): Promise<void> {
    const { path, uid } = this.#folder;
    await requireOwnDisk(path, file);
    onProgress(0);
    const { isRoot, readers } = this.#context;
    const owner = await diskReader(path, own, isRoot);
    const as = owner && { ...owner, gid: readers ?? owner.gid };
    await convertToRaw(diskNode(file), target, { folder: path, mark: markOf(uid), as, signal, onProgress });
  }

  async #explained(error: unknown, running: boolean, signal: AbortSignal): Promise<unknown> {
    if (signal.aborted) {
      return signal.reason;
    }
    if (error instanceof ReasonedError && EXACT_REASONS.has(error.reason)) {
      return error;
    }
    if (running && (await this.#machine.process()) === undefined) {
      return new ReasonedError('Interrupted', 'The machine ended while its disk was copied');
    }
    return new ReasonedError('CopyFailed', `The disk was not copied: ${messageOf(error)}`, { cause: error });
  }

  async #clear(): Promise<void> {
    const { path, uid } = this.#folder;
    const note = await readCopyNote(path);
    if (note !== undefined) {
      await killByArgument(markArgument(markOf(uid)));
      if (note.target !== undefined) {
        await rm(note.target, { force: true });
      }
      await dropImageMemory(this.#folder, this.#context);
      const hypervisor = await this.#machine.hypervisor();
      const qmp = await hypervisor?.qmp();
      const thawed = !note.frozen || (await this.#thaw(hypervisor, note));
      await this.#endMerge(note, qmp);
      await repairLayers(this.#folder, this.#machine.state, { qmp, isRoot: this.#context.isRoot });
      const file = await this.#machine.state.readIfPossible();
      await (qmp && dropSnapshot(qmp, file === UNREADABLE ? {} : file));
      const removed = await removeSnapshotFiles(path, hypervisor !== undefined);
      // While the thaw is unconfirmed, the note stays, because the next copy reads the number of thaw requests from it. It is removed when the
      // machine has ended and is not suspended. It also stays until then if other files of the hypervisor are in the snapshot's folder.
      if (!thawed || !removed) {
        return await this.#note({ target: undefined, ...(thawed && { frozen: false, thawsFailed: 0 }) });
      }
      await removeCopyNote(path);
    }
    this.#tidied = true;
  }

  async #endMerge({ merging }: CopyNote, qmp: QmpConnection | undefined): Promise<void> {
    if (merging === true) {
      await (qmp && endMerge(qmp));
      await sweepLayers(this.#folder, this.#machine.state);
    }
  }

  /**
   * Requests a thaw of the guest's file systems, and returns whether the guest confirmed the thaw. The request is counted first, so that it
   * counts even if the agent dies during the request. Without a hypervisor, only a suspended guest stays frozen.
   */
  async #thaw(hypervisor: Hypervisor | undefined, { thawsFailed }: CopyNote): Promise<boolean> {
    if (hypervisor === undefined) {
      const state = await this.#machine.state.readIfPossible();
      return state === UNREADABLE || state?.suspended !== true;
    }
    if (thawsFailed >= THAW_LIMIT) {
      return false;
    }
    const { uid } = this.#folder;
    await this.#note({ thawsFailed: thawsFailed + 1 });
    try {
      await thaw(hypervisor.guestAgent);
      return true;
    } catch (error) {
      this.#context.logger.error(
        { uid, err: error, attempt: thawsFailed + 1, attempts: THAW_LIMIT },
        'The guest did not confirm the thaw of its file systems',
      );
      return false;
    }
  }
}

/** Returns the text by which the agent finds the process that reads a machine's disk for a copy or a merge. */
export function markOf(uid: string): string {
  return `berth-copy-${uid}`;
}
