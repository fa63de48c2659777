/** Does the work of each type of task (`cache`, `import`, `push` and others) on this host. */
import { describeSource } from '../../api/v1alpha1/source.ts';
import type { StorageTarget, Task, TaskImage, TaskReport } from '../../api/v1alpha1/task.ts';
import { allocatedBytes } from '../disks/diskio.ts';
import type { Keyring } from '../images/oci/credentials.ts';
import type { RawDisk } from '../images/layouts/publish.ts';
import type { StoragePlace, StoringOptions } from '../images/publisher.ts';
import type { BaseImage } from '../disks/disk.ts';
import type { Holder } from '../images/local/holders.ts';
import { type DiskHost, inPart, withImage, withMachine } from './disks.ts';
import { receive } from './receive.ts';
import { send } from './send.ts';
import { type TaskContext, type TaskWork, tenantOf } from './runner.ts';

/** Progress of a task in percent when its image is on the host. The rest of the progress is for the work with the image. */
const FETCHED_PERCENT = 50;

export interface TaskHost extends DiskHost {
  /** Returns the credentials from the pull secrets of the task's Pod. */
  keyring: (pod: TaskContext['pod']) => Promise<Keyring>;
  /** Returns the credentials with which the task writes to the registry of the image storage and deletes there. */
  storageKeyring: (pod: TaskContext['pod'], otherNamespace: string | undefined) => Promise<Keyring>;
}

export function taskWork(host: TaskHost): TaskWork {
  return async (task, context) => {
    switch (task.type) {
      case 'cache':
        return await cache(host, task, context);
      case 'uncache':
        await host.images.remove(`entry/${task.entry}`, task.namespace, context.signal);
        return {};
      case 'import':
        return await importImage(host, task, context);
      case 'save':
        return await withMachine(host, task.vm, context, async (disk, options) => {
          return await store(host, { target: task.target, disk, context }, options);
        });
      case 'receive':
        return await receive(host, task, context, async (disk, options) => {
          return await store(host, { target: task.target, disk, context }, options);
        });
      case 'send': {
        const { fetching, using } = inTwoParts(context);
        return await send(host, task, using, async (use) => {
          return await held(host, task.image, fetching, async ({ base }) => await use(base));
        });
      }
      case 'remove':
        return await remove(host, task, context);
      case 'push':
      default:
        return await push(host, task, context);
    }
  };
}

async function cache(
  host: TaskHost,
  task: Task & { type: 'cache' },
  context: TaskContext,
): Promise<TaskReport> {
  const { image, entry, refresh } = task;
  const keyring = await host.keyring(context.pod);
  const { base } = await ensure(host, image, { context, holder: `entry/${entry}`, refresh, keyring });
  return await describe(base);
}

/**
 * Fetches an image, and stores it in the target of the task. A task without a target only checks that the image can be fetched. The report
 * of such a task contains the image's digest, sizes and reference.
 */
async function importImage(
  host: TaskHost,
  { image, target }: Task & { type: 'import' },
  context: TaskContext,
): Promise<TaskReport> {
  const { fetching, using } =
    target === undefined ? { fetching: context, using: context } : inTwoParts(context);
  return await held(host, image, fetching, async ({ base, reference }) => {
    if (target === undefined) {
      return { ...(await describe(base)), reference };
    }
    const { architecture } = image;
    return await withImage(host, { base, architecture }, using, async (disk, options) => {
      return await store(host, { target, disk, context }, options);
    });
  });
}

async function push(
  host: TaskHost,
  { image, reference }: Task & { type: 'push' },
  context: TaskContext,
): Promise<TaskReport> {
  const { fetching, using } = inTwoParts(context);
  return await held(host, image, fetching, async ({ base }, keyring) => {
    const { architecture } = image;
    return await withImage(host, { base, architecture }, using, async (disk, options) => {
      context.log(`Publishing the disk as ${reference}`);
      const published = await host.publisher.push({ reference, keyring }, disk, options);
      context.log(`Published as ${published.reference}`);
      return { ...published, sizeBytes: disk.virtualSizeBytes };
    });
  });
}

