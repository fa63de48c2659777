/**
 * Saves and restores the memory of a suspended machine. A file in the machine's folder contains the memory, as a migration stream of QEMU.
 */
import { createReadStream, createWriteStream } from 'node:fs';
import { chmod, rename, rm } from 'node:fs/promises';
import { createServer, type Server, type Socket } from 'node:net';
import { dirname, join, resolve } from 'node:path';
import { pipeline } from 'node:stream/promises';
import * as z from 'zod';
import { hasCode, undefinedIf } from '../../../base/errors.ts';
import { sync } from '../../../base/files.ts';
import { pause } from '../../../base/time.ts';
import { connectTo, withSocketPath } from '../../processes/process.ts';
import { ERROR_LIMIT_CHARACTERS, type QmpConnection } from './qmp.ts';
import { FILES } from './state.ts';

/**
 * Bandwidth limit of the migration stream, high enough to have no effect. QEMU's default limit of 128 MiB/s protects networks, but this
 * stream uses no network.
 */
const BANDWIDTH_BYTES_PER_SECOND = 2 ** 40;
const STATUS_INTERVAL_MILLISECONDS = 10;
/**
 * Lowest speed at which the memory is saved or restored. Even a busy hard disk is faster. The time limit depends on the
 * size, because a limit that is too short would pause the guest and fail again at each attempt.
 */
const SLOWEST_BYTES_PER_SECOND = 20_000_000;
/** Shortest time limit to save or to restore the memory. QEMU's first steps can take minutes on an overloaded host. */
const SHORTEST_TIMEOUT_MILLISECONDS = 600_000;
/** End of the name of a file with memory while it is being saved. */
const PARTIAL = '.partial';
const migrationSchema = z.object({ status: z.string().optional(), 'error-desc': z.string().optional() });

/** Migration stream of a machine, and the file that has it or gets it. */
export interface MemoryStream {
  /** Path of the file, absolute or relative to the machine's folder. The default is the file of a suspended machine. */
  file?: string;
  /**
   * Whether the stream has only the state of the devices, because the guest's memory is in a file. The default is false. This must be said
   * to QEMU each time, because a process that was started from a memory file would leave the memory out of its next stream too.
   */
  ignoresFile?: boolean;
  /** Ends a save early, for example because a guest waits for its end. */
  signal?: AbortSignal;
}

/**
 * Saves the memory of a machine that the QMP command `stop` has paused. This command also flushes the machine's disks, so the memory and
 * the disk have the state of the same moment. When the promise resolves, the memory file is complete and flushed to the host's disk.
 * The time limit depends on `memoryBytes`, the size of the guest's memory.
 */
export async function saveMemory(
  folder: string,
  qmp: QmpConnection,
  memoryBytes?: number,
  { file = FILES.memory, ignoresFile = false, signal: end }: MemoryStream = {},
): Promise<void> {
  const partial = resolve(folder, `${file}${PARTIAL}`);
  const socketFile = join(folder, FILES.migration);
  await rm(socketFile, { force: true });
  const server = createServer();
  // The hypervisor connects to this server only once. The server refuses a second connection, because no code would handle its errors.
  server.maxConnections = 1;
  try {
    await withSocketPath(folder, FILES.migration, async (path) => await listening(server, path));
    // QEMU does not run as root. So the socket's mode allows all users to connect. QEMU was started in this folder, and reaches the socket
    // by a relative path. Other users cannot reach the socket, because only root may enter the folder that contains the folders of all
    // machines.
    await chmod(socketFile, 0o666);
    const limit = timeoutFor(memoryBytes);
    const signal = end === undefined ? limit : AbortSignal.any([limit, end]);
    await ignoreFile(qmp, ignoresFile);
    await Promise.all([receive(server, partial, signal), send(qmp, signal)]);
    await syncedRename(partial, resolve(folder, file));
  } finally {
    server.close();
    await rm(socketFile, { force: true });
    await rm(partial, { force: true });
  }
}

/**
 * Reads saved memory into a QEMU process that was started with `-incoming`. The guest is paused when the promise resolves. The time limit
 * depends on `memoryBytes`, the size of the guest's memory.
 */
export async function restoreMemory(
  folder: string,
  qmp: QmpConnection,
  memoryBytes?: number,
  { file = FILES.memory, ignoresFile = false }: MemoryStream = {},
): Promise<void> {
  const signal = timeoutFor(memoryBytes);
  await ignoreFile(qmp, ignoresFile);
  try {
    const socket = await withSocketPath(folder, FILES.migration, connectTo);
    const sent = pipeline(createReadStream(resolve(folder, file)), socket, { signal });
    // QEMU closes the connection after the last byte, possibly before the agent does. In this case, the agent gets one of these errors. The
    // agent ignores the error, because QEMU's run state shows whether QEMU has read all bytes.
    await undefinedIf(hasCode('ERR_STREAM_PREMATURE_CLOSE', 'EPIPE', 'ECONNRESET'), sent);
    while ((await qmp.status()) === 'inmigrate') {
      signal.throwIfAborted();
      await pause(STATUS_INTERVAL_MILLISECONDS);
    }
  } finally {
    await rm(join(folder, FILES.migration), { force: true });
  }
}

/** Removes the saved memory of a machine, and the incomplete file of an agent that died while it saved the memory. */
export async function forgetMemory(folder: string): Promise<void> {
  for (const name of [FILES.memory, `${FILES.memory}${PARTIAL}`]) {
    await rm(join(folder, name), { force: true });
  }
}

async function ignoreFile(qmp: QmpConnection, state: boolean): Promise<void> {
  const capabilities = [{ capability: 'x-ignore-shared', state }];
  await qmp.execute('migrate-set-capabilities', { capabilities });
}

function timeoutFor(memoryBytes = 0): AbortSignal {
  const neededMilliseconds = Math.ceil((memoryBytes / SLOWEST_BYTES_PER_SECOND) * 1000);
  return AbortSignal.timeout(Math.max(SHORTEST_TIMEOUT_MILLISECONDS, neededMilliseconds));
}

async function receive(server: Server, file: string, signal: AbortSignal): Promise<void> {
  const socket = await new Promise<Socket>((resolve, reject) => {
    server.once('connection', resolve);
    signal.addEventListener('abort', () =>
      reject(new Error('QEMU did not begin to save the memory of the machine in time')),
    );
  });
  await pipeline(socket, createWriteStream(file, { mode: 0o600 }), { signal });
}

async function send(qmp: QmpConnection, signal: AbortSignal): Promise<void> {
  await qmp.execute('migrate-set-parameters', { 'max-bandwidth': BANDWIDTH_BYTES_PER_SECOND });
  await qmp.execute('migrate', { uri: `unix:${FILES.migration}` });
  for (;;) {
    const answer = await qmp.ask('query-migrate', migrationSchema);
    if (answer.status === 'completed') {
      return;
    }
    if (answer.status === 'failed' || answer.status === 'cancelled') {
      const why = answer['error-desc']?.slice(0, ERROR_LIMIT_CHARACTERS) ?? answer.status;
      throw new Error(`QEMU did not save the memory of the machine: ${why}`);
    }
    signal.throwIfAborted();
    await pause(STATUS_INTERVAL_MILLISECONDS);
  }
}

async function syncedRename(from: string, to: string): Promise<void> {
  await sync(from);
  await rename(from, to);
  await sync(dirname(to));
}

async function listening(server: Server, path: string): Promise<void> {
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject);
    server.listen(path, resolve);
  });
}
