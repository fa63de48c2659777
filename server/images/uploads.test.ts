import { once } from 'node:events';
import type { ServerResponse } from 'node:http';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';
import { PassThrough, Readable } from 'node:stream';
import { pino } from 'pino';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { IMAGE_UID_LABEL } from '../../api/v1alpha1/names.ts';
import { IMAGES } from '../../api/v1alpha1/resources.ts';
import type { StoredContent } from '../../api/http/imageitem.ts';
import type { Pod } from '../../kube/core.ts';
import { ApiError } from '../../kube/errors.ts';
import type { Caller } from '../callers/caller.ts';
import { WaitingRequests } from '../http/waiting.ts';
import { Uploads } from './uploads.ts';

const NAMESPACE = 'platform-ci';
const CAUSE = { lastTransitionTime: '2026-01-01T00:00:00Z', observedGeneration: 1 };

/** Number of bytes that the host gets for the default file, including the end of the transfer. */
const SENT_BYTES = 4 + 'content'.length + 4 + 32;

/** A host that answers as soon as it has the whole file. */
let host: Server;
let answer: string;
let response: PassThrough;
let waiting: WaitingRequests;
/** State of the object for the caller. */
let status: object;
let pods: Pod[];
let created: StoredContent[];
let deleted: unknown[];
let upgraded: string[];
/** Refusal of the connection to the host. */
let refusal: ApiError | undefined;
let mayCreate: boolean;
/** Facts that the operator has published. */
let info: Record<string, string>;
/** Whether an object of the name exists already. */
let isTaken: boolean;
/** Number of bodies whose texts were read. */
let reads: number;

beforeEach(async () => {
  host = createServer((socket: Socket) => {
    socket.on('error', () => undefined);
    socket.on('data', () => {
      if (socket.bytesRead === SENT_BYTES) {
        socket.end(answer);
      }
    });
  }).listen(0, '127.0.0.1');
  await once(host, 'listening');
  answer = '{}';
  response = Object.assign(new PassThrough(), { setTimeout: () => undefined });
  waiting = new WaitingRequests(2);
  status = { phase: 'Pulling' };
  pods = [task('task', 'Job')];
  created = [];
  deleted = [];
  upgraded = [];
  refusal = undefined;
  mayCreate = true;
  info = {};
  isTaken = false;
  reads = 0;
});

afterEach(() => host.close());

function task(name: string, kind: string): Pod {
  const ownerReferences = [{ apiVersion: 'v1', kind, name: 'owner', uid: 'o', controller: true }];
  const metadata = { name, namespace: NAMESPACE, ownerReferences };
  return { apiVersion: 'v1', kind: 'Pod', metadata, spec: { containers: [] }, status: { phase: 'Running' } };
}

function stalled(reason: string, message: string): object {
  return { phase: 'Failed', conditions: [{ ...CAUSE, type: 'Stalled', status: 'True', reason, message }] };
}

/** A caller whose API server has one object, and the Pods. */
function caller(): Caller {
  const object = () => ({ ...created[0], status });
  const client = {
    username: async () => 'dev@berth.test',
    create: async ({ kind }: { kind: string }, made: StoredContent) => {
      if (kind === 'SelfSubjectAccessReview') {
        return { status: { allowed: mayCreate } };
      }
      if (isTaken) {
        throw new ApiError('desktop already exists', { status: 409, reason: 'AlreadyExists' });
      }
      created.push({ ...made, metadata: { ...made.metadata, uid: 'u', resourceVersion: '1' } });
      return created[0];
    },
    get: async () => ({ data: info }),
    list: async (_: unknown, { labelSelector }: { labelSelector: string }) => ({
      items: labelSelector === `${IMAGE_UID_LABEL}=u` ? pods : [],
    }),
    delete: async (_: unknown, ref: object, { uid }: { uid: string }) => deleted.push({ ...ref, uid }),
    transport: {
      upgrade: async (path: string) => {
        upgraded.push(path);
        if (refusal !== undefined) {
          throw refusal;
        }
        return connect((host.address() as AddressInfo).port, '127.0.0.1');
      },
    },
  };
  const stream = async (_: string, signal: AbortSignal) =>
    (async function* () {
      yield Buffer.from(`${JSON.stringify({ type: 'MODIFIED', object: object() })}\n`);
      await once(signal, 'abort');
      throw signal.reason;
    })();
  return { client, watches: { stream } } as unknown as Caller;
}

