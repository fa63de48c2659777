import { duplexPair, type Duplex } from 'node:stream';
import { setImmediate as nextCycle } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { logIn, readPicture, welcome } from './rfb.ts';

const VERSION = 'RFB 003.008\n';
const NEVER = new AbortController().signal;
const all = (): boolean => true;

/** Returns a stream for the agent. Its peer sends these bytes, and then ends. */
function peerThatSays(...parts: (string | Buffer)[]): Duplex {
  const [agent, peer] = duplexPair();
  peer.end(Buffer.concat(parts.map((part) => Buffer.from(part as string))));
  peer.resume();
  return agent;
}

/** Returns what the agent has said to the peer, whose stream brings it in pieces. */
async function heard(peer: Duplex): Promise<Buffer> {
  const pieces: Buffer[] = [];
  peer.on('data', (piece: Buffer) => pieces.push(piece));
  await nextCycle();
  return Buffer.concat(pieces);
}

/** First message of a server about its screen: its size, and the length of its name. */
function screenOf(width: number, height: number, name = 0): Buffer {
  const init = Buffer.alloc(24);
  init.writeUInt16BE(width, 0);
  init.writeUInt16BE(height, 2);
  init.writeUInt32BE(name, 20);
  return init;
}

/** Head of a rectangle in an update with one rectangle. */
function rectangle(x: number, y: number, width: number, height: number, encoding = 0): Buffer {
  const head = Buffer.alloc(16);
  head.writeUInt16BE(1, 2);
  [x, y, width, height].forEach((value, index) => head.writeUInt16BE(value, 4 + index * 2));
  head.writeInt32BE(encoding, 12);
  return head;
}

describe('a login', () => {
  it('answers the challenge as RFC 6143 says', async () => {
    const challenge = Buffer.from('00112233445566778899aabbccddeeff', 'hex');
    const [agent, peer] = duplexPair();
    peer.write(Buffer.concat([Buffer.from(VERSION), Buffer.of(2, 1, 2), challenge, Buffer.alloc(4)]));
    await logIn(agent, 'password-of-which-eight-count', NEVER);
    const said = await heard(peer);
    expect(said.subarray(0, 13).toString('latin1')).toBe(`${VERSION}\u0002`);
    // DES-ECB of the challenge with the key 0e86ceceeef64e26, which is `password` with the bits of each byte reversed.
    expect(said.subarray(13).toString('hex')).toBe('b7b9c87777661a7a2299733209bfdfce');
  });

  it.each([
    ['of an earlier version', ['RFB 003.003\n'], 'no version of VNC'],
    ['of another protocol', ['HTTP/1.1 400'], 'no version of VNC'],
    ['that offers no login', [VERSION, Buffer.of(0)], 'no login with a password'],
    ['that needs no password', [VERSION, Buffer.of(1, 1)], 'no login with a password'],
    [
      'that refuses',
      [VERSION, Buffer.of(1, 2), Buffer.alloc(16), Buffer.of(0, 0, 0, 1)],
      'refuses the password',
    ],
    ['that ends', [VERSION, Buffer.of(1)], 'ended too early'],
  ])('fails at a server %s', async (_, parts, message) => {
    await expect(logIn(peerThatSays(...parts), 'password', NEVER)).rejects.toThrow(message);
  });

  it('ends with its signal', async () => {
    const [agent] = duplexPair();
    const reason = new Error('too late');
    await expect(logIn(agent, 'password', AbortSignal.abort(reason))).rejects.toBe(reason);
  });
});

describe('a welcome', () => {
  it.each([
    ['RFB 003.003\n', '', '00000001'],
    ['RFB 003.007\n', '\u0001', '0101'],
    [VERSION, '\u0001', '010100000000'],
    ['RFB 003.889\n', '\u0001', '010100000000'],
  ])('lets a client of the version %j in without a password', async (version, choice, answer) => {
    const [agent, client] = duplexPair();
    client.write(`${version}${choice}rest`);
    await welcome(agent, NEVER);
    expect((await heard(client)).toString('latin1')).toBe(
      `${VERSION}${Buffer.from(answer, 'hex').toString('latin1')}`,
    );
    expect((agent.read() as Buffer).toString()).toBe('rest');
  });

  it.each([
    ['GET / HTTP/1.1', 'does not speak VNC'],
    [`${VERSION}\u0002`, 'wants another login'],
  ])('refuses %j', async (said, message) => {
    await expect(welcome(peerThatSays(said), NEVER)).rejects.toThrow(message);
  });
});

describe('a picture', () => {
  it('has the colours of the screen, also in parts and beside other messages', async () => {
    const server = peerThatSays(
      screenOf(2, 1, 4),
      'name',
      Buffer.of(2, 3, 0, 0, 0, 0, 0, 0, 2),
      'hi',
      rectangle(1, 0, 1, 1),
      Buffer.of(4, 5, 6, 0),
      rectangle(0, 0, 1, 1),
      Buffer.of(1, 2, 3, 0),
    );
    const reserved: number[] = [];
    const reserve = (bytes: number): boolean => reserved.push(bytes) > 0;
    expect(await readPicture(server, reserve, NEVER)).toEqual({
      width: 2,
      height: 1,
      lines: Buffer.of(0, 1, 2, 3, 4, 5, 6),
    });
    expect(reserved).toEqual([7]);
  });

  it.each([
    ['without a screen', [screenOf(0, 5)], 'no picture is possible'],
    ['with too large a screen', [screenOf(8_192, 8_192)], 'no picture is possible'],
    ['with a long name', [screenOf(1, 1, 2 ** 31)], 'a text of 2147483648 bytes'],
    [
      'with a long clipboard',
      [screenOf(1, 1), Buffer.of(3, 0, 0, 0, 255, 0, 0, 0)],
      'a text of 4278190080 bytes',
    ],
    ['with another message', [screenOf(1, 1), Buffer.of(77)], 'the unknown message 77'],
    ['with another encoding', [screenOf(1, 1), rectangle(0, 0, 1, 1, 7)], 'nobody asked for'],
    ['with a part outside', [screenOf(2, 2), rectangle(1, 1, 2, 1)], 'nobody asked for'],
    ['that sends empty parts for ever', [screenOf(1, 1), Buffer.alloc(4 * 20_000)], 'no whole picture'],
    ['that rings for ever', [screenOf(1, 1), Buffer.alloc(20_000, 2)], 'sends no picture'],
    ['that ends', [screenOf(1, 1), rectangle(0, 0, 1, 1)], 'ended too early'],
  ])('is not read from a server %s', async (_, parts, message) => {
    await expect(readPicture(peerThatSays(...parts), all, NEVER)).rejects.toThrow(message);
  });

  it('is not read if there is no memory for it', async () => {
    const server = peerThatSays(screenOf(1, 1));
    await expect(readPicture(server, () => false, NEVER)).rejects.toThrow('has no memory now');
  });
});
