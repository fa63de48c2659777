/** Provides disks of this host as raw files for publishing: disks of images in the image store, and disks of machines. */
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import type { Machine } from '../../api/v1alpha1/machine.ts';
import type { Task, TaskReport } from '../../api/v1alpha1/task.ts';
import { ReasonedError } from '../../api/v1alpha1/reasons.ts';
import { type DriverOfVMs, type MachineFolder, memoryWorkFolder } from '../drivers/driver.ts';
import { convertToRaw, markArgument } from '../disks/qemuimg.ts';
import { allocatedBytes, folderBytes } from '../disks/diskio.ts';
import type { RawDisk } from '../images/layouts/publish.ts';
import { machineBeside, machineIn } from '../images/layouts/artifactmachine.ts';
import { memoryIn } from '../images/layouts/pull.ts';
import type { Publisher, PublishingOptions, StoringOptions } from '../images/publisher.ts';
import { killByArgument } from '../processes/process.ts';
import type { MachineUsers } from '../processes/users.ts';
import type { BaseImage, MachineFiles, MemoryFiles } from '../disks/disk.ts';
import type { Need } from '../images/local/spacemeter.ts';
import type { ImageStore } from '../images/store.ts';
import { type TaskContext, tenantOf } from './runner.ts';

/** Progress of the task in percent when the raw file is complete. The rest of the progress is for publishing. */
const COPY_PERCENT = 40;

/** A machine of this host, with the driver that stores its disk. */
export interface MachineOnHost {
  folder: MachineFolder;
  machine: Machine;
  driver: DriverOfVMs;
  /** Size of the memory of a machine that runs or is suspended, in bytes, otherwise 0. */
  memoryBytes: number;
}

export interface DiskHost {
  images: ImageStore;
  publisher: Publisher;
  /** System users under which programs run. Undefined if the agent is not root. */
  users?: MachineUsers | undefined;
  /** Returns the machine of a VM by the VM's uid, or undefined if the machine is not on this host. */
  machineOf: (vmUid: string) => MachineOnHost | undefined;
  /** Architecture of a guest if the document of its machine does not state an architecture. */
  architecture: 'amd64' | 'arm64';
}

/** A file with the disk of an image. */
export type DiskFile = Omit<BaseImage, 'digest'>;

/** Function that works with a raw disk, for example publishes it. The function returns the report of the task. */
export type UseDisk = (disk: RawDisk, options: StoringOptions) => Promise<TaskReport>;

/**
 * Calls `use` with an image as a raw file. The file is the image itself, or a copy that is removed afterwards. If `architecture` is
 * undefined, the disk that `use` gets has no architecture either. The function does not assume the architecture of this host, because a
 * host of any architecture can do this work.
 */
export async function withImage(
  host: DiskHost,
  { base, architecture }: { base: DiskFile; architecture: RawDisk['architecture'] | undefined },
  context: TaskContext,
  use: UseDisk,
): Promise<TaskReport> {
  const { virtualSizeBytes, memory } = base;
  const mark = await freshMark(context);
  const machine = await machineBeside(base.path);
  const disk = { path: base.path, virtualSizeBytes, architecture, memory, ...(machine && { machine }) };
  if (base.format === 'raw') {
    return await use(disk, { signal: context.signal, onProgress: context.progress, mark });
  }
  const source = {
    driver: 'qcow2',
    backing: null,
    file: { driver: 'file', filename: base.path },
  };
  // The estimated size of the raw copy (`bytes`) can be too small, because a compressed image uses less space than its raw copy. Therefore
  // `withRoom` also checks the free space during the copy.
  return await withCopy(
    host,
    { bytes: await allocatedBytes(base.path), context },
    async ({ path }, options) => {
      context.log('Unpacking the image');
      const as = host.users?.reader;
      await convertToRaw(source, path, { ...options.copying, folder: context.folder, mark, as });
      return await use({ ...disk, path }, { ...options.publishing, mark });
    },
  );
}

/**
 * Returns the mark of the programs of a task. If an earlier run of the agent was killed during this task, its qemu-img can still run. The
 * function ends that qemu-img, because it would use disk space for a removed file.
 */
export async function freshMark({ uid }: TaskContext): Promise<string> {
  const mark = `berth-task-${uid}`;
  await killByArgument(markArgument(mark));
  return mark;
}