async function upload(file: AsyncIterable<Buffer> = Readable.from([Buffer.from('content')])) {
  const read = async () => {
    reads += 1;
    return { name: 'desktop', description: 'for CI', architecture: undefined, sha256: undefined, file };
  };
  const target = { type: IMAGES, namespace: NAMESPACE, systemNamespace: 'berth-system' };
  const request = { ...target, caller: caller(), bytes: 5_000_000, read };
  const uploads = new Uploads(waiting, pino({ level: 'silent' }));
  return await uploads.upload(request, response as unknown as ServerResponse);
}

const GONE = [{ name: 'desktop', namespace: NAMESPACE, uid: 'u' }];

it('a file goes to the task of its object, which announces the size of the body', async () => {
  expect(await upload()).toMatchObject({ metadata: { name: 'desktop' } });
  expect(created[0]?.spec).toMatchObject({
    description: 'for CI',
    source: { upload: { maxSize: 5_000_000 } },
  });
  expect(upgraded).toEqual([
    `/api/v1/namespaces/${NAMESPACE}/pods/task/attach?container=task&stdin=true&stdout=true`,
  ]);
  expect(deleted).toEqual([]);
});

it('a caller without the right to create the object takes no place, and its body is not read', async () => {
  mayCreate = false;
  await expect(upload()).rejects.toMatchObject({ body: { code: 403 } });
  expect([reads, waiting.size]).toEqual([0, 0]);
});

it('without image storage nothing is made, and the body is not read', async () => {
  info = { hasImageStorage: 'false' };
  await expect(upload()).rejects.toMatchObject({ kind: 'unsupported' });
  expect([created, reads]).toEqual([[], 0]);
});

it('an object that has the name already stays, and gets no file', async () => {
  isTaken = true;
  await expect(upload()).rejects.toMatchObject({ status: 409, reason: 'AlreadyExists' });
  expect([upgraded, deleted]).toEqual([[], []]);
});

it('a Pod that a host made does not get the file', async () => {
  pods = [task('mirror', 'Node'), task('task', 'Job')];
  await upload();
  expect(upgraded[0]).toContain('/pods/task/attach');
});

it.each([
  ['NoImageStorage', 501],
  ['SourceUnsupported', 501],
  ['UploadFailed', 503],
])('an object that is Stalled by %s is deleted, and the answer is %i', async (reason, code) => {
  status = stalled(reason, 'The cause');
  const message = 'The cause. Image desktop was deleted';
  await expect(upload()).rejects.toMatchObject({ body: { code, message } });
  expect(deleted).toEqual(GONE);
});

it.each([
  ['{"reason":"DigestMismatch","message":"The cause"}', 422, 'The cause'],
  ['{"reason":"ImageInvalid","message":"The cause"}', 422, 'The cause'],
  ['{"reason":"DiskFull","message":"The cause"}', 503, 'The cause'],
  ['', 503, 'The host ended the transfer without an answer'],
])('an object whose host answers %j is deleted, and the answer is %i', async (text, code, cause) => {
  answer = text;
  const message = expect.stringContaining(`${cause}. Image desktop was deleted`) as string;
  await expect(upload()).rejects.toMatchObject({ body: { code, message } });
  expect(deleted).toEqual(GONE);
});

it.each([
  [200, 503],
  [400, 503],
  [404, 503],
  [403, 403],
])(
  'an object whose host refuses the connection with %i is deleted, and the answer is %i',
  async (status, code) => {
    refusal = new ApiError('The cause', { status, reason: '' });
    const message = expect.stringMatching(/The cause\. Image desktop was deleted/) as string;
    await expect(upload()).rejects.toMatchObject({ body: { code, message } });
    expect(deleted).toEqual(GONE);
  },
);

it.each(['gone', 'stopping'])('an object whose upload ends because of %s is deleted', async (why) => {
  const file = (async function* () {
    yield Buffer.from('');
    void (why === 'gone' ? response.destroy() : waiting.stop());
    await new Promise(() => undefined);
  })();
  const ended = upload(file);
  await expect(ended).rejects.toMatchObject({ body: { code: 503 } });
  response.destroy();
  expect(deleted).toEqual(GONE);
});
