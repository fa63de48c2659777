/** Copies of one machine's disk, and the order in which they and the machine's other steps go. */
import { rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { FILES, type MachineFile } from '../../machines/folder.ts';
import { findByArgument, killForCertain } from '../../machines/process.ts';
import {
  CopyError,
  type CopyOptions,
  type DiskCopy,
  type MachineFolder,
  type MachineState,
} from '../driver.ts';
import { diskNode } from './arguments.ts';
import type { MachineContext } from './context.ts';
import { convertToRaw } from './convert.ts';
import { type CopyNote, readCopyNote, removeCopyNote, writeCopyNote } from './copynote.ts';
import { requirePlainDisk } from './disk.ts';
import { thaw, whileFrozen } from './guestagent.ts';
import type { Machine } from './machine.ts';
import type { QmpConnection } from './qmp.ts';
import {
  dropSnapshot,
  prepareSnapshot,
  removeSnapshotFiles,
  serveSnapshot,
  takeSnapshot,
} from './snapshot.ts';

/** What could not be cleared is tried again by who looks at the machine, but each try may take seconds. */
const TIDY_INTERVAL_MILLISECONDS = 30_000;

export class DiskCopies {
  readonly #folder: MachineFolder;
  readonly #machine: Machine;
  readonly #context: MachineContext;
  /** Waiting ones included. */
  readonly #copies = new Map<AbortController, Promise<unknown>>();
  #last: Promise<unknown> = Promise.resolve();
  #tidied = false;
  #tidying: Promise<void> | undefined;
  #nextTidy = 0;

  constructor(folder: MachineFolder, machine: Machine, context: MachineContext) {
    this.#folder = folder;
    this.#machine = machine;
    this.#context = context;
  }

  /** After every copy asked for before. */
  async exclusively<T>(work: () => Promise<T>): Promise<T> {
    const result = this.#last.then(work);
    this.#last = result.catch(() => undefined);
    return await result;
  }

  /** Every copy asked for so far fails; resolves when all of them have ended. */
  async interrupt(message: string): Promise<void> {
    for (const interruption of this.#copies.keys()) {
      interruption.abort(new CopyError('Interrupted', message));
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

  /** Removes what an agent that died in the middle of a copy has left. */
  async tidy(): Promise<void> {
    if (this.#tidied) return;
    this.#tidying ??= this.#clear();
    try {
      await this.#tidying;
    } finally {
      this.#tidying = undefined;
    }
  }

  /** The same for who only looks: a failure is said in the log, and it is tried again some other time. */
  async tryTidy(): Promise<void> {
    if (Date.now() < this.#nextTidy) return;
    try {
      await this.tidy();
    } catch (error) {
      this.#nextTidy = Date.now() + TIDY_INTERVAL_MILLISECONDS;
      const { uid } = this.#folder;
      this.#context.logger.warn({ uid, error: String(error) }, 'remains of a copy of the disk not removed');
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
      await this.tidy();
      return await this.#copy(options);
    });
    try {
      return await Promise.race([turn, waiting.promise]);
    } finally {
      signal.removeEventListener('abort', giveUp);
    }
  }

  async #copy(options: CopyOptions): Promise<DiskCopy> {
    const { path, uid } = this.#folder;
    const file = await this.#machine.state.read();
    if (file === undefined) throw new CopyError('NoMachine', `there is no machine ${uid}`);
    if (file.diskBytes === undefined) throw new CopyError('NoDisk', 'the machine has no disk');
    const state = await this.#machine.inspect();
    const running = state.kind === 'running';
    await writeCopyNote(path, { target: options.target, frozen: false });
    try {
      const consistency = running
        ? await this.#copyRunning(options)
        : await this.#copyStill(file, state, options);
      const { size } = await stat(options.target);
      const note = await readCopyNote(path);
      await writeCopyNote(path, { frozen: note?.frozen ?? false });
      return { consistency, virtualSizeBytes: size };
    } catch (error) {
      throw await this.#explained(error, running, options.signal);
    } finally {
      // Until nothing is left, every look at the machine tries again.
      this.#tidied = false;
      this.#nextTidy = 0;
      await this.tryTidy();
    }
  }

  async #copyRunning({ target, signal, onProgress }: CopyOptions): Promise<DiskCopy['consistency']> {
    const { path, uid } = this.#folder;
    const { runAs, logger } = this.#context;
    const qmp = await this.#machine.connect();
    if (qmp === undefined) throw new Error('the hypervisor has ended');
    const drive = await prepareSnapshot(qmp, path, runAs);
    const remember = async (frozen: boolean) => await writeCopyNote(path, { target, frozen });
    const { frozen, problems } = await whileFrozen(
      { folder: path, signal, remember },
      async () => await takeSnapshot(qmp, drive),
    );
    if (problems.length > 0) logger.warn({ uid, problems }, 'file systems not frozen for a copy in order');
    const source = await serveSnapshot(qmp);
    onProgress(0);
    await convertToRaw(source, target, { folder: path, name: processName(uid), signal, onProgress });
    return frozen ? 'FileSystem' : 'Crash';
  }

  async #copyStill(
    file: MachineFile,
    state: MachineState,
    { target, signal, onProgress }: CopyOptions,
  ): Promise<DiskCopy['consistency']> {
    const { path, uid } = this.#folder;
    await requirePlainDisk(join(path, FILES.disk));
    onProgress(0);
    await convertToRaw(diskNode(file), target, { folder: path, name: processName(uid), signal, onProgress });
    const lostPower = state.kind === 'suspended' || (state.kind === 'exited' && state.reason === 'Crashed');
    return lostPower ? 'Crash' : 'Stopped';
  }

  async #explained(error: unknown, running: boolean, signal: AbortSignal): Promise<unknown> {
    if (signal.aborted) return signal.reason;
    if (running && (await this.#machine.process()) === undefined) {
      return new CopyError('Interrupted', 'the machine ended while its disk was copied');
    }
    const message = error instanceof Error ? error.message : String(error);
    return new CopyError('CopyFailed', `the disk was not copied: ${message}`);
  }

  async #clear(): Promise<void> {
    const { path, uid } = this.#folder;
    const note = await readCopyNote(path);
    if (note !== undefined) {
      const reader = await findByArgument(processName(uid));
      if (reader !== undefined) await killForCertain(reader);
      if (note.target !== undefined) await rm(note.target, { force: true });
      const qmp = await this.#machine.connect();
      if (qmp !== undefined) await letGuestGo(qmp, path, note);
      await removeSnapshotFiles(path);
      await removeCopyNote(path);
    }
    this.#tidied = true;
  }
}

async function letGuestGo(qmp: QmpConnection, folder: string, { frozen }: CopyNote): Promise<void> {
  try {
    if (frozen) await thaw(folder);
  } finally {
    await dropSnapshot(qmp);
  }
}

/** Of the process that reads the disk of a machine. */
function processName(uid: string): string {
  return `berth-copy-${uid}`;
}
