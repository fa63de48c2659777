/** Does the work of each type of task (`cache`, `import`, `push` and others) on this host. */
import { createReadStream } from 'node:fs';
import { rm, stat } from 'node:fs/promises';
import type { Socket } from 'node:net';
import { join } from 'node:path';
import { pipeline } from 'node:stream/promises';
import { describeSource } from '../../api/v1alpha1/source.ts';
import {
  imageMemorySchema,
  type StorageTarget,
  type Task,
  type TaskImage,
  type TaskReport,
} from '../../api/v1alpha1/task.ts';
import { allocatedBytes } from '../disks/diskio.ts';
import type { Keyring } from '../images/oci/credentials.ts';
import type { RawDisk } from '../images/layouts/publish.ts';
import type { StoragePlace, StoringOptions } from '../images/publisher.ts';
import type { BaseImage } from '../disks/disk.ts';
import type { Holder } from '../images/local/holders.ts';
import { type DiskHost, freshMark, inPart, withImage, withMachine } from './disks.ts';
import { receive } from './receive.ts';
import { type TaskContext, type TaskWork, tenantOf } from './runner.ts';
import { ReasonedError, reasonIn } from '../../api/v1alpha1/reasons.ts';
import type { TransferHead } from '../../api/v1alpha1/transfer.ts';
import { messageWithoutPaths } from '../../base/errors.ts';
import { convertToQcow2 } from '../disks/qemuimg.ts';

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
        return await withMachine(host, task, context, async (disk, options) => {
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
      return { ...published, ...sizeAndMemory(disk) };
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
  return { ...published, ...sizeAndMemory(disk) };
}

/** Returns the size of the disk, and the memory if there is one, as a report has them. */
function sizeAndMemory({
  virtualSizeBytes: sizeBytes,
  memory,
}: Pick<RawDisk, 'virtualSizeBytes' | 'memory'>): TaskReport {
  // The schema leaves out the paths of the files.
  return memory === undefined ? { sizeBytes } : { sizeBytes, memory: imageMemorySchema.parse(memory) };
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
  const { digest, path, memory } = base;
  const files = memory === undefined ? [path] : [path, memory.ram, memory.state];
  return { digest, ...sizeAndMemory(base), storageBytes: await allocatedBytes(...files) };
}

/**
 * Time limit in milliseconds for the first caller to attach to the Pod of the task. The caller is a server, which watches the Image and
 * attaches as soon as the task runs.
 */
const WAIT_MILLISECONDS = 120_000;
/**
 * If a caller reads no bytes for this time in milliseconds, the agent closes the connection. The caller is a server that forwards the file
 * to a client, so it also reads nothing while the client pauses.
 */
const IDLE_MILLISECONDS = 60_000;
/** Longest message of a refusal, in characters. */
const MESSAGE_LENGTH = 4096;
/** Number of bytes that are read from the file at once for each caller. A Pod has at most 16 callers, so their buffers stay small. */
const READ_BYTES = 256 * 1024;

type SendTask = Task & { type: 'send' };

/** Function that fetches an image, and keeps it in the store until `use` has ended. */
type HoldImage = (use: (base: BaseImage) => Promise<TaskReport>) => Promise<TaskReport>;

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

/** Function that sends a file. The signal aborts when the task must end, for example when a copy fills the disk of the host. */
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
  const claim = { folder, tenant: tenantOf(context), bytes: await allocatedBytes(base.path) };
  const mark = await freshMark(context);
  try {
    return await host.images.withRoom(claim, context.signal, async (signal) => {
      // If an earlier run of the agent was killed during this task, that run can have left a file.
      await rm(path, { force: true });
      context.log('Converting the image to qcow2');
      await convertToQcow2(base.path, path, { mark, signal, onProgress: context.progress });
      return await use(path, signal);
    });
  } finally {
    await rm(path, { force: true });
  }
}

interface SentFile {
  readonly path: string;
  readonly bytes: number;
}

