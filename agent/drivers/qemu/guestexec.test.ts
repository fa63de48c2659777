import { mkdtemp, rm } from 'node:fs/promises';
import type { Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import * as fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, it, test } from 'vitest';
import { JsonError } from '../../../base/json.ts';
import { afterSync, type PeerCommand, ScriptedPeer } from '../../../test/wires/scriptedpeer.ts';
import { type GuestCommand, type GuestCommandResult, type Reserve, StreamRefused } from '../driver.ts';
import { OUTPUT_LIMIT_BYTES } from '../guest.ts';
import { GuestAgent, whileFrozen } from './guestagent.ts';
import { executeInGuest, Output, StatusLine } from './guestexec.ts';

const ALWAYS: Reserve = () => true;

/** Reads a line in pieces of these lengths, again and again. */
function read(line: Buffer | string, lengths: readonly number[] = [], reserve = ALWAYS): unknown {
  const bytes = Buffer.from(line);
  const reader = new StatusLine(reserve);
  for (let at = 0, index = 0; at < bytes.length; index += 1) {
    const length = lengths[index % lengths.length] ?? bytes.length;
    reader.push(bytes.subarray(at, at + length));
    at += length;
  }
  return reader.end();
}

/** Replaces outputs by the base64 text from which they came. */
function encoded(value: unknown): unknown {
  if (value instanceof Output) {
    return Buffer.concat(value.pieces).toString('base64');
  }
  if (Array.isArray(value)) {
    return value.map(encoded);
  }
  return typeof value === 'object' && value !== null
    ? Object.fromEntries(Object.entries(value).map(([key, one]) => [key, encoded(one)]))
    : value;
}

const base64Text = fc.uint8Array({ maxLength: 300 }).map((bytes) => Buffer.from(bytes).toString('base64'));
const other = fc.jsonValue({ maxDepth: 2 });
const fields = fc.record(
  {
    exited: fc.boolean(),
    'out-data': base64Text,
    x: fc.oneof(other, fc.record({ return: other, 'out-data': other })),
    'err-data': base64Text,
    'x"out-data': other,
  },
  { requiredKeys: [] },
);
const lines = fc.record(
  { 'out-data': other, return: fc.oneof(fields, other), x: other },
  { requiredKeys: [] },
);

test('a line has the value that JSON.parse gives, in any pieces, and its output is decoded', () => {
  const lengths = fc.array(fc.integer({ min: 1, max: 80 }), { minLength: 1, maxLength: 4 });
  let outputs = 0;
  fc.assert(
    fc.property(lines, lengths, fc.nat(2), (line, pieces, spaces) => {
      const text = JSON.stringify(line, undefined, spaces);
      fc.pre((text.match(/[[{,]/g) ?? []).length < 64);
      const value = read(text, pieces) as { return?: Record<string, unknown> };
      expect(encoded(value)).toEqual(JSON.parse(text));
      outputs += Number(value.return?.['out-data'] instanceof Output);
    }),
    { numRuns: 1_000 },
  );
  expect(outputs).toBeGreaterThan(100);
});

function outputOf(data: string, reserve = ALWAYS): Output {
  const { return: value } = read(`{"return":{"exited":true,"out-data":"${data}"}}`, [65_536], reserve) as {
    return: { 'out-data': Output };
  };
  return value['out-data'];
}

test('output is cut at its limit, and where no memory is left, and the rest of the line is read', () => {
  const content = Buffer.alloc(OUTPUT_LIMIT_BYTES + 1, 'output');
  const whole = outputOf(content.subarray(1).toString('base64'));
  expect([Buffer.concat(whole.pieces).equals(content.subarray(1)), whole.cut]).toEqual([true, false]);
  const long = outputOf(content.toString('base64'));
  expect([Buffer.concat(long.pieces).equals(content.subarray(0, -1)), long.cut]).toEqual([true, true]);
  let left = 100 * 1024;
  const poor = outputOf(content.toString('base64'), (bytes) => {
    left -= bytes;
    return left >= 0;
  });
  expect([Buffer.concat(poor.pieces).length, poor.cut]).toEqual([96 * 1024, true]);
});

test('a line that repeats its keys has the last value', () => {
  const value = read(
    '{"return":{"out-data":"QQ=="},"return":{"err-data":"QQ==","err-data":5,"out-data":"Qg=="}}',
  );
  expect(encoded(value)).toEqual({ return: { 'err-data': 5, 'out-data': 'Qg==' } });
});

test.for([
  ['a character that is not base64', 'QUJD*UJD'],
  ['an escape', String.raw`QUJD\n123`],
  ['an escaped quote', String.raw`QUJD\"BD`],
  ['padding in the middle', 'QQ==QUJD'],
  ['an incomplete group', 'QUJDQ'],
])('output with %s is refused', ([, data = '']) => {
  expect(() => outputOf(data)).toThrow(JsonError);
});

test.for([
  ['flat lists', '[],'],
  ['numbers', '0,'],
  ['spaces', ' '],
  ['objects', '{"return":{"out-data":"'],
])('a line with many %s beside the output is refused while it arrives', ([, piece = '']) => {
  const reader = new StatusLine(ALWAYS);
  reader.push(Buffer.from('{"return":{"exited":true,"out-data":"QQ==","x":['));
  expect(() => reader.push(Buffer.from(piece.repeat(5_000)))).toThrow(JsonError);
});

const MEBIBYTE = 1024 * 1024;

let folder: string;
let agent: GuestAgent;
let peer: ScriptedPeer | undefined;

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-exec-'));
  agent = new GuestAgent(folder);
});

