/**
 * Copies the disk of one machine while the machine is off. The hypervisor has no snapshots, so the disk of a running machine cannot be copied.
 * Steps that start or reset the machine wait until a copy has ended.
 */
import { constants, copyFile, open, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { Serial } from '../../../base/concurrency.ts';
import { hasCode, messageOf, undefinedIf } from '../../../base/errors.ts';
import { unlessAborted } from '../../../base/time.ts';
import { TART_FILES } from '../../disks/disk.ts';
import { copyHashed } from '../../disks/sparse.ts';
import type { CopyOptions, DiskCopy, MachineState } from '../driver.ts';
import { diskOf } from './files.ts';

const RUNS =
  'A host with the driver tart copies the disk of a machine only while the machine is off. Stop the VM, and the copy is tried again';
/** Errors of file systems without copy-on-write copies, and of a copy to another file system. */
const NO_CLONE = hasCode('ENOTSUP', 'EOPNOTSUPP', 'EXDEV', 'EINVAL', 'ENOSYS', 'ENOTTY');

/** What a copy needs of its machine. */
interface Source {
  /** Folder of the machine in the folder of the program. */
  bundle: string;
  inspect: () => Promise<MachineState>;
}

export class TartCopies {
  readonly #serial = new Serial();
  #interruption = new AbortController();

  /**
   * Runs `work` when all earlier copies have ended. @throws the signal's reason when it aborts before `work` begins. Later, the signal has no
   * effect here.
   */
  async exclusively<T>(work: () => Promise<T>, signal?: AbortSignal): Promise<T> {
    const begun = Promise.withResolvers<void>();
    const result = this.#serial.run(async () => {
      signal?.throwIfAborted();
      begun.resolve();
      return await work();
    });
    if (signal !== undefined) {
      // Nobody waits for the result of work that the signal has made needless.
      result.catch(() => undefined);
      await unlessAborted(Promise.race([begun.promise, result]), signal);
    }
    return await result;
  }

  /** Returns a signal for work under {@link exclusively}, which aborts with `signal` or by {@link interrupt}. */
  interruptible(signal?: AbortSignal): AbortSignal {
    return AbortSignal.any([this.#interruption.signal, ...(signal ? [signal] : [])]);
  }

  /** Ends the copy or the interruptible work that is under way, and waits until it has ended. */
  async interrupt(message: string): Promise<void> {
    this.#interruption.abort(new ReasonedError('Interrupted', message));
    this.#interruption = new AbortController();
    await this.#serial.run(async () => await Promise.resolve());
  }

  /** Copies the disk and the other files of a machine, as `copyDisk` of the driver does. */
  async run({ bundle, inspect }: Source, options: CopyOptions): Promise<DiskCopy> {
    const signal = this.interruptible(options.signal);
    const copying = async () => {
      const consistency = consistencyOf(await inspect(), options);
      const virtualSizeBytes = await copyFiles(bundle, { ...options, signal });
      return { consistency, virtualSizeBytes, ...(options.machine && { machine: options.machine }) };
    };
    return await this.exclusively(copying, signal);
  }
}

/** Returns the state of the copied disk. @throws ReasonedError when the disk cannot be copied. */
function consistencyOf(state: MachineState, { memory, snapshot }: CopyOptions): DiskCopy['consistency'] {
  if (state.kind === 'absent') {
    throw new ReasonedError('NoMachine', 'The machine is not on this host');
  }
  if (snapshot !== undefined) {
    throw new ReasonedError('SnapshotNotFound', 'A host with the driver tart has no snapshots');
  }
  if (memory !== undefined) {
    throw memoryRefusal();
  }
  if (state.kind === 'running') {
    throw new ReasonedError('CopyFailed', RUNS);
  }
  const hasLostPower = state.kind === 'suspended' || (state.kind === 'exited' && state.reason === 'Crashed');
  return hasLostPower ? 'Crash' : 'Stopped';
}

/** Returns the error for a request to keep the memory of a machine. */
export function memoryRefusal(): ReasonedError {
  return new ReasonedError('MemoryNotSaved', 'A host with the driver tart saves no memory of VMs');
}

/** Copies the files of a machine that is off. Returns the size of its disk in bytes. */
async function copyFiles(
  bundle: string,
  { target, machine, signal, onProgress }: CopyOptions,
): Promise<number> {
  onProgress(0);
  try {
    if (machine !== undefined) {
      await copyFile(join(bundle, TART_FILES.config), machine.config);
      await copyFile(join(bundle, TART_FILES.variables), machine.variables);
    }
    return await copyDisk(diskOf(bundle), target, { signal, onProgress });
  } catch (error) {
    await rm(target, { force: true });
    signal.throwIfAborted();
    throw new ReasonedError('CopyFailed', `The disk was not copied: ${messageOf(error)}`, { cause: error });
  }
}

/** Clones a disk by copy-on-write where the file system can, and otherwise copies its bytes. Returns its size in bytes. */
async function copyDisk(
  from: string,
  to: string,
  { signal, onProgress }: Pick<CopyOptions, 'signal' | 'onProgress'>,
): Promise<number> {
  const source = await open(from, 'r');
  try {
    const { size: bytes } = await source.stat();
    const cloned = copyFile(from, to, constants.COPYFILE_FICLONE_FORCE).then(() => true);
    if ((await undefinedIf(NO_CLONE, cloned)) !== true) {
      let done = 0;
      const onBytes = (count: number): void => {
        done += count;
        onProgress((done * 100) / bytes);
      };
      await copyHashed(source, to, { bytes, signal, onBytes });
    }
    signal.throwIfAborted();
    return bytes;
  } finally {
    await source.close();
  }
}
