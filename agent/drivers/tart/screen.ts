/**
 * The screen of a machine, which the VNC server of the hypervisor serves on a port of the host. The program prints its address and its password.
 * The log writer keeps both in a file of the machine's folder, which only the agent can read. The agent logs in, so clients need no password.
 */
import { open, rm } from 'node:fs/promises';
import { createConnection, type Socket } from 'node:net';
import { join } from 'node:path';
import { type Duplex, duplexPair } from 'node:stream';
import { crc32, createDeflate } from 'node:zlib';
import { SCREENSHOT_BYTES } from '../../../api/v1alpha1/names.ts';
import { isMissing, isOfSystem, messageOf, undefinedIf } from '../../../base/errors.ts';
import { pause } from '../../../base/time.ts';
import type { PrintedSecret } from '../../console/logwriter.ts';
import { PICTURE_BUSY, type Reserve, StreamRefused } from '../driver.ts';
import { logIn, type RfbPicture, readPicture, RfbError, welcome } from './rfb.ts';

/** What the program prints about its VNC server, and where the log writer keeps it. */
export const SCREEN_SECRET: PrintedSecret = { pattern: String.raw`vnc://\S+`, file: 'screen.secret' };
const ADDRESS = /^vnc:\/\/:([!-~]{1,200})@127\.0\.0\.1:(\d{1,5})$/;
/** Largest address in bytes. That of the program has about 60. */
const ADDRESS_BYTES = 256;
/** The VNC server listens on this address of the host, too. */
const LOOPBACK = '127.0.0.1';

/** Time after the start of a machine in which the program should print the address. It waits until its server listens. */
const PRINT_MILLISECONDS = 10_000;
const LOOK_MILLISECONDS = 100;
/** Time limit of a login to a program on the same host. */
const LOG_IN_MILLISECONDS = 10_000;
/** Time in which a client must say that it speaks VNC. Clients do this without their user. */
const WELCOME_MILLISECONDS = 30_000;
/** Time limit of a picture. A screen of 3840×2160 pixels has 33 MB. */
const PICTURE_MILLISECONDS = 20_000;

/** Effort of the compression. A higher one needs seconds for a large screen. */
const COMPRESSION_LEVEL = 3;
const PNG = Buffer.from('89504e470d0a1a0a', 'hex');
/** Eight bits for each of red, green and blue, and neither another compression nor another filter than that of PNG. */
const PNG_FORMAT = [8, 2, 0, 0, 0];

export class TartScreen {
  readonly #path: string;
  readonly #whyNone: () => Promise<string | undefined>;
  readonly #connections = new Set<Socket>();
  #isPictured = false;

  /** `folder` is the machine's folder. `whyNone` tells why the machine has no screen now, and nothing if it has one. */
  constructor(folder: string, whyNone: () => Promise<string | undefined>) {
    this.#path = join(folder, SCREEN_SECRET.file);
    this.#whyNone = whyNone;
  }

  /** Returns a stream to the screen, on which clients need no password. @throws StreamRefused as `connectScreen` of the driver does. */
  async connect(): Promise<Duplex> {
    const server = await this.#logIn();
    const [outer, inner] = duplexPair({ allowHalfOpen: false });
    // These listeners are added at once, because an error can come before the caller listens. An error that nobody handles would end the agent.
    outer.on('error', () => undefined);
    inner.on('error', () => undefined);
    outer.once('close', () => server.destroy());
    server.once('close', () => inner.end());
    welcome(inner, AbortSignal.timeout(WELCOME_MILLISECONDS)).then(
      () => inner.pipe(server).pipe(inner),
      // The client sees that its connection ends.
      () => server.destroy(),
    );
    return outer;
  }

