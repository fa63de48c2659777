/** A small client of VNC servers (RFB 3.8 without a password), which sees a screen as a user's viewer does. */
import type { Duplex } from 'node:stream';

const SECURITY_NONE = 1;
const ENCODING = { raw: 0, extendedDesktopSize: -308 };
const BYTES_PER_PIXEL = 4;
const REQUEST = { setEncodings: 2, update: 3, setDesktopSize: 251 };
const UPDATE = 0;
/** Lengths in bytes of the server messages that are not updates: bell, and the first part of a cut text. */
const BELL = 2;
const CUT_TEXT = 3;

export interface Frame {
  width: number;
  height: number;
  /** Four bytes for each pixel, line by line from the top. */
  pixels: Buffer;
}

export class Viewer {
  readonly #socket: Duplex;
  #chunks: Buffer[] = [];
  #length = 0;
  #wake: (() => void) | undefined;
  #error: Error | undefined;
  #size = { width: 0, height: 0 };

  private constructor(socket: Duplex) {
    this.#socket = socket;
    socket.on('data', (chunk: Buffer) => {
      this.#chunks.push(chunk);
      this.#length += chunk.length;
      this.#wake?.();
    });
    const end = (error?: Error) => {
      this.#error ??= error ?? new Error('the VNC server closed the connection');
      this.#wake?.();
    };
    socket.on('error', end).on('close', () => end());
  }

  /** Does the handshake with the server to which `socket` is connected. */
  static async open(socket: Duplex): Promise<Viewer> {
    const viewer = new Viewer(socket);
    const version = await viewer.#read(12);
    socket.write(version);
    const kinds = await viewer.#read((await viewer.#read(1))[0] ?? 0);
    if (!kinds.includes(SECURITY_NONE)) {
      throw new Error(`the VNC server wants a login: ${kinds.toString('hex')}`);
    }
    socket.write(Buffer.from([SECURITY_NONE]));
    const refused = (await viewer.#read(4)).readUInt32BE();
    if (refused !== 0) {
      throw new Error('the VNC server refused the viewer');
    }
    // The server is shared with other viewers.
    socket.write(Buffer.from([1]));
    const init = await viewer.#read(24);
    viewer.#size = { width: init.readUInt16BE(0), height: init.readUInt16BE(2) };
    await viewer.#read(init.readUInt32BE(20));
    const encodings = Object.values(ENCODING);
    const message = Buffer.alloc(4 + 4 * encodings.length);
    message.writeUInt8(REQUEST.setEncodings, 0);
    message.writeUInt16BE(encodings.length, 2);
    encodings.forEach((encoding, index) => message.writeInt32BE(encoding, 4 + 4 * index));
    socket.write(message);
    return viewer;
  }

  /** Returns one whole frame of the size that the screen has now. */
  async frame(): Promise<Frame> {
    for (;;) {
      const { width, height } = this.#size;
      const pixels = Buffer.alloc(width * height * BYTES_PER_PIXEL);
      const request = Buffer.alloc(10);
      request.writeUInt8(REQUEST.update, 0);
      request.writeUInt16BE(width, 6);
      request.writeUInt16BE(height, 8);
      this.#socket.write(request);
      if (await this.#fill(pixels, width)) {
        return { width, height, pixels };
      }
    }
  }

  /** Asks the guest for another size of the screen, as a viewer does whose window is resized. */
  resize(width: number, height: number): void {
    const message = Buffer.alloc(24);
    message.writeUInt8(REQUEST.setDesktopSize, 0);
    message.writeUInt16BE(width, 2);
    message.writeUInt16BE(height, 4);
    message.writeUInt8(1, 6);
    message.writeUInt16BE(width, 16);
    message.writeUInt16BE(height, 18);
    this.#socket.write(message);
  }

  close(): void {
    this.#socket.destroy();
  }

  /** Reads updates until all pixels are there. Returns false if the size of the screen has changed. */
  async #fill(pixels: Buffer, width: number): Promise<boolean> {
    let missing = pixels.length;
    while (missing > 0) {
      for (let rectangles = await this.#update(); rectangles > 0; rectangles -= 1) {
        const head = await this.#read(12);
        const [left, top, wide, high] = [0, 2, 4, 6].map((at) => head.readUInt16BE(at)) as [
          number,
          number,
          number,
          number,
        ];
        if (head.readInt32BE(8) === ENCODING.extendedDesktopSize) {
          await this.#read(16 * ((await this.#read(4))[0] ?? 0));
          if (wide !== this.#size.width || high !== this.#size.height) {
            this.#size = { width: wide, height: high };
            return false;
          }
          continue;
        }
        const lines = await this.#read(wide * high * BYTES_PER_PIXEL);
        for (let line = 0; line < high; line += 1) {
          const from = line * wide * BYTES_PER_PIXEL;
          lines.copy(
            pixels,
            ((top + line) * width + left) * BYTES_PER_PIXEL,
            from,
            from + wide * BYTES_PER_PIXEL,
          );
        }
        missing -= lines.length;
      }
    }
    return true;
  }

  /** Waits for an update, and returns the number of its rectangles. */
  async #update(): Promise<number> {
    for (;;) {
      const [kind] = await this.#read(1);
      if (kind === UPDATE) {
        return (await this.#read(3)).readUInt16BE(1);
      }
      if (kind === CUT_TEXT) {
        await this.#read((await this.#read(7)).readUInt32BE(3));
      } else if (kind !== BELL) {
        throw new Error(`the VNC server sent a message of the kind ${kind}`);
      }
    }
  }

  async #read(length: number): Promise<Buffer> {
    while (this.#length < length) {
      if (this.#error !== undefined) {
        throw this.#error;
      }
      await new Promise<void>((resolve) => (this.#wake = resolve));
    }
    const bytes =
      this.#chunks.length === 1 ? (this.#chunks[0] ?? Buffer.alloc(0)) : Buffer.concat(this.#chunks);
    this.#chunks = bytes.length === length ? [] : [bytes.subarray(length)];
    this.#length -= length;
    return bytes.subarray(0, length);
  }
}