/** Copies a machine's disk, and its memory if the task asks for it, as they are at one moment. Calls `use` with the copy. */
export async function withMachine(
  host: DiskHost,
  { vm, memory: isMemoryAsked, snapshot }: Pick<Task & { type: 'save' }, 'vm' | 'memory' | 'snapshot'>,
  context: TaskContext,
  use: UseDisk,
): Promise<TaskReport> {
  const found = host.machineOf(vm.uid);
  if (found === undefined) {
    throw new ReasonedError('NoMachine', `VM ${vm.namespace}/${vm.name} is not on this host`);
  }
  const { folder, machine, driver, memoryBytes } = found;
  const mark = await freshMark(context);
  if (isMemoryAsked === true) {
    await driver.requireMemory(folder, context.signal);
  }
  // While the memory is prepared, it is on the disk twice. The guest is paused for it, so nobody could find in time that there is no room.
  const bytes = (await driver.copyBytes(folder, snapshot)) + (isMemoryAsked ? 2 * memoryBytes : 0);
  const memoryRoom = { isAtOnce: true, beside: memoryWorkFolder(folder) };
  const copy = { bytes, context, ...(isMemoryAsked && memoryRoom) };
  return await withCopy(host, copy, async (files, options) => {
    const { path: target, ram, state, config, variables } = files;
    context.log(`Copying the disk${isMemoryAsked ? ' and the memory' : ''} of VM ${vm.namespace}/${vm.name}`);
    const copied = await driver.copyDisk(folder, {
      target,
      machine: { config, variables },
      ...(isMemoryAsked && { memory: { ram, state }, onStep: context.log }),
      snapshot,
      ...options.copying,
    });
    const { consistency, memory, ...rest } = copied;
    if (isMemoryAsked && memory === undefined) {
      throw new ReasonedError('NoMemory', `VM ${vm.namespace}/${vm.name} does not run, so it has no memory`);
    }
    context.log(CONSISTENCIES[consistency]);
    const { architecture = host.architecture, os } = machine;
    const report = await use(
      { path: target, architecture, os, memory, ...rest },
      { ...options.publishing, mark },
    );
    return { ...report, consistency, message: CONSISTENCIES[consistency] };
  });
}

const CONSISTENCIES = {
  FileSystem: 'The disk was copied while the file systems of the guest were frozen',
  Crash:
    'The copy is like a disk after a power cut, because no guest agent could freeze the file systems of the guest',
  Stopped: 'The disk was copied while the machine was off',
} as const;

/** Returns a function that reports the progress of one part of a task. The part begins at `from` and ends at `to` percent of the task. */
export function inPart({ progress }: TaskContext, from: number, to: number): TaskContext['progress'] {
  return (percent) => progress(from + (percent * (to - from)) / 100);
}

interface Halves {
  copying: PublishingOptions;
  publishing: PublishingOptions;
}

/** Paths of the files of a copy: the disk, the files for the memory, and those of a machine beside its disk. */
type CopyFiles = { path: string } & Pick<MemoryFiles, 'ram' | 'state'> & MachineFiles;

async function withCopy(
  host: DiskHost,
  { bytes, context, ...room }: Pick<Need, 'bytes' | 'isAtOnce' | 'beside'> & { context: TaskContext },
  use: (files: CopyFiles, options: Halves) => Promise<TaskReport>,
): Promise<TaskReport> {
  const { folder } = context;
  const files = { path: join(folder, 'disk.raw'), ...memoryIn(folder), ...machineIn(folder) };
  const removeFiles = async (): Promise<void> => {
    await Promise.all(Object.values(files).map(async (file) => await rm(file, { force: true })));
  };
  try {
    // If an earlier run of the agent was killed during this task, that run can have left a copy.
    await removeFiles();
    // The reserved space of a folder must include the bytes that the folder already uses, for example an uploaded file.
    const claim = { ...room, folder, tenant: tenantOf(context), bytes: bytes + (await folderBytes(folder)) };
    return await host.images.withRoom(claim, context.signal, async (signal) => {
      return await use(files, {
        copying: { signal, onProgress: inPart(context, 0, COPY_PERCENT) },
        publishing: { signal, onProgress: inPart(context, COPY_PERCENT, 100) },
      });
    });
  } finally {
    await removeFiles();
  }
}
