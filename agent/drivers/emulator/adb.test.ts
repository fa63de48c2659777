/** Tests the question over ADB with scripted devices, some of which are hostile. */
import type { Socket } from 'node:net';
import * as fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { AdbDevice, type AdbPlay } from '../../../test/wires/adbdevice.ts';
import {
  ADB_VERSION,
  askBooted,
  type BootAnswer,
  encodeMessage,
  LARGEST_PAYLOAD,
  readMessages,
} from './adb.ts';

const HOST = '127.0.0.1';
const CNXN = encodeMessage('CNXN', ADB_VERSION, LARGEST_PAYLOAD, Buffer.from('device::'));
const OKAY = encodeMessage('OKAY', 7, 1);
const CLSE = encodeMessage('CLSE', 7, 1);
const NEVER = new AbortController().signal;

let device: AdbDevice;

beforeEach(async () => {
  device = await AdbDevice.listen(HOST, 0);
});

afterEach(async () => await device.close());

async function ask(play?: AdbPlay, signal = NEVER): Promise<BootAnswer> {
  device.play = play ?? device.play;
  return await askBooted({ host: HOST, port: device.port }, signal);
}

/** Returns a script of a device that sends these messages and reads nothing. */
function sends(...messages: readonly Buffer[]): AdbPlay {
  return (socket) => void socket.write(Buffer.concat(messages));
}

function output(text: string | Buffer): Buffer {
  return encodeMessage('WRTE', 7, 1, Buffer.from(text));
}

/** Returns the message with another 32-bit number at this index of its header. */
function withWord(message: Buffer, index: number, value: number): Buffer {
  const changed = Buffer.from(message);
  changed.writeUInt32LE(value, index * 4);
  return changed;
}

it('knows the boot of Android from its property, and the device sees one question', async () => {
  expect(await ask()).toEqual({ kind: 'booting' });
  device.booted = true;
  expect(await ask()).toEqual({ kind: 'booted' });
  expect(device.asked).toEqual(['shell:getprop sys.boot_completed', 'shell:getprop sys.boot_completed']);
});

it('sends the bytes of the protocol', async () => {
  const received: Buffer[] = [];
  await ask((socket: Socket) => {
    socket.on('data', (chunk: Buffer) => {
      received.push(chunk);
      socket.end(encodeMessage('AUTH', 1, 0, Buffer.alloc(20)));
    });
  });
  const hex = '434e584e 00000001 00100000 07000000 32020000 bcb1a7b1'.replaceAll(' ', '');
  expect(Buffer.concat(received).toString('hex')).toBe(hex + Buffer.from('host::\0').toString('hex'));
});

describe('a device', () => {
  it.each<[name: string, play: AdbPlay, answer: BootAnswer]>([
    ['that wants a key', sends(encodeMessage('AUTH', 1, 0, Buffer.alloc(20))), { kind: 'wantsKey' }],
    ['that wants TLS', sends(encodeMessage('STLS', ADB_VERSION, 0)), { kind: 'wantsKey' }],
    ['that refuses a shell', sends(CNXN, encodeMessage('CLSE', 0, 1)), { kind: 'booting' }],
    ['without getprop', sends(CNXN, OKAY, output('getprop: not found\n'), CLSE), { kind: 'booting' }],
    ['whose output comes in parts', sends(CNXN, OKAY, output('1'), output('\n'), CLSE), { kind: 'booted' }],
    ['that says 11', sends(CNXN, OKAY, output('1'), output('1\n'), CLSE), { kind: 'booting' }],
  ])('%s', async (_, play, answer) => {
    expect(await ask(play)).toEqual(answer);
  });
});

