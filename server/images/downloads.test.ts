import { once } from 'node:events';
import type { ServerResponse } from 'node:http';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';
import { PassThrough } from 'node:stream';
import { buffer, text } from 'node:stream/consumers';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { IMAGE_UID_LABEL, OPERATION_LABEL } from '../../api/v1alpha1/names.ts';
import { IMAGES } from '../../api/v1alpha1/resources.ts';
import type { StoredContent } from '../../api/http/imageitem.ts';
import type { Pod } from '../../kube/core.ts';
import { ApiError } from '../../kube/errors.ts';
import type { Caller } from '../callers/caller.ts';
import { WaitingRequests } from '../http/waiting.ts';
import { Downloads, receiveFile } from './downloads.ts';

const NAMESPACE = 'platform-ci';
const NAMESPACES = { default: 'platform-default', system: 'berth-system', prefix: 'platform-' };
const REF = { namespace: NAMESPACE, name: 'desktop' };
const EARLIER = '2026-01-01T00:00:00.000Z';
const CONTENT = { type: 'storedFile' };
/** Limit of a wait. The default, 1 s, is too short on a busy machine. */
const WAIT = { timeout: 30_000 };

/** A host that sends the file to every caller. */
let host: Server;
let response: PassThrough;
let waiting: WaitingRequests;
let object: StoredContent;
/** Results of the downloads that the operator records, in this order. If there is no result, the Pod of the download runs. */
let results: ({ result: string; message?: string } | undefined)[];
let pods: Pod[];
let requests: number;
let refusals: number;
let mayPatch: boolean;
/** Facts that the operator has published. */
let info: Record<string, string>;

beforeEach(async () => {
  host = createServer((socket: Socket) => {
    socket.on('error', () => undefined);
    socket.end('{"bytes":7}\ncontent');
  }).listen(0, '127.0.0.1');
  await once(host, 'listening');
  response = Object.assign(new PassThrough(), { setTimeout: () => undefined });
  waiting = new WaitingRequests(2);
  object = {
    apiVersion: 'berth.dev/v1alpha1',
    kind: 'Image',
    metadata: { ...REF, uid: 'u', resourceVersion: '1', generation: 1 },
    spec: { source: {} },
    status: { phase: 'Ready', content: CONTENT },
  };
  results = [];
  pods = [task('task', 'Job')];
  requests = 0;
  refusals = 0;
  mayPatch = true;
  info = {};
});

afterEach(() => host.close());

function task(name: string, kind: string): Pod {
  const ownerReferences = [{ apiVersion: 'v1', kind, name: 'owner', uid: 'o', controller: true }];
  const metadata = { name, namespace: NAMESPACE, ownerReferences };
  return { apiVersion: 'v1', kind: 'Pod', metadata, spec: { containers: [] }, status: { phase: 'Running' } };
}

/** Writes the request of this time into the object, with its result if there is one. */
function requested(requestedAt: string, last?: (typeof results)[number]): void {
  const lastDownload = last && { requestedAt, ...last };
  object = {
    ...object,
    metadata: { ...object.metadata, generation: (object.metadata.generation ?? 0) + 1 },
    spec: { ...object.spec, download: { requestedAt } },
    status: { ...object.status, ...(lastDownload && { lastDownload }) },
  };
}

/** A caller whose API server has one object, whose operator works at once, and the Pods. */
function caller(): Caller {
  const made = pods;
  const client = {
    username: async () => 'dev@berth.test',
    create: async () => ({ status: { allowed: mayPatch } }),
    get: async ({ kind }: { kind: string }) => (kind === 'ConfigMap' ? { data: info } : object),
    mergePatch: async (_: unknown, _ref: unknown, patch: { spec: { download: { requestedAt: string } } }) => {
      requests += 1;
      // Two requests with the same time would count as one request.
      await new Promise((resolve) => setTimeout(resolve, 2));
      pods = made;
      requested(patch.spec.download.requestedAt, results.shift());
      return object;
    },
    list: async (_: unknown, { labelSelector }: { labelSelector: string }) => ({
      items: labelSelector === `${IMAGE_UID_LABEL}=u,${OPERATION_LABEL}=download` ? pods : [],
    }),
    transport: {
      upgrade: async (path: string) => {
        expect(path).toContain(`/namespaces/${NAMESPACE}/pods/task/attach?`);
        if (refusals > 0) {
          refusals -= 1;
          requested(EARLIER, { result: 'Succeeded' });
          pods = [];
          throw new ApiError('Pod task does not wait for a file', { status: 400, reason: '' });
        }
        return connect((host.address() as AddressInfo).port, '127.0.0.1');
      },
    },
  };
  const stream = async (_: string, signal: AbortSignal) =>
    (async function* () {
      for (let version = -1; !signal.aborted; ) {
        const { generation = 0 } = object.metadata;
        if (generation !== version) {
          version = generation;
          yield Buffer.from(`${JSON.stringify({ type: 'MODIFIED', object })}\n`);
        }
        await new Promise((resolve) => setImmediate(resolve));
      }
      throw signal.reason;
    })();
  return { client, watches: { stream } } as unknown as Caller;
}

