/** An upload in parts that breaks off: a stand-in, since the real registry forgets such an upload and has it made anew. */
import { createHash, type Hash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { Readable } from 'node:stream';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { Registries } from '../../agent/images/registry/client.ts';
import type { Repository } from '../../agent/images/registry/types.ts';

const MEBIBYTE = 1024 ** 2;
/** More than goes in one request. */
const PIECES = 136;
const { signal } = new AbortController();

describe('an upload in parts', () => {
  const piece = randomBytes(MEBIBYTE);
  const size = PIECES * MEBIBYTE;
  const digest = digestOf(PIECES);
  let server: Server;
  let client: Registries;
  let repository: Repository;
  let hash: Hash;
  let held: number;
  /** Good for one request each. */
  let location: number;
  let putDigest: string | undefined;
  /** Breaks the connection off when so many bytes have come. */
  let cutAt: number | undefined;
  /** Uploads that broke off are forgotten. */
  let forgets: boolean;
  let uploads: number;

  beforeEach(async () => {
    cutAt = undefined;
    forgets = false;
    uploads = 0;
    location = 0;
    putDigest = undefined;
    server = createServer((request, response) => {
      answer(request, response).catch(() => response.destroy());
    }).listen(0, '127.0.0.1');
    await once(server, 'listening');
    const host = `127.0.0.1:${(server.address() as AddressInfo).port}`;
    client = new Registries({ registries: [{ host, plainHttp: true }], allowLoopback: false });
    repository = client.repository({ registry: host, repository: 'large' }, undefined);
  });

  afterEach(async () => {
    await client.close();
    server.closeAllConnections();
    server.close();
  });

  function digestOf(pieces: number): string {
    const whole = createHash('sha256');
    for (let index = 0; index < pieces; index += 1) whole.update(piece);
    return `sha256:${whole.digest('hex')}`;
  }

  function tell(response: ServerResponse, status: number): void {
    location += 1;
    const range = held === 0 ? '0-0' : `0-${held - 1}`;
    response.writeHead(status, { location: `/upload/${location}`, range }).end();
  }

  async function answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const { method = '', url = '' } = request;
    if (method === 'HEAD') response.writeHead(404).end();
    else if (method === 'POST') {
      uploads += 1;
      held = 0;
      hash = createHash('sha256');
      tell(response, 202);
    } else if (method === 'PUT') {
      putDigest = new URL(url, 'http://host').searchParams.get('digest') ?? '';
      response.writeHead(putDigest === `sha256:${hash.digest('hex')}` ? 201 : 400).end();
    } else if (!url.startsWith(`/upload/${location}`)) response.writeHead(404).end();
    else if (method === 'GET') tell(response, 204);
    else await take(request, response);
  }

  async function take(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const [first, last] = String(request.headers['content-range']).split('-').map(Number);
    if (first !== held) {
      response.writeHead(416).end();
      return;
    }
    for await (const chunk of request as AsyncIterable<Buffer>) {
      hash.update(chunk);
      held += chunk.length;
      if (cutAt === undefined || held < cutAt) continue;
      cutAt = undefined;
      if (forgets) location += 1;
      response.destroy();
      return;
    }
    expect(held - 1).toBe(last);
    tell(response, 202);
  }

  function upload(pieces = PIECES): { done: Promise<void>; times: () => number } {
    let times = 0;
    const content = (): Readable => {
      times += 1;
      return Readable.from(Array.from({ length: pieces }, () => piece));
    };
    return { done: repository.upload({ digest, size, content }, signal), times: () => times };
  }

  it.each([3, 40.5])(
    'that breaks off after %d MiB goes on from what the registry holds',
    async (mebibytes) => {
      cutAt = mebibytes * MEBIBYTE;
      const { done, times } = upload();
      await done;
      expect(putDigest).toBe(digest);
      expect([times(), uploads]).toEqual([1, 1]);
    },
  );

  it('that the registry has forgotten is made anew', async () => {
    cutAt = 20 * MEBIBYTE;
    forgets = true;
    const { done, times } = upload();
    await done;
    expect(putDigest).toBe(digest);
    expect([times(), uploads]).toEqual([2, 2]);
  });

  it('of less than was said is refused', async () => {
    await expect(upload(PIECES - 1).done).rejects.toMatchObject({ reason: 'ImageFetchFailed' });
  });
});