describe('a hostile peer', () => {
  it.each<[name: string, play: AdbPlay, why: RegExp]>([
    ['of another protocol', sends(Buffer.from('HTTP/1.1 400 Bad Request\r\n\r\n')), /not a header of ADB/],
    ['with a wrong magic', sends(withWord(CNXN, 5, 0)), /not a header of ADB/],
    ['with a wrong checksum', sends(withWord(CNXN, 4, 0)), /wrong checksum/],
    ['with an oversized length', sends(withWord(CNXN, 3, 0xffffffff)), /4294967295 bytes, but at most 4096/],
    ['with a length over the limit', sends(withWord(CNXN, 3, LARGEST_PAYLOAD + 1)), /at most 4096/],
    ['that begins with a stream', sends(OKAY), /answered OKAY instead of CNXN/],
    ['that answers for another stream', sends(CNXN, encodeMessage('OKAY', 7, 2)), /instead of/],
    ['that opens a stream of its own', sends(CNXN, OKAY, encodeMessage('OPEN', 9, 1)), /answered OPEN/],
    ['with a long output', sends(CNXN, OKAY, output('1'.repeat(257))), /longer than 256 bytes/],
    [
      'with output without end',
      sends(CNXN, OKAY, ...Array<Buffer>(99).fill(output(''))),
      /more than 16 messages/,
    ],
  ])('%s is wrong', async (_, play, why) => {
    expect(await ask(play)).toEqual({ kind: 'wrong', message: expect.stringMatching(why) });
  });

  it('that hangs up within a message is wrong, and between messages silent', async () => {
    const half = await ask((socket) => void socket.end(CNXN.subarray(0, 30)));
    expect(half).toMatchObject({ kind: 'wrong', message: /within a message/ });
    expect(await ask((socket) => void socket.end(CNXN))).toMatchObject({ kind: 'silent' });
    expect(await ask((socket) => void socket.destroy())).toMatchObject({ kind: 'silent' });
  });

  it('that says nothing, that drips or that never ends is silent after five seconds', async () => {
    const drips: AdbPlay = (socket) => {
      const left = [...CNXN];
      const timer = setInterval(() => socket.write(Buffer.from(left.splice(0, 1))), 200);
      socket.once('close', () => clearInterval(timer));
    };
    const began = performance.now();
    const plays = [() => undefined, drips, sends(CNXN, OKAY, output('1\n'))];
    const answers = plays.map(async (play) => {
      const peer = await AdbDevice.listen(HOST, 0);
      peer.play = play;
      const answer = await askBooted({ host: HOST, port: peer.port }, NEVER);
      await peer.close();
      return answer;
    });
    const message = 'ADB did not answer within 5 s';
    expect(await Promise.all(answers)).toEqual(plays.map(() => ({ kind: 'silent', message })));
    // A limit for each message instead of all would end the drips, which take 6 s, only after 11 s.
    expect(performance.now() - began).toBeLessThan(10_000);
  });

  it('with any bytes has an answer, and never one that is booted', async () => {
    const bytes = fc.array(fc.uint8Array({ minLength: 1, maxLength: 64, size: 'max' }), { maxLength: 8 });
    await fc.assert(
      fc.asyncProperty(bytes, async (chunks) => {
        const answer = await ask((socket) => void socket.end(Buffer.concat([CNXN, OKAY, ...chunks])));
        expect(['wrong', 'silent']).toContain(answer.kind);
      }),
      { numRuns: 100 },
    );
  });
});

it('nobody at the port is silent, and a question that is no longer wanted ends', async () => {
  const { port } = device;
  await device.close();
  expect(await askBooted({ host: HOST, port }, NEVER)).toMatchObject({ kind: 'silent' });
  device = await AdbDevice.listen(HOST, 0);
  const end = new AbortController();
  // The time limit of a question never comes.
  vi.useFakeTimers({ toFake: ['setTimeout'] });
  try {
    expect(await ask(() => end.abort(), end.signal)).toMatchObject({ kind: 'silent' });
  } finally {
    vi.useRealTimers();
  }
});

it('messages are the same in any pieces', async () => {
  const sent = [CNXN, OKAY, output('1\n'), CLSE];
  await fc.assert(
    fc.asyncProperty(
      fc.array(fc.nat({ max: Buffer.concat(sent).length }), { size: 'max', maxLength: 20 }),
      async (cuts) => {
        const bytes = Buffer.concat(sent);
        const at = [0, ...cuts.toSorted((a, b) => a - b), bytes.length];
        const pieces = at.slice(1).map((end, index) => bytes.subarray(at[index], end));
        const commands: string[] = [];
        for await (const { command } of readMessages(each(pieces))) {
          commands.push(command);
        }
        expect(commands).toEqual(['CNXN', 'OKAY', 'WRTE', 'CLSE']);
      },
    ),
  );
});

async function* each(pieces: readonly Buffer[]): AsyncGenerator<Buffer> {
  yield* pieces;
}
