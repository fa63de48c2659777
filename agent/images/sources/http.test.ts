import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { readdir, readFile, writeFile } from 'node:fs/promises';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { inspect } from 'node:util';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { pause } from '../../../base/time.ts';
import { RegistryTransport } from '../oci/transport.ts';
import { download } from './http.ts';
import { makeFolder } from '../../../test/support/folder.ts';

vi.mock(import('../../../base/time.ts'), { spy: true });

const BYTES = 4 * 1024 ** 2;
const HALF = BYTES / 2;

describe('a download', () => {
  const content = randomBytes(BYTES);
  const sha256 = createHash('sha256').update(content).digest('hex');
  let folder: string;
  let path: string;
  let server: Server;
  let url: string;
  let percents: number[];
  /** Headers of the requests, as `Range | If-Range`. */
  let asked: string[];
  let sentBytes: number;
  let receivedBytes: number;
  /** Content that the server has now. */
  let current: Buffer;
  let etag: string | undefined;
  let knowsRanges: boolean;
  /** Numbers of bytes after which the server interrupts its answers, one number for each answer. */
  let cuts: number[];
  let refuses: boolean;
  let transport: RegistryTransport;

  beforeEach(async () => {
    folder = makeFolder();
    path = join(folder, 'disk');
    percents = [];
    asked = [];
    sentBytes = 0;
    receivedBytes = 0;
    current = content;
    etag = '"one"';
    knowsRanges = true;
    cuts = [];
    refuses = false;
    transport = new RegistryTransport({ allowLoopbackHttp: true, registries: [] });
    server = createServer(answer).listen(0, '127.0.0.1');
    await once(server, 'listening');
    url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/disk`;
  });

  afterEach(async () => {
    vi.resetAllMocks();
    await transport.close();
    server.closeAllConnections();
    server.close();
  });

  function answer({ headers }: IncomingMessage, response: ServerResponse): void {
    asked.push(`${headers.range ?? ''} | ${String(headers['if-range'] ?? '')}`);
    if (refuses) {
      response.writeHead(403).end();
      return;
    }
    if (etag !== undefined) {
      response.setHeader('etag', etag);
    }
    const start = Number(/^bytes=(\d+)-$/.exec(headers.range ?? '')?.[1] ?? 0);
    const mayRange = headers['if-range'] === undefined || headers['if-range'] === etag;
    const isPart = knowsRanges && start > 0 && mayRange;
    if (isPart && start >= current.length) {
      response.writeHead(416).end();
      return;
    }
    const body = isPart ? current.subarray(start) : current;
    if (isPart) {
      response.setHeader('content-range', `bytes ${start}-${current.length - 1}/${current.length}`);
    }
    response.writeHead(isPart ? 206 : 200, { 'content-length': body.length });
    const cut = cuts.shift();
    sentBytes += Math.min(cut ?? body.length, body.length);
    if (cut === undefined) {
      response.end(body);
    } else {
      const taken = receivedBytes + cut;
      response.write(body.subarray(0, cut), () => cutOff(response, taken));
    }
  }

  /** Ends the connection when the client has taken this number of bytes. At the end, a client drops bytes that it has not taken. */
  function cutOff(response: ServerResponse, taken: number): void {
    if (receivedBytes < taken && !response.destroyed) {
      setImmediate(() => cutOff(response, taken));
    } else {
      response.destroy();
    }
  }

  async function fetch(digest = sha256, signal = new AbortController().signal): Promise<void> {
    await download(url, digest, path, {
      signal,
      transport,
      onProgress: (at) => percents.push(at),
      onBytes: (count) => {
        receivedBytes += count;
      },
    });
  }

  /** Compares the buffers directly, because `toEqual` takes a second for so many bytes. */
  async function expectContent(): Promise<void> {
    expect((await readFile(path)).equals(content)).toBe(true);
  }

  it('is stored unchanged, and leaves no other file', async () => {
    await fetch();
    await expectContent();
    expect(await readdir(folder)).toEqual(['disk']);
    expect(percents.at(-1)).toBe(100);
    expect(percents.toSorted((a, b) => a - b)).toEqual(percents);
  });

  it('counts the bytes that arrive: those of an interrupted part too, and those of a complete file never again', async () => {
    cuts = [HALF];
    await fetch();
    expect(receivedBytes).toBe(BYTES);
    await fetch();
    expect(receivedBytes).toBe(BYTES);
  });

  it.each([
    ['404', (response: ServerResponse) => response.writeHead(404).end()],
    ['other content', (response: ServerResponse) => response.end('other')],
    [
      'a way to nowhere',
      (response: ServerResponse) => response.writeHead(302, { location: 'http://hunter2:x' }).end(),
    ],
    [
      'a way in a circle',
      (response: ServerResponse) => response.writeHead(302, { location: '?hunter2' }).end(),
    ],
    [
      'another scheme',
      (response: ServerResponse) => response.writeHead(302, { location: 'file:///hunter2?hunter2' }).end(),
    ],
  ])('that ends with %s has a message without the credentials in its URL', async (_name, answer) => {
    const strange = createServer((_request, response) => answer(response)).listen(0, '127.0.0.1');
    await once(strange, 'listening');
    try {
      const { port } = strange.address() as AddressInfo;
      url = `http://user:hunter2@127.0.0.1:${port}/disk?X-Amz-Signature=hunter2`;
      const error: unknown = await fetch().catch((reason: unknown) => reason);
      expect(error).toMatchObject({ name: 'ReasonedError' });
      // The log shows the error in this form, with its cause and all its properties.
      expect(inspect(error, { depth: 10 })).not.toContain('hunter2');
    } finally {
      strange.close();
    }
  });

  it('that breaks off continues at the same place', async () => {
    cuts = [HALF, 1024 ** 2];
    await fetch();
    await expectContent();
    expect(asked).toHaveLength(3);
    expect(asked[1]).toMatch(/^bytes=\d+- \| "one"$/);
    // Bytes that were in transit when the transfer was interrupted are sent twice.
    expect(sentBytes).toBeLessThan(BYTES + 1024 ** 2);
  });

  it('continues after the agent was killed', async () => {
    await writeFile(path, content.subarray(0, HALF));
    await writeFile(`${path}.source`, JSON.stringify({ validator: etag, total: BYTES }));
    await fetch();
    await expectContent();
    expect(asked).toEqual([`bytes=${HALF}- | "one"`]);
  });

  it('that was complete when the agent was killed is not requested again', async () => {
    await writeFile(path, content);
    await fetch();
    expect(asked).toEqual([]);
  });

  it('continues without a version from the server, because the digest is known', async () => {
    etag = undefined;
    await writeFile(path, content.subarray(0, HALF));
    await writeFile(`${path}.source`, 'cut o');
    await fetch();
    await expectContent();
    expect(asked).toEqual([`bytes=${HALF}- | `]);
  });

  it('of a new version starts over', async () => {
    await writeFile(path, randomBytes(HALF));
    await writeFile(`${path}.source`, JSON.stringify({ validator: '"zero"', total: BYTES }));
    await fetch();
    await expectContent();
    expect(asked).toEqual([`bytes=${HALF}- | "zero"`]);
  });

  it('that would continue other content starts over', async () => {
    await writeFile(path, randomBytes(HALF));
    await fetch();
    await expectContent();
    expect(asked).toEqual([`bytes=${HALF}- | `, ' | ']);
  });

  it('with more bytes than the file can have starts over', async () => {
    await writeFile(path, randomBytes(BYTES + 10));
    await fetch();
    await expectContent();
  });

  it('from a server without ranges starts over', async () => {
    knowsRanges = false;
    cuts = [HALF];
    await fetch();
    await expectContent();
    expect(asked).toHaveLength(2);
  });

  it('from a server without ranges that always breaks off at the same place ends', async () => {
    vi.mocked(pause).mockResolvedValue();
    knowsRanges = false;
    cuts = Array<number>(20).fill(HALF);
    await expect(fetch()).rejects.toMatchObject({ reason: 'ImageFetchFailed' });
    expect(asked.length).toBeLessThan(20);
  });

  it('that breaks off often, but gets further, is complete in the end', async () => {
    vi.mocked(pause).mockResolvedValue();
    current = randomBytes(3 * BYTES);
    cuts = Array<number>(20).fill(1.5 * 1024 ** 2);
    await fetch(createHash('sha256').update(current).digest('hex'));
    expect(asked.length).toBeGreaterThan(6);
  });

  it('that changes on the way starts over, is refused as DigestMismatch, and leaves nothing', async () => {
    cuts = [HALF];
    // The server sends half of the old content before it has the new one.
    server.once('request', () => {
      current = randomBytes(BYTES);
      etag = '"two"';
    });
    await expect(fetch()).rejects.toMatchObject({ reason: 'DigestMismatch' });
    expect(asked).toEqual([' | ', expect.stringMatching(/^bytes=\d+- \| "one"$/)]);
    expect(sentBytes, 'all of the new content').toBe(HALF + BYTES);
    expect(await readdir(folder)).toEqual([]);
  });

  it('that fails keeps its bytes for the next attempt', async () => {
    cuts = [HALF];
    // The server sends its first answer before it begins to refuse.
    server.once('request', () => (refuses = true));
    await expect(fetch()).rejects.toMatchObject({
      reason: 'ImageFetchFailed',
      message: expect.stringContaining(url) as string,
    });
    const kept = await readFile(path);
    expect(kept.length).toBeGreaterThan(0);
    expect(kept.equals(content.subarray(0, kept.length))).toBe(true);
    refuses = false;
    await fetch();
    expect(asked.at(-1)).toBe(`bytes=${kept.length}- | "one"`);
    await expectContent();
  });

  it('that no caller waits for ends with the reason', async () => {
    const abort = new AbortController();
    const fetching = fetch(sha256, abort.signal);
    abort.abort(new Error('deleted'));
    await expect(fetching).rejects.toThrow('deleted');
  });
});
