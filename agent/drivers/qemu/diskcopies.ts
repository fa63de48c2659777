/** Copies of one machine's disk, and the order in which they and the machine's other steps go. */
import { rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { messageOf } from '../../../base/errors.ts';
import { convertToRaw, markArgument } from '../../disks/qemuimg.ts';
import { findByArgument, killForCertain } from '../../machines/process.ts';
import { SHARED_RUN_AS } from '../../machines/users.ts';
import { Serial } from '../../../base/serial.ts';
import { type CopyOptions, type DiskCopy, type MachineFolder, type MachineState } from '../driver.ts';
import { diskNode } from './arguments.ts';
import { type CopyNote, readCopyNote, removeCopyNote, writeCopyNote } from './copystate.ts';
import { diskReader, requireOwnData } from './disk.ts';
import { type Freeze, thaw, whileFrozen } from './guestagent.ts';
import type { MachineContext } from './launch.ts';
import type { QemuMachine } from './machine.ts';
import {
  dropSnapshot,
  prepareSnapshot,
  removeSnapshotFiles,
  serveSnapshot,
  takeSnapshot,
} from './snapshot.ts';
import { FILES, type MachineFile } from './state.ts';

/** What could not be cleared is tried again by who looks at the machine, but each try may take seconds. */
const TIDY_INTERVAL_MILLISECONDS = 30_000;
/**
 * A guest that did not say so often that it thawed is asked no more, and frozen no more, until it starts anew: with the interval above
 * a guest that is only slow had five minutes, and one that plays with its host costs it nothing from then on.
 */
const THAW_LIMIT = 10;

export class DiskCopies {
  readonly #folder: MachineFolder;
  readonly #machine: QemuMachine;
  readonly #context: MachineContext;
  /** Waiting ones included. */
  readonly #copies = new Map<AbortController, Promise<unknown>>();
  readonly #serial = new Serial();
  #copying = false;
  #tidied = false;
  #tidying: Promise<void> | undefined;
  #nextTidy = 0;

  constructor(folder: MachineFolder, machine: QemuMachine, context: MachineContext) {
    this.#folder = folder;
    this.#machine = machine;
    this.#context = context;
  }

  /** After every copy asked for before. */
  async exclusively<T>(work: () => Promise<T>): Promise<T> {
    return await this.#serial.run(work);
  }

  /** Every copy asked for so far fails; resolves when all of them have ended. */
  async interrupt(message: string): Promise<void> {
    for (const interruption of this.#copies.keys()) {
      interruption.abort(new ReasonedError('Interrupted', message));
    }
    await Promise.allSettled(this.#copies.values());
  }

  async run(options: CopyOptions): Promise<DiskCopy> {
    const interruption = new AbortController();
    const signal = AbortSignal.any([options.signal, interruption.signal]);
    const copy = this.#inTurn({ ...options, signal });
    this.#copies.set(interruption, copy);
    try {
      return await copy;
    } finally {
      this.#copies.delete(interruption);
    }
  }

  /**
   * Removes what an agent that died in the middle of a copy has left. A guest that does not say that its file systems are
   * thawed holds up nobody; it is asked again at the next call.
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

  /** The same for who only looks, at any time: a failure is said in the log. */
  async tryTidy(): Promise<void> {
    if (this.#copying || this.#tidied || Date.now() < this.#nextTidy) {
      return;
    }
    this.#nextTidy = Date.now() + TIDY_INTERVAL_MILLISECONDS;
    try {
      await this.tidy();
    } catch (error) {
      const { uid } = this.#folder;
      this.#context.logger.warn({ uid, err: error }, 'remains of a copy of the disk not removed');
    }
  }

  /** A copy that waits can be given up at once; one that has begun ends by itself, with all that it made. */
  async #inTurn(options: CopyOptions): Promise<DiskCopy> {
    const { signal } = options;
    const waiting = Promise.withResolvers<never>();
    const giveUp = () => waiting.reject(signal.reason);
    signal.addEventListener('abort', giveUp);
    const turn = this.exclusively(async () => {
      signal.throwIfAborted();
      signal.removeEventListener('abort', giveUp);
      this.#copying = true;
      try {
        await this.tidy();
        return await this.#copy(options);
      } finally {
        this.#copying = false;
      }
    });
    try {
      return await Promise.race([turn, waiting.promise]);
    } finally {
      signal.removeEventListener('abort', giveUp);
    }
  }

  async #copy(options: CopyOptions): Promise<DiskCopy> {
    const { uid } = this.#folder;
    const file = await this.#machine.state.read();
    if (file === undefined) {
      throw new ReasonedError('NoMachine', `there is no machine ${uid}`);
    }
    if (file.diskBytes === undefined) {
      throw new ReasonedError('NoDisk', 'the machine has no disk');
    }
    const state = await this.#machine.inspect();
    const running = state.kind === 'running';
    await this.#note({ target: options.target });
    try {
      const consistency = running
        ? await this.#copyRunning(file, options)
        : await this.#copyStill(file, state, options);
      const { size } = await stat(options.target);
      await this.#note({ target: undefined });
      return { consistency, virtualSizeBytes: size };
    } catch (error) {
      throw await this.#explained(error, running, options.signal);
    } finally {
      await this.#finish();
    }
  }

  /** The same way as for an agent that died. What fails is left to who looks at the machine. */
  async #finish(): Promise<void> {
    this.#tidied = false;
    try {
      await this.tidy();
    } catch (error) {
      const { uid } = this.#folder;
      this.#context.logger.warn({ uid, err: error }, 'a copy of the disk left something behind');
    }
  }

  async #note(change: Partial<CopyNote>): Promise<void> {
    const { path } = this.#folder;
    const known = (await readCopyNote(path)) ?? { frozen: false, thawsFailed: 0 };
    await writeCopyNote(path, { ...known, ...change });
  }

  async #copyRunning(
    { launched }: MachineFile,
    { target, signal, onProgress }: CopyOptions,
  ): Promise<DiskCopy['consistency']> {
    const { path, uid } = this.#folder;
    const { isRoot, logger } = this.#context;
    const qmp = await this.#machine.connect();
    if (qmp === undefined) {
      throw new Error('the hypervisor has ended');
    }
    const runAs = isRoot ? (launched?.runAs ?? SHARED_RUN_AS) : undefined;
    const drive = await prepareSnapshot(qmp, path, runAs);
    const take = async () => await takeSnapshot(qmp, drive);
    const { frozen, problems } = await this.#whileFrozen(signal, take);
    if (problems.length > 0) {
      logger.warn({ uid, problems }, 'file systems not frozen for a copy in order');
    }
    const source = await serveSnapshot(qmp);
    onProgress(0);
    const as = runAs && { ...runAs, gid: this.#context.readers ?? runAs.gid };
    await convertToRaw(source, target, { folder: path, mark: markOf(uid), as, signal, onProgress });
    return frozen ? 'FileSystem' : 'Crash';
  }

  /** Without a freeze where the guest has failed to thaw too often. */
  async #whileFrozen(signal: AbortSignal, work: () => Promise<void>): Promise<Freeze> {
    const { path } = this.#folder;
    if (((await readCopyNote(path))?.thawsFailed ?? 0) >= THAW_LIMIT) {
      await work();
      return { frozen: false, problems: ['the guest did not thaw earlier, so it is not frozen again'] };
    }
    const remember = async (frozen: boolean) => await this.#note({ frozen });
    return await whileFrozen({ folder: path, signal, remember }, work);
  }

  async #copyStill(
    file: MachineFile,
    state: MachineState,
    { target, signal, onProgress }: CopyOptions,
  ): Promise<DiskCopy['consistency']> {
    const { path, uid } = this.#folder;
    await requireOwnData(join(path, FILES.disk));
    onProgress(0);
    const { isRoot, readers } = this.#context;
    const owner = await diskReader(path, isRoot);
    const as = owner && { ...owner, gid: readers ?? owner.gid };
    await convertToRaw(diskNode(file), target, { folder: path, mark: markOf(uid), as, signal, onProgress });
    const lostPower = state.kind === 'suspended' || (state.kind === 'exited' && state.reason === 'Crashed');
    return lostPower ? 'Crash' : 'Stopped';
  }

  async #explained(error: unknown, running: boolean, signal: AbortSignal): Promise<unknown> {
    if (signal.aborted) {
      return signal.reason;
    }
    if (running && (await this.#machine.process()) === undefined) {
      return new ReasonedError('Interrupted', 'the machine ended while its disk was copied');
    }
    const message = messageOf(error);
    return new ReasonedError('CopyFailed', `the disk was not copied: ${message}`);
  }

  async #clear(): Promise<void> {
    const { path, uid } = this.#folder;
    const note = await readCopyNote(path);
    if (note !== undefined) {
      const reader = await findByArgument(markArgument(markOf(uid)));
      if (reader !== undefined) {
        await killForCertain(reader);
      }
      if (note.target !== undefined) {
        await rm(note.target, { force: true });
      }
      const qmp = await this.#machine.connect();
      const thawed = qmp === undefined || !note.frozen || (await this.#thaw(note));
      if (qmp !== undefined) {
        await dropSnapshot(qmp);
      }
      await removeSnapshotFiles(path);
      // Also where the guest is asked no more: the note is for the next copy, and goes when the machine has ended.
      if (!thawed) {
        return await this.#note({ target: undefined });
      }
      await removeCopyNote(path);
    }
    this.#tidied = true;
  }

  /** Whether the guest says that it thawed. The attempt is written down first: one that ends the agent counts too. */
  async #thaw({ thawsFailed }: CopyNote): Promise<boolean> {
    if (thawsFailed >= THAW_LIMIT) {
      return false;
    }
    const { path, uid } = this.#folder;
    await this.#note({ thawsFailed: thawsFailed + 1 });
    try {
      await thaw(path);
      return true;
    } catch (error) {
      this.#context.logger.error(
        { uid, err: error, attempt: thawsFailed + 1, attempts: THAW_LIMIT },
        'file systems of the guest not thawed',
      );
      return false;
    }
  }
}

/** Of the process that reads the disk of a machine. */
function markOf(uid: string): string {
  return `berth-copy-${uid}`;
}
