/**
 * A guest that plays its own guest agent, and a hypervisor that a guest took over. Saves fail or are crash-consistent, and the agent lives
 * on.
 */
import { mkdir, readFile } from 'node:fs/promises';
import type { Socket } from 'node:net';
import { join } from 'node:path';
import * as fc from 'fast-check';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { ReasonedError } from '../../api/v1alpha1/reasons.ts';
import { isMissing } from '../../base/errors.ts';
import { type VmLaunchPlan } from '../../agent/drivers/driver.ts';
import { GuestAgent, whileFrozen } from '../../agent/drivers/qemu/guestagent.ts';
import { executeInGuest } from '../../agent/drivers/qemu/guestexec.ts';
import { QmpConnection, QmpError } from '../../agent/drivers/qemu/qmp.ts';
import { freePort } from '../../hack/cluster/ports.ts';
import { folderOf, type Host, makeHost, planFor } from '../worlds/qemuguest.ts';
import { afterSync, type Play, ScriptedPeer } from '../wires/scriptedpeer.ts';
import { hostileRuns, scaled, tried } from './support/attempts.ts';
import { makeFolder } from '../support/folder.ts';

const MEBIBYTE = 1024 * 1024;
const DISK_BYTES = 16 * MEBIBYTE;
/** Bytes that a flood sends if nothing stops it. */
const FLOOD_BYTES = scaled(1024) * MEBIBYTE;
/** Largest number of bytes of a flood that may be read by the agent or be in buffers of the kernel. */
const TAKEN_LIMIT_BYTES = 8 * MEBIBYTE;
/** Largest number of questions to thaw, as in `copies.ts`. The copy itself makes three more attempts. */
const THAW_LIMIT = 10;

/** Sends until all is sent or the other side closes the connection. Calls `sent` with the number of bytes of each piece. */
function flood(socket: Socket, piece: string, sent: (bytes: number) => void): void {
  const chunk = Buffer.from(piece.repeat(Math.ceil((64 * 1024) / piece.length)));
  let total = 0;
  const go = (): void => {
    while (total < FLOOD_BYTES && !socket.destroyed) {
      total += chunk.length;
      sent(chunk.length);
      if (!socket.write(chunk)) {
        socket.once('drain', go);
        return;
      }
    }
  };
  go();
}

function delimited(socket: Socket, text: string): void {
  socket.write(Buffer.concat([Buffer.of(0xff), Buffer.from(text)]));
}

function saying(text: string): Play {
  return afterSync((socket) => socket.write(text));
}

let flooded = 0;
const count = (bytes: number): void => {
  flooded += bytes;
};

const GUESTS: [name: string, play: Play][] = [
  ['{"error":null}', saying('{"error":null}\n')],
  ['[]', saying('[]\n')],
  ['null', saying('null\n')],
  ['an error without words', saying('{"error":{}}\n')],
  ['an error of 1 MB', saying(`{"error":{"desc":"${'x'.repeat(1_000_000)}"}}\n`)],
  ['an object for a number', saying('{"return":{"toString":null}}\n')],
  ['brackets without end', saying(`${'['.repeat(900_000)}\n`)],
  ['no JSON', saying('\0\xff\n')],
  ['a close in the middle', afterSync((socket) => socket.end('{"ret'))],
  ['a wrong id', (socket, { arguments: { id = 0 } = {} }) => delimited(socket, `{"return":${id + 1}}\n`)],
  ['no line end', (socket) => flood(socket, 'x', count)],
  [
    'no line end after a delimiter',
    (socket) => {
      delimited(socket, '');
      flood(socket, 'x', count);
    },
  ],
  ['no line end after a sync', afterSync((socket) => flood(socket, 'x', count))],
  ['lines without end', (socket) => flood(socket, '{"return":0}\n', count)],
  ['lines without end after a sync', afterSync((socket) => flood(socket, '{"return":0}\n', count))],
];

