/** The task of a download: it fetches an image, and sends it as one file to each caller who attaches to the Pod of the task. */
import { rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import type { Task, TaskReport } from '../../api/v1alpha1/task.ts';
import type { BaseImage } from '../disks/disk.ts';
import { allocatedBytes } from '../disks/diskio.ts';
import { convertToQcow2 } from '../disks/qemuimg.ts';
import { Downloaders } from './downloaders.ts';
import { type DiskHost, withImage } from './disks.ts';
import type { TaskContext } from './runner.ts';

type SendTask = Task & { type: 'send' };

/** Function that fetches an image, and keeps it in the store until `use` has ended. */
export type HoldImage = (use: (base: BaseImage) => Promise<TaskReport>) => Promise<TaskReport>;

/**
 * Sends the image to all callers. Resolves when the connection of the last caller has ended. @throws ReasonedError when no caller received
 * the whole file.
 */
export async function send(
  host: DiskHost,
  task: SendTask,
  context: TaskContext,
  hold: HoldImage,
): Promise<TaskReport> {
  const downloaders = new Downloaders();
  context.takeCallers((caller) => downloaders.take(caller));
  try {
    return await hold(async (base) => {
      return await withFile(host, task, { base, context }, async (path, signal) => {
        const { size } = await stat(path);
        context.log(`Sending ${size} bytes to each caller`);
        const count = await downloaders.serve({ path, bytes: size }, signal);
        context.log(`Sent the whole file to ${count} callers`);
        return {};
      });
    });
  } catch (error) {
    downloaders.refuse(error);
    throw error;
  }
}

/** Function that sends a file. The signal aborts when the task must end, also because a copy fills the disk of the host. */
type UseFile = (path: string, signal: AbortSignal) => Promise<TaskReport>;

/** Calls `use` with a file in the format of the task: the image itself, or a copy that is removed afterwards. */
async function withFile(
  host: DiskHost,
  { format, image: { architecture } }: SendTask,
  { base, context }: { base: BaseImage; context: TaskContext },
  use: UseFile,
): Promise<TaskReport> {
  if (format === 'raw') {
    return await withImage(
      host,
      { base, architecture },
      context,
      async ({ path }, { signal }) => await use(path, signal),
    );
  }
  return base.format === 'qcow2'
    ? await use(base.path, context.signal)
    : await withQcow2(host, base, context, use);
}

async function withQcow2(
  host: DiskHost,
  base: BaseImage,
  context: TaskContext,
  use: UseFile,
): Promise<TaskReport> {
  const { folder } = context;
  const path = join(folder, 'disk.qcow2');
  const claim = { folder, bytes: await allocatedBytes(base.path) };
  try {
    return await host.images.withRoom(claim, context.signal, async (signal) => {
      // If the agent was killed during this task, a file from before its restart can be left.
      await rm(path, { force: true });
      context.log('Converting the image to qcow2');
      await convertToQcow2(base.path, path, signal);
      return await use(path, signal);
    });
  } finally {
    await rm(path, { force: true });
  }
}