/** The callers of one task. Callers can attach before the file is ready. */
export class Downloaders {
  readonly #file = Promise.withResolvers<SentFile>();
  readonly #end = new AbortController();
  #open = 0;
  #complete = 0;
  #isReady = false;
  #isOver = false;
  /** Called when the last caller's connection has ended. */
  #left: () => void = () => undefined;

  constructor() {
    // If there are no callers, no other code handles a rejection of this promise. Without a handler, the rejection would end the process.
    this.#file.promise.catch(() => undefined);
  }

  /** Accepts a caller. Returns false if the task is over. */
  take(caller: Socket): boolean {
    if (this.#isOver) {
      return false;
    }
    this.#open += 1;
    caller.on('error', () => undefined);
    // A caller has nothing to send, so the agent closes the connection of a caller that sends bytes. Each byte would restart the time limit,
    // and the caller could keep its connection for ever without reading the file.
    caller.once('data', () => caller.destroy());
    // If a caller closes its side of the connection, the caller no longer wants the file.
    caller.once('end', () => caller.destroy());
    void this.#serve(caller);
    return true;
  }

  /**
   * Sends the file to each caller. When all callers have closed their connections, resolves with the number of callers that received the
   * whole file.
   *
   * @throws ReasonedError `DownloadInterrupted` when no caller received the whole file; the signal's reason when the signal aborts.
   */
  async serve(file: SentFile, signal: AbortSignal): Promise<number> {
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#left = resolve;
    this.#isReady = true;
    this.#file.resolve(file);
    const timer = setTimeout(() => this.#open === 0 && resolve(), WAIT_MILLISECONDS);
    const onAbort = (): void => {
      this.#end.abort(signal.reason);
      resolve();
    };
    signal.addEventListener('abort', onAbort, { once: true });
    try {
      signal.throwIfAborted();
      await promise;
    } finally {
      this.#isOver = true;
      clearTimeout(timer);
      signal.removeEventListener('abort', onAbort);
    }
    signal.throwIfAborted();
    if (this.#complete === 0) {
      throw new ReasonedError('DownloadInterrupted', 'No client received the whole file');
    }
    return this.#complete;
  }

  /** Sends all callers the reason why they receive no file. A call after {@link serve} has no effect. */
  refuse(error: unknown): void {
    this.#isOver = true;
    this.#file.reject(error);
  }

  async #serve(caller: Socket): Promise<void> {
    try {
      const file = await this.#file.promise;
      await this.#send(caller, file);
      this.#complete += 1;
    } catch (error) {
      this.#fail(caller, error);
    } finally {
      this.#open -= 1;
      if (this.#isReady && this.#open === 0) {
        this.#left();
      }
    }
  }

  async #send(caller: Socket, { path, bytes }: SentFile): Promise<void> {
    const head: TransferHead = { bytes };
    caller.setTimeout(IDLE_MILLISECONDS, () =>
      caller.destroy(new Error('The caller read nothing for a minute')),
    );
    // The read ends at the announced size, even if the file grows. If the file has become shorter, the caller notices the missing bytes.
    const content = createReadStream(path, { end: bytes - 1, highWaterMark: READ_BYTES });
    caller.write(`${JSON.stringify(head)}\n`);
    await pipeline(content, caller, { signal: this.#end.signal });
    if (content.bytesRead !== bytes) {
      throw new Error(`${path} has ${content.bytesRead} bytes instead of ${bytes}`);
    }
  }

  #fail(caller: Socket, error: unknown): void {
    if (this.#isReady) {
      caller.destroy();
      return;
    }
    const head: TransferHead = {
      reason: reasonIn(error) ?? 'TaskFailed',
      message: messageWithoutPaths(error).slice(0, MESSAGE_LENGTH),
    };
    caller.setTimeout(IDLE_MILLISECONDS, () => caller.destroy());
    caller.end(`${JSON.stringify(head)}\n`);
  }
}
