/** What each task does on this host. */
import { stat } from 'node:fs/promises';
import type { Task, TaskImage, TaskReport } from '../../api/v1alpha1/task.ts';
import { describeSource } from '../images/describe.ts';
import type { Keyring } from '../images/registry/credentials.ts';
import { type BaseImage, type Holder, ImageError, type ImageStore } from '../images/store.ts';
import type { TaskContext, TaskWork } from './runner.ts';

/** Blocks of a file are counted in these, whatever the file system's own are. */
const STAT_BLOCK_BYTES = 512;

export interface TaskHost {
  images: ImageStore;
  /** What the pull secrets of the task's Pod open. */
  keyring: (context: TaskContext) => Promise<Keyring>;
}

export function taskWork(host: TaskHost): TaskWork {
  return async (task, context) => {
    switch (task.type) {
      case 'cache':
        return await cache(host, task, context);
      case 'uncache':
        await host.images.remove(`entry/${task.entry}`, context.signal);
        return {};
      case 'import':
        return await importImage(host, task, context);
      default:
        throw new ImageError('ImageSourceUnsupported', `this agent has no task "${task.type}" yet`);
    }
  };
}

async function cache(
  host: TaskHost,
  task: Task & { type: 'cache' },
  context: TaskContext,
): Promise<TaskReport> {
  const { image, entry, refresh } = task;
  return await describe(await ensure(host, image, { context, holder: `entry/${entry}`, refresh }));
}

async function importImage(
  host: TaskHost,
  task: Task & { type: 'import' },
  context: TaskContext,
): Promise<TaskReport> {
  const holder: Holder = `task/${context.uid}`;
  try {
    return await describe(await ensure(host, task.image, { context, holder, refresh: true }));
  } finally {
    host.images.release(holder);
  }
}

interface Ensuring {
  context: TaskContext;
  holder: Holder;
  refresh: boolean;
}

async function ensure(host: TaskHost, image: TaskImage, ensuring: Ensuring): Promise<BaseImage> {
  const { context, holder, refresh } = ensuring;
  const { source, format, architecture, name } = image;
  if (source.type === 'empty') {
    throw new ImageError('ImageSourceUnsupported', 'an empty disk needs no fetching');
  }
  context.log(`fetching ${describeSource(source)}`);
  const keyring = await host.keyring(context);
  const { signal, progress: onProgress } = context;
  const options = { format, architecture, name, keyring, holder, refresh, signal, onProgress };
  const base = await host.images.ensure(source, options);
  context.log(`is on the host as ${base.digest}, a disk of ${base.virtualSizeBytes} bytes`);
  return base;
}

async function describe(base: BaseImage): Promise<TaskReport> {
  const { blocks } = await stat(base.path);
  return {
    digest: base.digest,
    sizeBytes: base.virtualSizeBytes,
    storageBytes: blocks * STAT_BLOCK_BYTES,
  };
}