  /** Returns a picture of the screen as PNG. @throws StreamRefused as `screenshot` of the driver does. */
  async picture(reserve: Reserve): Promise<Buffer> {
    if (this.#isPictured) {
      throw new StreamRefused(PICTURE_BUSY);
    }
    this.#isPictured = true;
    try {
      const server = await this.#logIn();
      try {
        return await encodePng(
          await readPicture(server, reserve, AbortSignal.timeout(PICTURE_MILLISECONDS)),
          reserve,
        );
      } finally {
        server.destroy();
      }
    } catch (error) {
      const isOfServer = error instanceof RfbError || isOfSystem(error) || isTimeout(error);
      throw isOfServer ? new StreamRefused(`There is no picture of the screen: ${messageOf(error)}`) : error;
    } finally {
      this.#isPictured = false;
    }
  }

  /** Forgets the address of an earlier process, whose port can belong to another program now. */
  async forget(): Promise<void> {
    await rm(this.#path, { force: true });
  }

  /** Ends the streams. The guest is not affected. */
  close(): void {
    this.#connections.forEach((socket) => socket.destroy());
  }

  async #logIn(): Promise<Socket> {
    const { port, password } = await this.#address();
    const socket = createConnection({ host: LOOPBACK, port });
    socket.on('error', () => undefined);
    this.#connections.add(socket);
    socket.once('close', () => this.#connections.delete(socket));
    try {
      await logIn(socket, password, AbortSignal.timeout(LOG_IN_MILLISECONDS));
      return socket;
    } catch (error) {
      socket.destroy();
      throw new StreamRefused(`The screen of the machine cannot be reached: ${messageOf(error)}`, {
        cause: error,
      });
    }
  }

  /** Waits until the program has printed the address. @throws StreamRefused when the machine does not run, or has no screen. */
  async #address(): Promise<{ port: number; password: string }> {
    const deadline = performance.now() + PRINT_MILLISECONDS;
    for (;;) {
      const obstacle = await this.#whyNone();
      if (obstacle !== undefined) {
        throw new StreamRefused(obstacle);
      }
      const [, password, port] = ADDRESS.exec((await this.#read()) ?? '') ?? [];
      if (password !== undefined) {
        return { port: Number(port), password };
      }
      if (performance.now() >= deadline) {
        throw new StreamRefused(
          'The hypervisor has not said where it serves the screen. Try again, or restart the machine',
        );
      }
      await pause(LOOK_MILLISECONDS);
    }
  }

  async #read(): Promise<string | undefined> {
    const file = await undefinedIf(isMissing, open(this.#path, 'r'));
    if (file === undefined) {
      return undefined;
    }
    try {
      const { buffer, bytesRead } = await file.read(Buffer.alloc(ADDRESS_BYTES), 0, ADDRESS_BYTES, 0);
      return buffer.toString('latin1', 0, bytesRead);
    } finally {
      await file.close();
    }
  }
}

function isTimeout(error: unknown): boolean {
  return error instanceof Error && error.name === 'TimeoutError';
}

/** Returns the picture as PNG. @throws RfbError when it is too large, or no memory is left for it. */
async function encodePng({ width, height, lines }: RfbPicture, reserve: Reserve): Promise<Buffer> {
  const pieces: Buffer[] = [];
  let bytes = 0;
  const encoder = createDeflate({ level: COMPRESSION_LEVEL });
  encoder.end(lines);
  for await (const piece of encoder as AsyncIterable<Buffer>) {
    bytes += piece.length;
    if (bytes > SCREENSHOT_BYTES || !reserve(piece.length)) {
      throw new RfbError(`The picture has more than ${bytes} bytes, for which the host has no memory now`);
    }
    pieces.push(piece);
  }
  const size = Buffer.alloc(8);
  size.writeUInt32BE(width, 0);
  size.writeUInt32BE(height, 4);
  const header = Buffer.concat([size, Buffer.from(PNG_FORMAT)]);
  return Buffer.concat([PNG, chunk('IHDR', header), chunk('IDAT', ...pieces), chunk('IEND')]);
}

/** Returns a part of a PNG file. */
function chunk(type: string, ...content: Buffer[]): Buffer {
  const named = Buffer.concat([Buffer.from(type, 'latin1'), ...content]);
  const [length, sum] = [Buffer.alloc(4), Buffer.alloc(4)];
  length.writeUInt32BE(named.length - type.length);
  sum.writeUInt32BE(crc32(named));
  return Buffer.concat([length, named, sum]);
}
