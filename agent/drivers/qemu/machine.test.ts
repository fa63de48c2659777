import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createServer, type Server, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pino } from 'pino';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { segmentName } from '../../console/logwriter.ts';
import { identify } from '../../machines/process.ts';
import type { MachineFolder } from '../driver.ts';
import { QemuDriver } from './driver.ts';
import { writeMachineFile } from './state.ts';

/** Events in the words of QEMU 7.2 to 10. */
const SAYS = {
  signal: '{"event":"SHUTDOWN","data":{"guest":false,"reason":"host-signal"}}',
  powerOff: '{"event":"SHUTDOWN","data":{"guest":true,"reason":"guest-shutdown"}}',
};

/**
 * A hypervisor between its own end and the end of its process. A real hypervisor passes this moment too fast for a test to meet
 * it each time. Its run state is `shutdown`, and it ends on command.
 */
describe('a hypervisor in the run state shutdown', () => {
  let directory: string;
  let folder: MachineFolder;
  let driver: QemuDriver;
  let server: Server | undefined;
  let hypervisor: ReturnType<typeof spawn>;

  beforeEach(async () => {
    directory = await mkdtemp(join(tmpdir(), 'berth-machine-'));
    folder = { uid: 'uid', path: join(directory, 'machines', 'uid') };
    await mkdir(folder.path, { recursive: true });
    hypervisor = spawn('sleep', ['60']);
    await once(hypervisor, 'spawn');
    const identity = await identify(hypervisor.pid ?? 0);
    if (identity === undefined) {
      throw new Error('the process has no identity');
    }
    await writeMachineFile(folder.path, {
      version: 1,
      architecture: 'amd64',
      machineType: 'pc',
      intent: 'run',
      process: identity,
      live: true,
      suspended: false,
    });
    driver = new QemuDriver({ dataDirectory: directory, logger: pino({ level: 'silent' }) });
  });

  afterEach(async () => {
    await driver.close();
    hypervisor.kill('SIGKILL');
    server?.close();
    await rm(directory, { recursive: true });
  });

  async function listen(event: string | undefined): Promise<void> {
    const answer = (socket: Socket, { execute, id }: { execute: string; id: number }): void => {
      const result = execute === 'query-status' ? { status: 'shutdown' } : {};
      if (execute === 'query-status' && event !== undefined) {
        socket.write(`${event}\n`);
      }
      socket.write(`${JSON.stringify({ return: result, id })}\n`);
      if (execute === 'quit') {
        hypervisor.kill('SIGKILL');
      }
    };
    server = createServer((socket) => {
      socket.on('error', () => undefined);
      socket.on('data', (data: Buffer) => {
        const lines = data.toString().trim().split('\n');
        for (const line of lines) {
          answer(socket, JSON.parse(line) as Parameters<typeof answer>[1]);
        }
      });
    });
    server.listen(join(folder.path, 'qmp.sock'));
    await once(server, 'listening');
  }

  it.each([
    ['that a signal ends has crashed, and its guest has not powered off', SAYS.signal, 'Crashed'],
    ['whose guest powered off says so', SAYS.powerOff, 'GuestShutdown'],
    ['that was met in it waits since its guest powered off', undefined, 'GuestShutdown'],
  ])('%s', async (_, event, reason) => {
    await listen(event);
    expect(await driver.inspect(folder)).toMatchObject({ kind: 'exited', reason });
  });

  it('has crashed also when the agent missed the event and finds the signal in its last words', async () => {
    const words = 'qemu-system-x86_64: terminating on signal 15 from pid 1 (init)\n';
    await writeFile(join(folder.path, segmentName('hypervisor', 0)), words);
    await listen(undefined);
    expect(await driver.inspect(folder)).toMatchObject({ kind: 'exited', reason: 'Crashed' });
  });
});
