/**
 * The protocol of VNC (RFC 6143), as far as the agent needs it: it logs in to the server of a hypervisor, welcomes a client without a password, and
 * reads one picture. Both peers can be hostile, so each size is checked, and the caller's signal limits the time.
 */
import { createCipheriv } from 'node:crypto';
import { once } from 'node:events';
import type { Duplex } from 'node:stream';
import type { Reserve } from '../driver.ts';

const VERSION = 'RFB 003.008\n';
/** Least version of a server, as `major * 1000 + minor`. Earlier ones do not let the client choose the type of security. */
const LEAST_VERSION = 3_008;
/** Types of security. */
const NONE = 1;
const PASSWORD = 2;
const CHALLENGE_BYTES = 16;
/** VNC uses at most this number of characters of a password. */
const KEY_BYTES = 8;

/** Largest text of a server, which gives a reason or a name. */
const TEXT_BYTES = 4_096;
/** Largest text that the server has in its clipboard. It is read and forgotten. */
const CLIPBOARD_BYTES = 1024 * 1024;
/** Largest side and area of a screen in pixels. The largest display of a VM has 3840×2160 pixels. */
const SIDE_PIXELS = 8_192;
const AREA_PIXELS = 3_840 * 2_160;
/** Largest number of rectangles and other messages of a picture. Servers send a few dozen. */
const PARTS = 16_384;

/** Messages of a server. */
const UPDATE = 0;
const BELL = 2;
const CLIPBOARD = 3;
const RAW = 0;
/** Bytes of a pixel in an update, and in a picture. */
const PIXEL_BYTES = 4;
const COLOR_BYTES = 3;

/** Error for a peer that does not follow the protocol, or refuses the agent. */
export class RfbError extends Error {
  override readonly name = 'RfbError';
}

/** A picture of a screen: for each line one byte 0, and three bytes for the red, green and blue of each pixel. */
export interface RfbPicture {
  width: number;
  height: number;
  lines: Buffer;
}

/** Reads exactly this number of bytes. Later bytes stay in the stream. @throws RfbError when the stream ends before; the signal's reason. */
async function take(stream: Duplex, count: number, signal: AbortSignal): Promise<Buffer> {
  for (;;) {
    const bytes = count === 0 ? Buffer.alloc(0) : (stream.read(count) as Buffer | null);
    if (bytes?.length === count) {
      return bytes;
    }
    if (bytes !== null || stream.readableEnded || stream.destroyed) {
      throw new RfbError('The connection ended too early');
    }
    const over = new AbortController();
    const options = { signal: AbortSignal.any([signal, over.signal]) };
    try {
      await Promise.race(['readable', 'end', 'close'].map(async (name) => await once(stream, name, options)));
    } catch (error) {
      throw signal.aborted ? signal.reason : error;
    } finally {
      over.abort();
    }
  }
}

/** Logs in to a server with the password. @throws RfbError when the server refuses it, or has no login with a password. */
export async function logIn(server: Duplex, password: string, signal: AbortSignal): Promise<void> {
  const version = (await take(server, VERSION.length, signal)).toString('latin1');
  const [, major, minor] = /^RFB (\d{3})\.(\d{3})\n$/.exec(version) ?? [];
  if (major === undefined || Number(major) * 1_000 + Number(minor) < LEAST_VERSION) {
    throw new RfbError('The server has no version of VNC that the agent knows');
  }
  server.write(VERSION);
  const [count = 0] = await take(server, 1, signal);
  const offered = await take(server, count, signal);
  if (!offered.includes(PASSWORD)) {
    throw new RfbError('The server offers no login with a password');
  }
  server.write(Buffer.of(PASSWORD));
  server.write(answerChallenge(await take(server, CHALLENGE_BYTES, signal), password));
  if ((await take(server, 4, signal)).readUInt32BE() !== 0) {
    throw new RfbError('The server refuses the password');
  }
}

/** Encrypts the challenge with DES. VNC reads the bits of each byte of the key in reverse. DES three times with one key is DES. */
function answerChallenge(challenge: Buffer, password: string): Buffer {
  const key = Buffer.alloc(KEY_BYTES);
  key.write(password, 'latin1');
  for (const [index, byte] of key.entries()) {
    key[index] = Number.parseInt(byte.toString(2).padStart(8, '0').split('').toReversed().join(''), 2);
  }
  const cipher = createCipheriv('des-ede3-ecb', Buffer.concat([key, key, key]), null).setAutoPadding(false);
  return Buffer.concat([cipher.update(challenge), cipher.final()]);
}