async function store(
  host: TaskHost,
  { target, disk, context }: { target: StorageTarget; disk: RawDisk; context: TaskContext },
  options: StoringOptions,
): Promise<TaskReport> {
  context.log(`Storing the disk as ${target.type === 'registry' ? target.reference : target.path}`);
  const published = await host.publisher.store(await placeOf(host, target, context), disk, options);
  context.log(`Stored ${published.digest}, ${published.storageBytes} bytes`);
  return { ...published, sizeBytes: disk.virtualSizeBytes };
}

async function remove(
  host: TaskHost,
  { place }: Task & { type: 'remove' },
  context: TaskContext,
): Promise<TaskReport> {
  context.log(`Removing ${place.type === 'registry' ? place.reference : place.path}`);
  const kept = await host.publisher.remove(await placeOf(host, place, context), context.signal);
  if (kept === undefined) {
    return {};
  }
  context.log(`Not removed: ${kept}`);
  return { kept };
}

/** Adds the credentials of the task. They are read only when they are needed, and nothing keeps them after the task. */
async function placeOf(host: TaskHost, target: StorageTarget, { pod }: TaskContext): Promise<StoragePlace> {
  return target.type === 'folder'
    ? target
    : { ...target, keyring: await host.storageKeyring(pod, target.secretNamespace) };
}

/** Divides the progress of a task between the fetch of its image and the work with the image. */
function inTwoParts(context: TaskContext): { fetching: TaskContext; using: TaskContext } {
  return {
    fetching: { ...context, progress: inPart(context, 0, FETCHED_PERCENT) },
    using: { ...context, progress: inPart(context, FETCHED_PERCENT, 100) },
  };
}

/** Fetches an image and calls `use` with it. The image store does not remove the image before `use` has ended. */
async function held(
  host: TaskHost,
  image: TaskImage,
  context: TaskContext,
  use: (fetched: Fetched, keyring: Keyring) => Promise<TaskReport>,
): Promise<TaskReport> {
  const holder: Holder = `task/${context.uid}`;
  const keyring = await host.keyring(context.pod);
  try {
    const fetched = await ensure(host, image, { context, holder, refresh: true, keyring });
    // The task can read the image for hours, for example for a slow client. A removal of the image from the cache must not wait for it.
    host.images.cloned(holder);
    return await use(fetched, keyring);
  } finally {
    host.images.release(holder);
  }
}

interface Ensuring {
  context: TaskContext;
  holder: Holder;
  refresh: boolean;
  keyring: Keyring;
}

interface Fetched {
  base: BaseImage;
  /**
   * Reference with the requested repository and the digest that the registry returned. This digest can be the digest of an index for
   * several architectures. Undefined if the agent did not ask a registry about the image.
   */
  reference: string | undefined;
}

async function ensure(host: TaskHost, image: TaskImage, ensuring: Ensuring): Promise<Fetched> {
  const { context, ...asking } = ensuring;
  const { source, format, architecture, name } = image;
  context.log(`Fetching ${describeSource(source)}`);
  let reference: string | undefined;
  const onResolved = (resolved: string): void => {
    reference = resolved;
  };
  const { signal, progress: onProgress } = context;
  const options = {
    ...asking,
    tenant: tenantOf(context),
    format,
    architecture,
    name,
    signal,
    onProgress,
    onWait: (reason: string) => context.log(`The fetch is waiting. ${reason}`),
    onResolved,
  };
  const base = await host.images.ensure(source, options);
  context.log(`The image is on the host as ${base.digest}, a disk of ${base.virtualSizeBytes} bytes`);
  return { base, reference };
}

async function describe(base: BaseImage): Promise<TaskReport> {
  const { digest, virtualSizeBytes, path } = base;
  return { digest, sizeBytes: virtualSizeBytes, storageBytes: await allocatedBytes(path) };
}
