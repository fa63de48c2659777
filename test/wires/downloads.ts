/**
 * A web server with the guest image under any number of digests. Downloads may begin at any byte. The server can hold downloads back
 * or send them slowly.
 */
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { createServer, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { waitFor } from '../../hack/wait.ts';

/** Pace of slow downloads. A slow download takes a minute, so that it is still under way when a test acts late on a busy machine. */
const SLOW = { pieces: 1_000, pauseMilliseconds: 60 };

export class Downloads implements AsyncDisposable {
  readonly #image: Buffer;
  readonly #server: Server;
  /** Responses that are held back, with their remaining bytes. */
  readonly #held = new Map<ServerResponse, Buffer>();
  #holdsBack = false;
  #isSlow = false;
  #count = 0;
  /** First requested byte of each request. */
  readonly starts: number[] = [];

  private constructor(image: Buffer, server: Server) {
    this.#image = image;
    this.#server = server;
    server.on('request', ({ url = '', headers }, response) => {
      const [, start = '0'] = /^bytes=(\d+)-$/.exec(headers.range ?? '') ?? [];
      this.#answer(Number(url.slice(1)), Number(start), response);
    });
  }

  static async serve(file: string): Promise<Downloads> {
    const image = await readFile(file);
    const server = createServer();
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    return new Downloads(image, server);
  }

  /** The server's port on the loopback address. */
  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  /** Number of bytes of the last image of {@link next}. */
  get bytes(): number {
    return this.#version(this.#count).length;
  }

  /** Returns an image that no client has fetched yet. */
  next(): { url: string; sha256: string } {
    this.#count += 1;
    const sha256 = createHash('sha256').update(this.#version(this.#count)).digest('hex');
    return { url: `http://127.0.0.1:${this.port}/${this.#count}`, sha256 };
  }

  /** Sends only half of the requested bytes of each later download, until `release` is called. */
  holdBack(): void {
    this.#holdsBack = true;
  }

  /** Sends later downloads slowly, until `release` is called. */
  slowDown(): void {
    this.#isSlow = true;
  }

  async waitForHeld(): Promise<void> {
    await waitFor('a download to be held back', () => this.#held.size > 0);
  }

  /** Sends the rest of all downloads that are held back or slow. */
  release(): void {
    this.#isSlow = false;
    this.#holdsBack = false;
    for (const [response, rest] of this.#held) {
      response.end(rest);
    }
    this.#held.clear();
  }

  async close(): Promise<void> {
    const closed = once(this.#server, 'close');
    this.#server.close();
    this.#server.closeAllConnections();
    await closed;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  /** Returns an image with its own digest. It ends with additional zeros, which qcow2 ignores. */
  #version(number: number): Buffer {
    return Buffer.concat([this.#image, Buffer.alloc(number * 512)]);
  }

  #answer(number: number, start: number, response: ServerResponse): void {
    const image = this.#version(number);
    const wanted = image.subarray(start);
    this.starts.push(start);
    response.setHeader('ETag', `"${number}"`);
    response.setHeader('Content-Length', wanted.length);
    if (start > 0) {
      response.setHeader('Content-Range', `bytes ${start}-${image.length - 1}/${image.length}`);
      response.statusCode = 206;
    }
    if (this.#isSlow) {
      void this.#giveSlowly(wanted, response);
      return;
    }
    if (!this.#holdsBack) {
      response.end(wanted);
      return;
    }
    const half = Math.floor(wanted.length / 2);
    this.#held.set(response, wanted.subarray(half));
    response.once('close', () => this.#held.delete(response));
    response.write(wanted.subarray(0, half));
  }

  /** Sends the bytes in small pieces. It stops when the client has closed the connection. */
  async #giveSlowly(wanted: Buffer, response: ServerResponse): Promise<void> {
    const size = Math.ceil(wanted.length / SLOW.pieces);
    for (let at = 0; at < wanted.length && !response.destroyed; at += size) {
      if (this.#isSlow) {
        await sleep(SLOW.pauseMilliseconds);
      }
      response.write(wanted.subarray(at, at + size));
    }
    response.end();
  }
}