describe('a guest that plays the guest agent of a real hypervisor', { timeout: 120_000 }, () => {
  let host: Host;
  let plan: VmLaunchPlan;
  let peer: ScriptedPeer | undefined;
  let target: string;
  const uid = '0b7e5c1a-9d7f-4a57-8d3b-5f1f6f0c0044';
  const folder = () => folderOf(host, uid);

  beforeAll(async () => {
    host = await makeHost();
    await mkdir(join(host.directory, 'copies'));
    target = join(host.directory, 'copies', 'disk.raw');
    plan = planFor('amd64', await freePort(), DISK_BYTES);
    await host.driver.create(folder(), plan, undefined);
  });

  beforeEach(async () => {
    flooded = 0;
    await host.driver.start(folder(), plan);
  });

  afterEach(async () => {
    await host.driver.stop(folder(), { graceMilliseconds: 0 });
    await peer?.close();
  });

  afterAll(async () => await host.end());

  async function save(): Promise<string> {
    try {
      const options = { target, signal: new AbortController().signal, onProgress: () => undefined };
      return (await host.driver.copyDisk(folder(), options)).consistency;
    } catch (error) {
      if (error instanceof ReasonedError) {
        return 'Failed';
      }
      throw error;
    }
  }

  async function mayBeFrozen(): Promise<boolean> {
    try {
      return (JSON.parse(await readFile(join(folder().path, 'copy.json'), 'utf8')) as { frozen: boolean })
        .frozen;
    } catch (error) {
      if (isMissing(error)) {
        return false;
      }
      throw error;
    }
  }

  it.for(GUESTS)('(%s): over a restart of the agent', async ([name, play], context) => {
    peer = await ScriptedPeer.listen(join(folder().path, 'ga.sock'), play);
    const outcome = await save();
    tried(context, `guest agent: ${name}`, outcome);
    expect(outcome).toMatch(/^(Crash|Failed)$/);
    await host.restartAgent();
    expect(await host.driver.inspect(folder())).toMatchObject({ kind: 'running', guestStarted: true });
    // The agent does not read a flood to its end. The limit holds for each connection, of the copy and of the agent.
    expect(flooded).toBeLessThanOrEqual(Math.max(1, peer.commands.length) * TAKEN_LIMIT_BYTES);
  });

  it('is asked to thaw a limited number of times, over all restarts of the agent, until it starts again', async () => {
    peer = await ScriptedPeer.listen(join(folder().path, 'ga.sock'), saying('{"error":null}\n'));
    const thaws = () => peer?.commands.filter((one) => one === 'guest-fsfreeze-thaw').length ?? 0;
    expect(await save()).toBe('Crash');
    expect(await mayBeFrozen()).toBe(true);
    const before = thaws();
    for (let restart = 0; restart < THAW_LIMIT + 3; restart += 1) {
      await host.restartAgent();
      expect(await host.driver.inspect(folder())).toMatchObject({ kind: 'running' });
    }
    expect(thaws() - before).toBeGreaterThan(0);
    expect(thaws() - before).toBeLessThanOrEqual(THAW_LIMIT);
    const commands = peer.commands.length;
    expect(await save()).toBe('Crash');
    expect(peer.commands.length).toBe(commands);
    await host.driver.stop(folder(), { graceMilliseconds: 0 });
    await host.driver.start(folder(), plan);
    expect(await mayBeFrozen()).toBe(false);
  });
});