afterEach(async () => {
  await peer?.close();
  peer = undefined;
  await rm(folder, { recursive: true, force: true });
});

/** Answers each command with the next entry of `answers`. All further commands get the last entry. `seen` receives each command. */
async function guest(answers: readonly object[], seen: PeerCommand[] = []): Promise<void> {
  let next = 0;
  const play = (socket: Socket, command: PeerCommand): void => {
    seen.push(command);
    socket.write(`${JSON.stringify(answers[next])}\n`);
    next = Math.min(next + 1, answers.length - 1);
  };
  peer = await ScriptedPeer.listen(join(folder, 'ga.sock'), afterSync(play));
}

async function run(command: Partial<GuestCommand> = {}): Promise<GuestCommandResult> {
  const { signal } = new AbortController();
  return await executeInGuest(agent, {
    path: '/bin/sh',
    arguments: [],
    signal,
    reserve: () => true,
    ...command,
  });
}

function base64(text: string): string {
  return Buffer.from(text).toString('base64');
}

const STARTED = { return: { pid: 7 } };
const RUNNING = { return: { exited: false } };
const ENDED = { return: { exited: true, exitcode: 0 } };

describe('a command in a guest', () => {
  it('has input, output and an exit code', async () => {
    const seen: PeerCommand[] = [];
    const ended = { exited: true, exitcode: 7, 'out-data': base64('out'), 'err-data': base64('err') };
    await guest([STARTED, RUNNING, { return: ended }], seen);
    const result = await run({ arguments: ['-c', 'x'], input: Buffer.from('in') });
    expect(result).toEqual({
      exitCode: 7,
      stdout: [Buffer.from('out')],
      stderr: [Buffer.from('err')],
      truncated: false,
    });
    const [first, second] = seen;
    expect(first).toMatchObject({
      execute: 'guest-exec',
      arguments: { path: '/bin/sh', arg: ['-c', 'x'], 'capture-output': true, 'input-data': base64('in') },
    });
    expect(second).toEqual({ execute: 'guest-exec-status', arguments: { pid: 7 } });
  });

  it('that a signal ended has the exit code of a shell', async () => {
    await guest([STARTED, { return: { exited: true, signal: 9 } }]);
    expect(await run()).toMatchObject({ exitCode: 137, truncated: false });
  });

  it.each([
    ['its guest agent cut', { 'out-truncated': true, 'out-data': base64('out') }, 3],
    ['is too long', { 'out-data': Buffer.alloc(16 * MEBIBYTE).toString('base64') }, OUTPUT_LIMIT_BYTES],
  ])('says that its output is incomplete if it %s', async (_, output, expected) => {
    await guest([STARTED, { return: { exited: true, exitcode: 3, ...output } }]);
    const { exitCode, truncated, stdout } = await run();
    const { length } = Buffer.concat(stdout);
    expect({ exitCode, truncated, length }).toEqual({ exitCode: 3, truncated: true, length: expected });
  });

  it('that the guest agent refuses has its reason', async () => {
    await guest([{ error: { desc: 'No such file or directory' } }]);
    const refusal = 'guest-exec failed: No such file or directory';
    await expect(run()).rejects.toThrow(new StreamRefused(refusal));
  });

  it.each([
    ['an answer without a number', [{ return: { pid: 'x' } }, ENDED], ['guest-exec']],
    [
      'a status without an end',
      [STARTED, { return: { exitcode: 0 } }, ENDED],
      ['guest-exec', 'guest-exec-status'],
    ],
  ])('is refused after %s', async (_, answers, commands) => {
    const seen: PeerCommand[] = [];
    await guest(answers, seen);
    const refusal = 'gave no valid answer. Check in the guest whether the command still runs';
    await expect(run()).rejects.toThrow(new StreamRefused(`The guest agent of the machine ${refusal}`));
    expect(seen.map(({ execute }) => execute)).toEqual(commands);
  });

  it('is refused if its input is too large', async () => {
    await guest([STARTED, ENDED]);
    expect(await run({ input: Buffer.alloc(MEBIBYTE) })).toMatchObject({ exitCode: 0 });
    const refusal = 'The standard input of the command is longer than 1048576 bytes';
    await expect(run({ input: Buffer.alloc(MEBIBYTE + 1) })).rejects.toThrow(new StreamRefused(refusal));
  });

  it('is refused if no guest agent answers', async () => {
    peer = await ScriptedPeer.listen(join(folder, 'ga.sock'), () => undefined);
    await expect(run()).rejects.toThrow(
      /^No guest agent answers in the guest\. Install qemu-guest-agent there .*SSH or the serial console$/,
    );
    await peer.close();
    await expect(run()).rejects.toThrow(
      /^No guest agent answers in the guest\. Install qemu-guest-agent there .*SSH or the serial console$/,
    );
    peer = undefined;
  });

  it('that runs long lets others use the guest agent, and ends its wait when its caller leaves', async () => {
    await guest([STARTED, RUNNING]);
    const caller = new AbortController();
    const command = run({ signal: caller.signal });
    const order: string[] = [];
    const remember = async (frozen: boolean): Promise<void> => void order.push(`frozen ${frozen}`);
    await whileFrozen({ agent, signal: caller.signal, remember }, async () => undefined);
    caller.abort(new Error('left'));
    await expect(command).rejects.toThrow('left');
    expect(order).toEqual(['frozen true', 'frozen false']);
  });

  it('that only pretends to run gets no more of the agent’s memory', async () => {
    const flood = `{"return":{"exited":false,"x":"${'x'.repeat(8 * MEBIBYTE)}"}}\n`;
    // No single connection reaches the limit. The first connection carries no answer, and each later connection carries one.
    let first: Socket | undefined;
    const play = (socket: Socket, { execute }: PeerCommand): void => {
      first ??= socket;
      const answer = `${JSON.stringify(execute === 'guest-exec' ? STARTED : RUNNING)}\n`;
      socket.write(socket === first ? answer : flood);
    };
    peer = await ScriptedPeer.listen(join(folder, 'ga.sock'), afterSync(play));
    const refusal = 'guest-exec-status failed: the answer is larger than 4096 bytes, without the output';
    await expect(run()).rejects.toThrow(new StreamRefused(refusal));
  });
});