async function download(): Promise<string> {
  const downloads = new Downloads(waiting);
  const request = { caller: caller(), type: IMAGES, ref: REF, namespaces: NAMESPACES };
  const found = await downloads.find(request);
  const { file } = await downloads.open(request, found, response as unknown as ServerResponse);
  return await text(file);
}

it('is requested, and comes from the task of the object, not from a Pod that a host made', async () => {
  pods = [task('mirror', 'Node'), task('task', 'Job')];
  expect(await download()).toBe('content');
  expect(requests).toBe(1);
});

it('of another caller is shared', async () => {
  requested(EARLIER);
  expect(await download()).toBe('content');
  expect(requests).toBe(0);
});

it('is requested again when that of another caller ends before the connection, or all its callers leave', async () => {
  requested(EARLIER);
  refusals = 1;
  results = [{ result: 'Failed', message: 'DownloadInterrupted: all left' }, undefined];
  expect(await download()).toBe('content');
  expect(requests).toBe(2);
});

it('that never begins ends after some requests', async () => {
  results = Array.from({ length: 9 }, () => ({ result: 'Succeeded' }));
  await expect(download()).rejects.toMatchObject({ body: { code: 503 } });
  expect(requests).toBe(5);
});

it.each([
  ['NoImageStorage', 501],
  ['ImageSourceUnsupported', 422],
  ['DiskFull', 503],
])('that failed by %s has the answer %i', async (reason, code) => {
  requested(EARLIER, { result: 'Failed', message: 'TaskFailed: an earlier failure counts for nobody' });
  results = [{ result: 'Failed', message: `${reason}: the cause: told` }];
  const body = { code, message: 'the cause: told', details: { causes: [{ reason }] } };
  await expect(download()).rejects.toMatchObject({ body });
});

it('needs the right to change the object', async () => {
  mayPatch = false;
  await expect(download()).rejects.toMatchObject({ body: { code: 403 } });
  expect(requests).toBe(0);
});

it('without image storage is refused before it is requested', async () => {
  info = { hasImageStorage: 'false' };
  await expect(download()).rejects.toMatchObject({ kind: 'unsupported' });
  expect(requests).toBe(0);
});

it('needs an object with content', async () => {
  object = { ...object, status: { phase: 'Pulling' } };
  await expect(download()).rejects.toMatchObject({ body: { code: 409 } });
  expect(requests).toBe(0);
});

it('ends when the client leaves, and its place is free again', async () => {
  pods = [];
  const ended = download();
  ended.catch(() => undefined);
  await vi.waitFor(() => expect(requests).toBe(1), WAIT);
  expect(waiting.size).toBe(1);
  response.destroy();
  await expect(ended).rejects.toMatchObject({ body: { code: 503 } });
  expect(waiting.size).toBe(0);
});

it('ends when the server stops, and its place is free again', async () => {
  pods = [];
  const ended = download();
  ended.catch(() => undefined);
  await vi.waitFor(() => expect(requests).toBe(1), WAIT);
  const stopped = waiting.stop();
  await expect(ended).rejects.toMatchObject({ body: { code: 503 } });
  response.destroy();
  await stopped;
  expect(waiting.size).toBe(0);
});

let connection: PassThrough;

beforeEach(() => {
  connection = new PassThrough();
});

/** Sends the pieces one after another, and then ends the connection. */
function send(...pieces: string[]): void {
  for (const piece of pieces) {
    connection.write(piece);
  }
  connection.end();
}

it.each([
  ['{"bytes":7}\n', 'content'],
  ['{"bytes":7}\ncon', 'tent'],
  ['{"by', 'tes":7}\nc', 'ontent'],
  ['{"bytes":7}\ncontent', ' and more than was announced'],
])('a file arrives whole, however its bytes are cut: %j', async (...pieces) => {
  send(...pieces);
  const { bytes, file } = await receiveFile(connection);
  expect([bytes, String(await buffer(file))]).toEqual([7, 'content']);
  expect(connection.destroyed).toBe(true);
});

it.each(['end', 'error'])('a connection that breaks off by its %s is never a shorter file', async (how) => {
  connection.write('{"bytes":7}\ncont');
  const { file } = await receiveFile(connection);
  const whole = buffer(file);
  whole.catch(() => undefined);
  void (how === 'end' ? connection.end() : connection.destroy(new Error('reset')));
  await expect(whole).rejects.toMatchObject({ body: { code: 503 } });
});

it('a host that refuses has the answer', async () => {
  send('{"reason":"DiskFull","message":"no room"}');
  const causes = [{ reason: 'DiskFull', message: 'no room' }];
  await expect(receiveFile(connection)).rejects.toMatchObject({
    body: { code: 503, message: 'no room', details: { causes } },
  });
});

it.each([
  ['nothing', ''],
  ['no JSON', 'x\n'],
  ['a negative number', '{"bytes":-1}\n'],
  ['a line without an end', 'x'.repeat(100_000)],
])('a host that sends %s is refused', async (_what, text) => {
  send(text);
  await expect(receiveFile(connection)).rejects.toMatchObject({ body: { code: 503 } });
});