describe('arbitrary input', () => {
  let folder: string;
  let peer: ScriptedPeer | undefined;

  beforeEach(() => {
    folder = makeFolder();
    flooded = 0;
  });

  afterEach(async () => {
    await peer?.close();
    peer = undefined;
  });

  /** Lines that resemble answers. */
  const lines = fc.array(
    fc.oneof(
      fc.json({ maxDepth: 3 }),
      fc
        .dictionary(
          fc.constantFrom('id', 'return', 'error', 'event', 'data', 'QMP'),
          fc.jsonValue({ maxDepth: 2 }),
        )
        .map((value) => JSON.stringify(value)),
      fc.string({ maxLength: 60 }),
    ),
    { minLength: 1, maxLength: 5 },
  );

  it('from a guest agent: the copy of the disk succeeds', async (context) => {
    const run = async (answers: readonly string[]): Promise<void> => {
      const text = answers.map((one) => `${one}\n`).join('');
      peer = await ScriptedPeer.listen(
        join(folder, 'ga.sock'),
        afterSync((socket) => socket.end(text)),
      );
      let done = 0;
      const work = async (): Promise<void> => void (done += 1);
      const signal = new AbortController().signal;
      const { problems } = await whileFrozen(
        { agent: new GuestAgent(folder), signal, remember: async () => undefined },
        work,
      );
      expect(done).toBe(1);
      tried(
        context,
        'guest agent: generated lines',
        problems.length === 0 ? 'taken for answers' : 'not frozen',
      );
      await peer.close();
    };
    await fc.assert(fc.asyncProperty(lines, run), hostileRuns(1_000));
  });

  it('from a guest agent: a command in the guest is answered or fails', async (context) => {
    const run = async (answers: readonly string[]): Promise<void> => {
      const text = answers.map((one) => `${one}\n`).join('');
      peer = await ScriptedPeer.listen(
        join(folder, 'ga.sock'),
        afterSync((socket, { execute }) =>
          execute === 'guest-exec' ? socket.write('{"return":{"pid":1}}\n') : socket.end(text),
        ),
      );
      const command = { path: 'x', arguments: [], signal: new AbortController().signal, reserve: () => true };
      const outcome = await executeInGuest(new GuestAgent(folder), command).then(
        ({ exitCode }) => (Number.isInteger(exitCode) ? 'ended' : 'wrong'),
        (error: unknown) => (error instanceof Error ? 'failed' : 'wrong'),
      );
      tried(context, 'guest agent: generated lines for a command', outcome);
      expect(outcome).toMatch(/^(ended|failed)$/);
      await peer.close();
    };
    const ended = fc.record({ exited: fc.constant(true), exitcode: fc.integer(), 'out-data': fc.string() });
    const status = ended.map((one) => [JSON.stringify({ return: one })]);
    await fc.assert(fc.asyncProperty(fc.oneof(lines, status), run), hostileRuns(500));
  });

  it('from a hypervisor: a command is answered or fails', async (context) => {
    const run = async (answers: readonly string[]): Promise<void> => {
      const text = answers.map((one) => `${one}\n`).join('');
      peer = await ScriptedPeer.listen(join(folder, 'qmp.sock'), (socket, command) => {
        if (command.execute === 'qmp_capabilities') {
          socket.write('{"QMP":{}}\n{"id":1,"return":{}}\n');
        } else {
          socket.end(text);
        }
      });
      const outcome = await statusOf();
      tried(context, 'QMP: generated lines', outcome);
      expect(outcome).toMatch(/^(answered|refused)$/);
      await peer.close();
    };
    await fc.assert(fc.asyncProperty(lines, run), hostileRuns(1_000));
  });

  it.for([
    ['{"error":null}', (socket) => socket.write('{"id":2,"error":null}\n')],
    ['[]', (socket) => socket.write('[]\n')],
    ['null', (socket) => socket.write('null\n')],
    ['no status', (socket) => socket.write('{"id":2,"return":null}\n')],
    ['a wrong id, then the end', (socket) => socket.end('{"id":3,"return":{"status":"running"}}\n')],
    ['a close in the middle', (socket) => socket.end('{"id":2,"ret')],
    ['brackets without end', (socket) => socket.write(`${'['.repeat(900_000)}\n`)],
    ['no line end', (socket) => flood(socket, 'x', count)],
    ['events without end', (socket) => flood(socket, '{"event":"SHUTDOWN","data":{"guest":true}}\n', count)],
  ] as [string, (socket: Socket) => void][])(
    'from a hypervisor (%s): a command fails',
    async ([name, play], context) => {
      peer = await ScriptedPeer.listen(join(folder, 'qmp.sock'), (socket, command) => {
        if (command.execute === 'qmp_capabilities') {
          socket.write('{"id":1,"return":{}}\n');
        } else {
          play(socket);
        }
      });
      const outcome = await statusOf();
      tried(context, `QMP: ${name}`, outcome);
      expect(outcome).toBe('refused');
      expect(flooded).toBeLessThanOrEqual(TAKEN_LIMIT_BYTES);
    },
  );

  async function statusOf(): Promise<string> {
    const qmp = await QmpConnection.connect(folder, 'qmp.sock', { timeoutMilliseconds: 10_000 });
    try {
      expect(typeof (await qmp.status())).toBe('string');
      return 'answered';
    } catch (error) {
      if (!(error instanceof QmpError)) {
        throw error;
      }
      return 'refused';
    } finally {
      qmp.close();
    }
  }
});
