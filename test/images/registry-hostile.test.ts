/**
 * Registries that lie, redirect, are busy, or do less than the specification. They are stand-ins, because no real registry does so on
 * demand.
 */
import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import {
  createServer as createHttpServer,
  type IncomingMessage,
  type Server,
  type ServerResponse,
} from 'node:http';
import { createServer } from 'node:https';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { Registries, type Repository } from '../../agent/images/oci/repository.ts';
import type { Credential } from '../../agent/images/oci/credentials.ts';
import type { Descriptor } from '../../agent/images/oci/manifests.ts';
import { serverCertificate, testAuthority } from '../wires/registry.ts';

const OCI_MANIFEST = 'application/vnd.oci.image.manifest.v1+json';
const OCI_INDEX = 'application/vnd.oci.image.index.v1+json';
const CREDENTIAL: Credential = { type: 'password', username: 'somebody', password: 'secret-of-somebody' };
const { signal } = new AbortController();

type Answer = (request: IncomingMessage, response: ServerResponse) => void;

describe('a registry that', () => {
  const content = randomBytes(100_000);
  const blob = describeContent(content);
  const manifest = Buffer.from(
    JSON.stringify({ schemaVersion: 2, mediaType: OCI_MANIFEST, config: blob, layers: [blob] }),
  );
  const manifestDigest = describeContent(manifest).digest;
  let folder: string;
  let pair: { key: string; cert: string };
  let servers: Server[];
  let client: Registries;
  /** `METHOD path` of each request to each server, in order. */
  let asked: string[];

  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), 'berth-hostile-'));
    const authority = await testAuthority();
    pair = await serverCertificate(authority);
    await writeFile(join(folder, 'ca.crt'), authority.certificate);
  });

  afterAll(async () => await rm(folder, { recursive: true, force: true }));

  beforeEach(() => {
    servers = [];
    asked = [];
  });

  afterEach(async () => {
    await client.close();
    for (const server of servers) {
      server.closeAllConnections();
      server.close();
    }
  });

  function describeContent(bytes: Buffer): Descriptor {
    const digest = `sha256:${createHash('sha256').update(bytes).digest('hex')}`;
    return { mediaType: 'application/octet-stream', digest, size: bytes.length };
  }

  /** Starts a server with these answers, and returns its host. */
  async function serve(answer: Answer, tls = true): Promise<string> {
    const server = tls ? createServer(pair) : createHttpServer();
    server.on('request', (request: IncomingMessage, response: ServerResponse) => {
      asked.push(`${request.method} ${request.url}`);
      request.resume();
      answer(request, response);
    });
    servers.push(server);
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    return `127.0.0.1:${(server.address() as AddressInfo).port}`;
  }

  /** Opens a repository with all servers configured, except those in `except`. */
  function open(
    host: string,
    o: { credential?: Credential; except?: string[]; plain?: boolean } = {},
  ): Repository {
    const hosts = servers.map((server) => `127.0.0.1:${(server.address() as AddressInfo).port}`);
    const caFile = join(folder, 'ca.crt');
    const registries = hosts
      .filter((each) => o.except?.includes(each) !== true)
      .map((each) => ({ host: each, caFile, plainHttp: o.plain === true && each === host }));
    client = new Registries({ registries, allowLoopbackHttp: false });
    return client.repository({ registry: host, repository: 'team/image' }, o.credential);
  }

  async function whole(repository: Repository, start = 0): Promise<Buffer> {
    return await buffer(repository.stream(blob, { start, end: blob.size }, signal));
  }

  function sendManifest(response: ServerResponse, bytes: Buffer = manifest, type = OCI_MANIFEST): void {
    response.writeHead(200, { 'content-type': type, 'content-length': bytes.length }).end(bytes);
  }

  it.each([
    ['v1', manifestDigest],
    [manifestDigest, manifestDigest],
    [manifestDigest, undefined],
  ])('gives another manifest for %s, and says it is %s: DigestMismatch', async (reference, said) => {
    const host = await serve((_request, response) => {
      if (said !== undefined) {
        response.setHeader('docker-content-digest', said);
      }
      sendManifest(response, Buffer.concat([manifest, Buffer.from(' ')]));
    });
    await expect(open(host).resolve(reference, 'amd64', signal)).rejects.toMatchObject({
      reason: 'DigestMismatch',
      message: expect.stringContaining(manifestDigest) as string,
    });
  });

  it('returns another digest than requested: DigestMismatch', async () => {
    const host = await serve((_request, response) => {
      response.writeHead(200, { 'docker-content-digest': `sha256:${'a'.repeat(64)}` }).end();
    });
    await expect(open(host).head(manifestDigest, signal)).rejects.toMatchObject({ reason: 'DigestMismatch' });
  });

  it('returns no digests: they are computed', async () => {
    const host = await serve(({ method }, response) => {
      if (method === 'HEAD') {
        response.end();
      } else {
        sendManifest(response);
      }
    });
    await expect(open(host).head('v1', signal)).resolves.toBe(manifestDigest);
  });

  it.each([
    ['calls an image an index', manifest, OCI_INDEX, 'states the media type'],
    [
      'gives a manifest that is also an index',
      Buffer.from(`{"manifests":[],${manifest.toString().slice(1)}`),
      OCI_MANIFEST,
      'manifests',
    ],
    ['gives a page', Buffer.from('<html>'), OCI_MANIFEST, 'JSON'],
    ['gives a manifest without end', Buffer.alloc(6 * 1024 ** 2, ' '), OCI_MANIFEST, 'larger than'],
  ])('%s is ImageManifestInvalid', async (_name, bytes, type, message) => {
    const host = await serve((_request, response) => sendManifest(response, bytes, type));
    await expect(open(host).resolve('v1', 'amd64', signal)).rejects.toMatchObject({
      reason: 'ImageManifestInvalid',
      message: expect.stringContaining(message) as string,
    });
  });

  it('has indexes in indexes without end: ImageInvalid; an index without the architecture: ImageArchitectureMismatch', async () => {
    const platform = { os: 'linux', architecture: 'amd64' };
    const indexes: Buffer[] = [];
    let inner = describeContent(manifest);
    for (let depth = 0; depth < 6; depth += 1) {
      const index = { schemaVersion: 2, mediaType: OCI_INDEX, manifests: [{ ...inner, platform }] };
      indexes.push(Buffer.from(JSON.stringify(index)));
      inner = describeContent(indexes.at(-1) ?? manifest);
    }
    const host = await serve(({ url }, response) => {
      const found = indexes.find((each) => url?.endsWith(describeContent(each).digest) === true);
      sendManifest(response, found ?? indexes.at(-1), OCI_INDEX);
    });
    const repository = open(host);
    await expect(repository.resolve('v1', 'amd64', signal)).rejects.toMatchObject({ reason: 'ImageInvalid' });
    await expect(repository.resolve('v1', 'arm64', signal)).rejects.toMatchObject({
      reason: 'ImageArchitectureMismatch',
      message: expect.stringMatching(/no image for arm64; its images are for: linux\/amd64/) as string,
    });
  });

  it('has images for other systems: they are ignored', async () => {
    const other = { ...blob, platform: { os: 'windows', architecture: 'amd64' } };
    const own = { ...describeContent(manifest), platform: { os: 'darwin', architecture: 'amd64' } };
    const index = { schemaVersion: 2, mediaType: OCI_INDEX, manifests: [other, own] };
    const host = await serve(({ url }, response) => {
      if (url?.endsWith('/v1') === true) {
        sendManifest(response, Buffer.from(JSON.stringify(index)), OCI_INDEX);
      } else {
        sendManifest(response);
      }
    });
    await expect(open(host).resolve('v1', 'amd64', signal)).resolves.toMatchObject({
      digest: manifestDigest,
    });
  });

  it('redirects from https to http is refused', async () => {
    const plain = await serve((_request, response) => response.end(content), false);
    const host = await serve((_request, response) => {
      response.writeHead(307, { location: `http://${plain}/blob` }).end();
    });
    await expect(whole(open(host))).rejects.toMatchObject({
      reason: 'ImageFetchFailed',
      message: expect.stringContaining('https:// to http://') as string,
    });
    expect(asked).toHaveLength(1);
  });

  it('redirects in circles is given up', async () => {
    const host = await serve(({ url }, response) => response.writeHead(307, { location: url }).end());
    await expect(whole(open(host))).rejects.toMatchObject({ reason: 'ImageFetchFailed' });
    expect(asked).toHaveLength(6);
  });

  it('redirects to an address of the host is refused', async () => {
    const other = await serve((_request, response) => response.end(content));
    const host = await serve((_request, response) => {
      response.writeHead(307, { location: `https://${other}/blob` }).end();
    });
    await expect(whole(open(host, { except: [other] }))).rejects.toMatchObject({
      reason: 'ImageFetchFailed',
      message: expect.stringContaining('is not allowed for images') as string,
    });
    expect(asked).toHaveLength(1);
  });

  it('redirects to storage: the range is sent there, the password is not, and an expired address is requested again', async () => {
    const seen: (string | undefined)[] = [];
    const storage = await serve(({ url, headers }, response) => {
      seen.push(headers.authorization);
      if (url?.endsWith('number=1') === true) {
        response.writeHead(403).end('<Error>Request has expired</Error>');
        return;
      }
      const start = Number(/bytes=(\d+)-/.exec(headers.range ?? '')?.[1]);
      response.writeHead(206, { 'content-range': `bytes ${start}-${blob.size - 1}/${blob.size}` });
      response.end(content.subarray(start));
    });
    let given = 0;
    const host = await serve(({ headers }, response) => {
      if (headers.authorization === undefined) {
        response.writeHead(401, { 'www-authenticate': 'Basic realm="x"' }).end();
        return;
      }
      given += 1;
      response.writeHead(307, { location: `https://${storage}/blob?number=${given}` }).end();
    });
    const repository = open(host, { credential: CREDENTIAL });
    expect(await whole(repository, 50_000)).toEqual(content.subarray(50_000));
    expect(seen).toEqual([undefined, undefined]);
  });

  it('does not know ranges sends everything, and the needed part is used', async () => {
    const host = await serve((_request, response) => response.end(content));
    const repository = open(host);
    expect(await repository.servesRanges(blob, signal)).toBe(false);
    const part = repository.stream(blob, { start: 10_000, end: 20_000 }, signal);
    expect(await buffer(part)).toEqual(content.subarray(10_000, 20_000));
  });

  it.each([
    `bytes 0-99999/100000`,
    'bytes 50000-99999/100001',
    'bytes 50000-100000/100000',
    'pages 3',
    undefined,
  ])('answers with the range %s is not believed', async (range) => {
    const host = await serve((_request, response) => {
      response.writeHead(206, range === undefined ? {} : { 'content-range': range }).end(content);
    });
    await expect(whole(open(host), 50_000)).rejects.toMatchObject({ reason: 'ImageFetchFailed' });
    expect(asked).toHaveLength(1);
  });

  it('sends less than requested is asked for the rest', async () => {
    const host = await serve(({ headers }, response) => {
      const start = Number(/bytes=(\d+)-/.exec(headers.range ?? '')?.[1] ?? 0);
      const end = Math.min(start + 40_000, blob.size);
      response.writeHead(206, { 'content-range': `bytes ${start}-${end - 1}/${blob.size}` });
      response.end(content.subarray(start, end));
    });
    const repository = open(host);
    expect(await repository.servesRanges(blob, signal)).toBe(true);
    expect(await whole(repository, 1)).toEqual(content.subarray(1));
  });

  it.each([429, 503])('answers %i is asked again at the time in its answer', async (status) => {
    const at: number[] = [];
    const host = await serve((_request, response) => {
      at.push(performance.now());
      if (at.length === 1) {
        response.writeHead(status, { 'retry-after': '1' }).end();
      } else {
        sendManifest(response);
      }
    });
    await expect(open(host).resolve('v1', 'amd64', signal)).resolves.toMatchObject({
      digest: manifestDigest,
    });
    expect((at[1] ?? 0) - (at[0] ?? 0)).toBeGreaterThanOrEqual(990);
  });

  it('asks for a pause of an hour gets it', async () => {
    const host = await serve((_request, response) => {
      response.writeHead(429, { 'retry-after': '3600' });
      response.end('{"errors":[{"code":"TOOMANYREQUESTS","message":"rate exceeded"}]}');
    });
    await expect(open(host).head('v1', signal)).rejects.toMatchObject({ reason: 'ImageFetchFailed' });
    await expect(open(host).resolve('v1', 'amd64', signal)).rejects.toMatchObject({
      message: expect.stringMatching(/team\/image:v1.*429.*TOOMANYREQUESTS: rate exceeded/) as string,
    });
    expect(asked).toHaveLength(2);
  });

  it('breaks off each time is given up after six tries', async () => {
    const host = await serve((_request, response) => response.destroy());
    await expect(open(host).head('v1', signal)).rejects.toMatchObject({
      reason: 'ImageFetchFailed',
      message: expect.stringContaining(`${host}/team/image:v1`) as string,
    });
    expect(asked).toHaveLength(6);
  });

  it('sends an error text without end is cut off', async () => {
    const host = await serve((_request, response) => {
      response.writeHead(404, { 'content-type': 'application/json' });
      const more = (): void => void response.write(Buffer.alloc(65_536, 'x'), () => more());
      more();
    });
    await expect(open(host).resolve('v1', 'amd64', signal)).rejects.toMatchObject({
      reason: 'ImageNotFound',
    });
  });

  describe('names as its token server', () => {
    async function challenging(realm: string): Promise<string> {
      return await serve((_request, response) => {
        response.writeHead(401, { 'www-authenticate': `Bearer realm="${realm}",service="x"` }).end();
      });
    }

    it('a server without scopes is asked for the needed scope', async () => {
      const tokens = await serve((_request, response) => response.end('{"access_token":"x"}'));
      const host = await challenging(`https://${tokens}/token`);
      const repository = open(host);
      await expect(repository.head('v1', signal)).rejects.toMatchObject({ reason: 'ImageAccessDenied' });
      await expect(repository.putManifest('v1', OCI_MANIFEST, manifest, signal)).rejects.toMatchObject({
        reason: 'ImageAccessDenied',
      });
      const scopes = asked
        .filter((each) => each.startsWith('GET /token'))
        .map((each) => new URL(each.slice('GET '.length), 'https://host').searchParams.getAll('scope'));
      expect(scopes).toEqual([['repository:team/image:pull'], ['repository:team/image:pull,push']]);
    });

    it('one without TLS is refused', async () => {
      const plain = await serve((_request, response) => response.end('{"token":"x"}'), false);
      const host = await challenging(`http://${plain}/token`);
      await expect(open(host, { credential: CREDENTIAL }).head('v1', signal)).rejects.toMatchObject({
        reason: 'ImageFetchFailed',
        message: expect.stringContaining('https:// to http://') as string,
      });
      expect(asked).toHaveLength(1);
    });

    it('a service of this host is refused', async () => {
      const local = await serve((_request, response) => response.end('{"token":"x"}'));
      const host = await challenging(`https://${local}/token`);
      const repository = open(host, { credential: CREDENTIAL, except: [local] });
      await expect(repository.head('v1', signal)).rejects.toMatchObject({
        message: expect.stringContaining('is not allowed for images') as string,
      });
      expect(asked).toHaveLength(1);
    });

    it('a server that redirects is not followed', async () => {
      const third = await serve((_request, response) => response.end('{"token":"x"}'));
      const second = await serve((_request, response) => {
        response.writeHead(307, { location: `https://${third}/token` }).end();
      });
      const host = await challenging(`https://${second}/token`);
      const credential: Credential = { type: 'identityToken', token: 'secret-of-somebody' };
      await expect(open(host, { credential }).head('v1', signal)).rejects.toMatchObject({
        reason: 'ImageFetchFailed',
      });
      expect(asked).toEqual(['HEAD /v2/team/image/manifests/v1', 'POST /token']);
    });

    it('a server whose answer is no token: the answer is not shown', async () => {
      const tokens = await serve((_request, response) => response.end('{"jwt":"secret-token"}'));
      const host = await challenging(`https://${tokens}/token`);
      const error: unknown = await open(host, { credential: CREDENTIAL })
        .head('v1', signal)
        .catch((reason: unknown) => reason);
      expect(error).toMatchObject({ reason: 'ImageFetchFailed' });
      expect(String(error)).not.toContain('secret');
    });
  });

  it('is configured for plain http is used without TLS', async () => {
    const host = await serve((_request, response) => sendManifest(response), false);
    await expect(open(host, { plain: true }).resolve('v1', 'amd64', signal)).resolves.toBeDefined();
  });

  it('redirects an upload to another host: the password is not sent there', async () => {
    const seen: (string | undefined)[] = [];
    const storage = await serve(({ headers }, response) => {
      seen.push(headers.authorization);
      response.writeHead(201).end();
    });
    const host = await serve(({ method, headers }, response) => {
      if (headers.authorization === undefined) {
        response.writeHead(401, { 'www-authenticate': 'Basic realm="x"' }).end();
      } else if (method === 'HEAD') {
        response.writeHead(404).end();
      } else {
        response.writeHead(202, { location: `https://${storage}/upload?signed=a%2Fb` }).end();
      }
    });
    const upload = { digest: blob.digest, size: blob.size, content: () => content };
    await open(host, { credential: CREDENTIAL }).upload(upload, signal);
    expect(seen).toEqual([undefined]);
    expect(asked.at(-1)).toBe(`PUT /upload?signed=a%2Fb&digest=${encodeURIComponent(blob.digest)}`);
  });
});
