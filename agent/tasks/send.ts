/**
 * The task of a download: it fetches an image, and sends it as one file to each caller who attaches to the Pod of the task. The protocol is
 * in `transfer.ts` of the API.
 */
import { createReadStream } from 'node:fs';
import { rm, stat } from 'node:fs/promises';
import type { Socket } from 'node:net';
import { join } from 'node:path';
import { pipeline } from 'node:stream/promises';
import { ReasonedError, reasonIn } from '../../api/v1alpha1/reasons.ts';
import type { Task, TaskReport } from '../../api/v1alpha1/task.ts';
import type { TransferHead } from '../../api/v1alpha1/transfer.ts';
import { messageOf } from '../../base/errors.ts';
import type { BaseImage } from '../disks/disk.ts';
import { allocatedBytes } from '../disks/diskio.ts';
import { convertToQcow2 } from '../disks/qemuimg.ts';
import { type DiskHost, freshMark, withImage } from './disks.ts';
import { type TaskContext, tenantOf } from './runner.ts';

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
      message: messageOf(error).slice(0, MESSAGE_LENGTH),
    };
    caller.setTimeout(IDLE_MILLISECONDS, () => caller.destroy());
    caller.end(`${JSON.stringify(head)}\n`);
  }
}
