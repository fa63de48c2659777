/**
 * Tests with a substitute for the hypervisor. The substitute closes the connection at moments at which a real hypervisor closes it only on
 * a busy host.
 */
import { once } from 'node:events';
import { mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { createServer, type Server, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { restoreMemory, saveMemory } from './memory.ts';
import { QmpConnection } from './qmp.ts';
import { FILES } from './state.ts';

const MEMORY = Buffer.alloc(64 * 1024, 'memory');
/** Number of repetitions. The kernel decides which side is first, and with many repetitions both orders occur. */
const TIMES = 30;

let folder: string;
let servers: Server[];
let qmp: QmpConnection;
/** Run state that the hypervisor reports; undefined once it has ended. */
let status: string | undefined;
/** Description of the error with which the hypervisor ends a save. */
let description: string | undefined;

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-memory-'));
  servers = [];
  status = 'inmigrate';
  description = undefined;
  await serve(FILES.qmp, (socket) => {
    createInterface({ input: socket }).on('line', (line) => {
      const { id, execute } = JSON.parse(line) as { id: number; execute: string };
      if (execute === 'query-status' && status === undefined) {
        socket.destroy();
      } else {
        socket.write(`${JSON.stringify({ id, return: { status, 'error-desc': description } })}\n`);
      }
    });
  });
  qmp = await QmpConnection.connect(folder, FILES.qmp, { timeoutMilliseconds: 30_000 });
});

afterEach(async () => {
  vi.restoreAllMocks();
  qmp.close();
  for (const server of servers) {
    server.close();
  }
  await rm(folder, { recursive: true, force: true });
});

async function serve(name: string, onConnection: (socket: Socket) => void): Promise<void> {
  const server = createServer(onConnection).listen(join(folder, name));
  await once(server, 'listening');
  servers.push(server);
}

/** Closes the connection at the last byte, either before or just after the agent has reached the end of its file. */
async function restore(then: string | undefined, memoryBytes?: number): Promise<void> {
  await writeFile(join(folder, FILES.memory), MEMORY);
  await serve(FILES.migration, (socket) => {
    let received = 0;
    socket.on('data', ({ length }) => {
      received += length;
      if (received < MEMORY.length) {
        return;
      }
      status = then;
      socket.destroy();
    });
  });
  await restoreMemory(folder, qmp, memoryBytes);
}

test('a hypervisor that hangs up once it has read all has the memory', async () => {
  for (let time = 1; time <= TIMES; time += 1) {
    status = 'inmigrate';
    await expect(restore('paused')).resolves.toBeUndefined();
  }
});

test('a hypervisor that has ended has not', async () => {
  await expect(restore(undefined)).rejects.toThrow('The connection to QEMU was closed');
});

test.each([
  ['at least ten minutes', 2 ** 30, 600_000],
  ['longer for a large guest', 2 ** 40, 54_975_582],
])('the time limit of a save and of a restore is %s', async (_, memoryBytes, milliseconds) => {
  const limit = vi.spyOn(AbortSignal, 'timeout');
  await restore('paused', memoryBytes);
  status = 'failed';
  await expect(saveMemory(folder, qmp, memoryBytes)).rejects.toThrow('failed');
  expect(limit.mock.calls).toEqual([[milliseconds], [milliseconds]]);
});

test('a save ends when its signal aborts, and leaves no file', async () => {
  status = 'active';
  const end = new AbortController();
  const saving = saveMemory(folder, qmp, undefined, { signal: end.signal });
  end.abort(new Error('the guest waits'));
  await expect(saving).rejects.toThrow('the guest waits');
  expect(await readdir(folder)).toEqual([FILES.qmp]);
});

test('a long error of a hypervisor that saves no memory is cut', async () => {
  status = 'failed';
  description = 'x'.repeat(100_000);
  const error = await saveMemory(folder, qmp).catch((cause: unknown) => String(cause));
  expect(error).toContain('x'.repeat(100));
  expect(String(error).length).toBeLessThan(1_100);
});