/** Takes the part of a server that needs no password, until the client sends its first message. @throws RfbError for a wrong client. */
export async function welcome(client: Duplex, signal: AbortSignal): Promise<void> {
  client.write(VERSION);
  const version = (await take(client, VERSION.length, signal)).toString('latin1');
  const [, major, minor] = /^RFB (\d{3})\.(\d{3})\n$/.exec(version) ?? [];
  if (major === undefined) {
    throw new RfbError('The client does not speak VNC');
  }
  const said = Number(major) * 1_000 + Number(minor);
  if (said < LEAST_VERSION - 1) {
    // In the first version, the server alone chooses.
    client.write(Buffer.of(0, 0, 0, NONE));
    return;
  }
  client.write(Buffer.of(1, NONE));
  const [chosen] = await take(client, 1, signal);
  if (chosen !== NONE) {
    throw new RfbError('The client wants another login');
  }
  if (said >= LEAST_VERSION) {
    client.write(Buffer.alloc(4));
  }
}

/**
 * Reads a picture of the screen from a server, after the login. `reserve` is called before the picture is in memory.
 *
 * @throws RfbError when the server sends no picture, or no memory is left for it; the signal's reason when the signal aborts.
 */
export async function readPicture(
  server: Duplex,
  reserve: Reserve,
  signal: AbortSignal,
): Promise<RfbPicture> {
  // Other clients stay connected.
  server.write(Buffer.of(1));
  const init = await take(server, 24, signal);
  const [width, height, name] = [init.readUInt16BE(0), init.readUInt16BE(2), init.readUInt32BE(20)];
  if (Math.max(width, height) > SIDE_PIXELS || width * height > AREA_PIXELS || width * height === 0) {
    throw new RfbError(`The screen has ${width}×${height} pixels, of which no picture is possible`);
  }
  await skipText(server, name, TEXT_BYTES, signal);
  const bytes = height * (1 + width * COLOR_BYTES);
  if (!reserve(bytes)) {
    throw new RfbError(`The picture has ${bytes} bytes, for which the host has no memory now`);
  }
  const picture = { width, height, lines: Buffer.alloc(bytes) };
  server.write(requestPicture(width, height));
  let missing = width * height;
  for (let parts = 0; missing > 0; ) {
    const rectangles = await nextUpdate(server, signal);
    for (let at = 0; at < rectangles && missing > 0; at += 1) {
      missing -= await readRectangle(server, picture, signal);
    }
    parts += 1 + rectangles;
    if (parts > PARTS) {
      throw new RfbError('The server sends no whole picture');
    }
  }
  return picture;
}

/** Returns the messages that ask for the whole screen: pixels of 32 bits with red first, in no encoding but the raw one. */
function requestPicture(width: number, height: number): Buffer {
  const format = [0, 0, 0, 0, 32, 24, 0, 1, 0, 255, 0, 255, 0, 255, 0, 8, 16, 0, 0, 0];
  const encodings = [2, 0, 0, 1, 0, 0, 0, RAW];
  const request = Buffer.of(3, 0, 0, 0, 0, 0, 0, 0, 0, 0);
  request.writeUInt16BE(width, 6);
  request.writeUInt16BE(height, 8);
  return Buffer.concat([Buffer.from([...format, ...encodings]), request]);
}

/** Reads messages of the server up to the next update. Returns the number of its rectangles. */
async function nextUpdate(server: Duplex, signal: AbortSignal): Promise<number> {
  for (let others = 0; others < PARTS; others += 1) {
    const [type] = await take(server, 1, signal);
    if (type === UPDATE) {
      return (await take(server, 3, signal)).readUInt16BE(1);
    }
    if (type === CLIPBOARD) {
      const length = (await take(server, 7, signal)).readUInt32BE(3);
      await skipText(server, length, CLIPBOARD_BYTES, signal);
    } else if (type !== BELL) {
      throw new RfbError(`The server sends the unknown message ${type}`);
    }
  }
  throw new RfbError('The server sends no picture');
}

/** Reads one rectangle of an update into the picture. Returns the number of its pixels. */
async function readRectangle(
  server: Duplex,
  { width, height, lines }: RfbPicture,
  signal: AbortSignal,
): Promise<number> {
  const head = await take(server, 12, signal);
  const [x, y, w, h] = [0, 2, 4, 6].map((at) => head.readUInt16BE(at)) as [number, number, number, number];
  if (head.readInt32BE(8) !== RAW || x + w > width || y + h > height) {
    throw new RfbError('The server sends a part of the picture that nobody asked for');
  }
  for (let line = y; line < y + (w === 0 ? 0 : h); line += 1) {
    const pixels = await take(server, w * PIXEL_BYTES, signal);
    let to = line * (1 + width * COLOR_BYTES) + 1 + x * COLOR_BYTES;
    for (let from = 0; from < pixels.length; from += PIXEL_BYTES) {
      lines[to] = pixels[from] as number;
      lines[to + 1] = pixels[from + 1] as number;
      lines[to + 2] = pixels[from + 2] as number;
      to += COLOR_BYTES;
    }
  }
  return w * h;
}

async function skipText(server: Duplex, length: number, limit: number, signal: AbortSignal): Promise<void> {
  if (length > limit) {
    throw new RfbError(`The server sends a text of ${length} bytes`);
  }
  await take(server, length, signal);
}