describe('a guest agent that sends lines without a question', () => {
  /** Sends `count` copies of `line` after each answer. */
  async function chatty(line: string, count: number): Promise<void> {
    const play = (socket: Socket, { execute }: PeerCommand): void => {
      const answer = JSON.stringify(execute === 'guest-exec' ? STARTED : RUNNING);
      socket.write(`${answer}\n${line.repeat(count)}`);
    };
    peer = await ScriptedPeer.listen(join(folder, 'ga.sock'), afterSync(play));
  }

  it.each([['{}\n'], ['\n']])('is cut off after many of %j', async (line) => {
    await chatty(line, 10_000);
    await expect(run()).rejects.toThrow('gave no valid answer');
  });

  it('is asked on if they are few', async () => {
    await chatty('{}\n', 1);
    const caller = new AbortController();
    const command = run({ signal: caller.signal });
    await expect.poll(() => peer?.commands.length).toBeGreaterThan(5);
    caller.abort(new Error('left'));
    await expect(command).rejects.toThrow('left');
  });

  it('is cut off before its first answer, too', async () => {
    const play = (socket: Socket, { arguments: { id } = {} }: PeerCommand): void =>
      void socket.write(Buffer.from(`\xff${'{}\n'.repeat(10_000)}{"return":${id}}\n`, 'latin1'));
    peer = await ScriptedPeer.listen(join(folder, 'ga.sock'), play);
    await expect(run()).rejects.toThrow('No guest agent answers');
    expect(peer.commands).toEqual(['guest-sync-delimited']);
  });
});

describe('a guest agent', () => {
  it('is asked nothing while others use it, and a question gives way to a freeze', async () => {
    // The guest sends no answer, so the question would wait until its time limit.
    peer = await ScriptedPeer.listen(
      join(folder, 'ga.sock'),
      afterSync(
        (socket, { execute }) => execute.startsWith('guest-fsfreeze') && socket.write('{"return":1}\n'),
      ),
    );
    const { signal } = new AbortController();
    const asked = Promise.withResolvers<void>();
    const question = agent.ask(signal, async (connection, end) => {
      const answer = connection?.execute('guest-ping', { timeoutMilliseconds: 60_000, signal: end });
      asked.resolve();
      return await answer;
    });
    await asked.promise;
    let during: unknown;
    const work = async (): Promise<void> => {
      during = await agent.ask(signal, async () => 'asked');
    };
    const freeze = whileFrozen({ agent, signal, remember: async () => undefined }, work);
    expect(await question).toBe('busy');
    expect(await freeze).toEqual({ frozen: true, confirmed: true, problems: [] });
    expect(during).toBe('busy');
    expect(await agent.ask(signal, async () => 'asked')).toBe('asked');
  });

  it('answers after an unfinished line of another client, and after answers to it', async () => {
    peer = await ScriptedPeer.listen(
      join(folder, 'ga.sock'),
      (socket, { execute, arguments: { id } = {} }) => {
        if (execute === 'guest-sync-delimited') {
          const late = '\xff{"return":1}\n{"return":"half';
          socket.write(Buffer.from(`${late}\xff{"return":${id}}\n`, 'latin1'));
        } else {
          socket.write(`${JSON.stringify(execute === 'guest-exec' ? STARTED : ENDED)}\n`);
        }
      },
    );
    expect(await run()).toMatchObject({ exitCode: 0 });
  });
});
