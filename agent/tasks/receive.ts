/** The task of an upload: it waits for the sender of a file, receives the file, and stores it as the content of an Image or ISO. */
import { chmod, chown, rename, rm, stat } from 'node:fs/promises';
import type { Socket } from 'node:net';
import { join } from 'node:path';
import { classOf, ReasonedError, reasonIn } from '../../api/v1alpha1/reasons.ts';
import type { Task, TaskReport } from '../../api/v1alpha1/task.ts';
import { waitAfter } from '../../base/backoff.ts';
import { messageOf } from '../../base/errors.ts';
import { sync } from '../../base/files.ts';
import { pause } from '../../base/time.ts';
import { unlessMissing } from '../disks/diskio.ts';
import { inspectImage } from '../images/local/inspect.ts';
import { type DiskFile, type DiskHost, inPart, type UseDisk, withImage } from './disks.ts';
import { type TaskContext, tenantOf } from './runner.ts';
import { answer, receiveFile } from './upload.ts';

/**
 * Time limit in milliseconds for the sender to attach to the Pod of the task. The sender is a server, which watches the Pod and attaches as
 * soon as the task runs.
 */
const WAIT_MILLISECONDS = 120_000;
/** Progress of the task in percent when the file has arrived. The rest of the progress is for storing the file. */
const RECEIVED_PERCENT = 50;
/**
 * Number of attempts to store a received file, and the shortest and longest wait between two attempts. All waits together take eight
 * minutes. An image storage that is updated usually returns within this time.
 */
const ATTEMPTS = 8;
const RETRY_FIRST_MILLISECONDS = 5_000;
const RETRY_CAP_MILLISECONDS = 180_000;
/** Mode of the received file. Only root (the owner) and the group of the user that reads images can read the file. */
const FILE_MODE = 0o440;

type ReceiveTask = Task & { type: 'receive' };

interface ReceiveContext extends TaskContext {
  /** Resolves with the connection of the sender. The promise never rejects. */
  readonly caller: Promise<Socket>;
}

/** Paths of the file while it arrives (`partial`), and when it is complete (`path`). */
interface Places {
  partial: string;
  path: string;
}

/**
 * Receives a file, and calls `use` with the disk in this file. The agent answers the sender before it calls `use`. The sender then no longer
 * has the file. So if `use` fails, the agent calls it again, unless the failure is final. If the agent ends after its answer, the next run of
 * the task uses the received file.
 */
export async function receive(
  host: DiskHost,
  task: ReceiveTask,
  context: TaskContext,
  use: UseDisk,
): Promise<TaskReport> {
  const places = { partial: join(context.folder, 'upload'), path: join(context.folder, 'received') };
  const caller = firstCaller(context);
  try {
    const base = await received(host, task, { ...context, caller }, places);
    const { architecture } = task;
    const progress = neverBack(inPart(context, RECEIVED_PERCENT, 100));
    return await untilStored(context, async () => {
      return await withImage(host, { base, architecture }, { ...context, progress }, use);
    });
  } finally {
    await Promise.all(Object.values(places).map(async (path) => await rm(path, { force: true })));
  }
}

/** Calls `store` until it succeeds. @throws the last error when the failure is final, or no attempt is left; the signal's reason. */
async function untilStored(
  { signal, log }: TaskContext,
  store: () => Promise<TaskReport>,
): Promise<TaskReport> {
  for (let failures = 1; ; failures += 1) {
    try {
      return await store();
    } catch (error) {
      signal.throwIfAborted();
      if (failures === ATTEMPTS || classOf(reasonIn(error), 'Image') === 'final') {
        throw error;
      }
      const wait = waitAfter(failures, RETRY_FIRST_MILLISECONDS, RETRY_CAP_MILLISECONDS);
      log(`The file could not be stored: ${messageOf(error)}. The next attempt is in ${wait / 1000} s`);
      await pause(wait, signal);
    }
  }
}

/** Returns a function that reports a progress only if it is not less than the progress before. */
function neverBack(report: TaskContext['progress']): TaskContext['progress'] {
  let reached = 0;
  return (percent) => {
    reached = Math.max(reached, percent);
    report(reached);
  };
}

/** Resolves with the connection of the first caller. Refuses all later callers. */
async function firstCaller({ takeCallers }: TaskContext): Promise<Socket> {
  const { promise, resolve } = Promise.withResolvers<Socket>();
  let isTaken = false;
  takeCallers((caller) => {
    const isFirst = !isTaken;
    isTaken = true;
    resolve(caller);
    return isFirst;
  });
  return await promise;
}

/** @throws ReasonedError when the file did not arrive or is not a valid disk. */
async function received(
  host: DiskHost,
  task: ReceiveTask,
  context: ReceiveContext,
  places: Places,
): Promise<DiskFile> {
  const { partial, path } = places;
  return await answering(context, async () => {
    // If an earlier run of the agent ended while the file arrived, that run can have left a part of the file.
    await rm(partial, { force: true });
    if ((await unlessMissing(stat(path))) === undefined) {
      await fetchFile(host, task, context, places);
    } else {
      context.log('The file arrived before the agent restarted');
    }
    return { path, ...(await inspected(host, path, task.format)) };
  });
}

/** Receives the file. When the promise resolves, the file is complete, and survives a loss of power. */
async function fetchFile(
  host: DiskHost,
  { limitBytes }: ReceiveTask,
  context: ReceiveContext,
  { partial, path }: Places,
): Promise<void> {
  const claim = { folder: context.folder, tenant: tenantOf(context), bytes: limitBytes };
  await host.images.withRoom(claim, context.signal, async (signal) => {
    const sender = await senderOf(context, signal);
    context.log('Receiving the file');
    const onBytes = (bytes: number): void => context.progress((bytes * RECEIVED_PERCENT) / limitBytes);
    const { bytes, sha256 } = await receiveFile(sender, { path: partial, limitBytes, signal, onBytes });
    context.log(`Received ${bytes} bytes with the sha256 ${sha256}`);
  });
  await rename(partial, path);
  await sync(context.folder);
}

/** Sends the result of `work` to the sender, even if the sender attaches after `work` has ended. */
async function answering<T>(context: ReceiveContext, work: () => Promise<T>): Promise<T> {
  try {
    const result = await work();
    void context.caller.then((sender) => answer(sender));
    return result;
  } catch (error) {
    void context.caller.then((sender) => answer(sender, error));
    throw error;
  }
}

async function senderOf({ caller }: ReceiveContext, signal: AbortSignal): Promise<Socket> {
  const { promise, reject } = Promise.withResolvers<never>();
  const onAbort = (): void => reject(signal.reason as Error);
  const late = new ReasonedError('UploadInterrupted', 'Nobody sent the file');
  const timer = setTimeout(() => reject(late), WAIT_MILLISECONDS);
  signal.addEventListener('abort', onAbort, { once: true });
  try {
    return await Promise.race([caller, promise]);
  } finally {
    clearTimeout(timer);
    signal.removeEventListener('abort', onAbort);
  }
}

/** Returns the format and the size of the disk in the received file. @throws ReasonedError `ImageInvalid` when the file is not a disk. */
async function inspected(host: DiskHost, path: string, format: ReceiveTask['format']) {
  const reader = host.users?.reader;
  if (reader !== undefined) {
    await chown(path, 0, reader.gid);
  }
  await chmod(path, FILE_MODE);
  return await inspectImage(path, format, reader);
}
