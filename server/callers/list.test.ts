/** Lists of a stand-in for the API server that makes its objects while it sends them. */
import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { Registry } from 'prom-client';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { Transport } from '../../kube/transport.ts';
import { VMS } from '../../api/v1alpha1/resources.ts';
import { CallerClient, Usernames } from './caller.ts';
import { listAs, listWithShared } from './list.ts';

const MEBIBYTE = 1024 * 1024;
/** Limit of a wait. The default, 1 s, is too short on a busy machine. */
const WAIT = { timeout: 30_000 };

/** Objects of the stand-in: their number by namespace, and the length of the annotation of each. */
let objects: { count: Record<string, number>; annotation: number };
/** Queries of the lists. */
let queries: string[];
/** Namespace whose lists wait for the promise. If it has no name, the lists of all namespaces wait. */
let held: { namespace: string | undefined; until: Promise<void> } | undefined;
let server: Server;
let transport: Transport;
let usernames: Usernames;
let caller: CallerClient;
/** Ends the requests of all callers that have not ended in another way. */
let end: AbortController;

beforeEach(async () => {
  objects = { count: { one: 3 }, annotation: 10 };
  queries = [];
  held = undefined;
  server = createServer((request, response) => void answer(request, response)).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  transport = new Transport({ server: `http://127.0.0.1:${port}` }, { metrics: new Registry() });
  usernames = new Usernames();
  end = new AbortController();
  caller = callerOf('ann');
});

afterEach(async () => {
  end.abort();
  await transport.close();
  server.closeAllConnections();
  server.close();
});

/** Returns a caller whose token is the name of the user. */
function callerOf(user: string, ended = end.signal): CallerClient {
  return new CallerClient(transport.as(user), user, usernames, ended);
}

/** Lets lists wait until the returned promise resolves. */
function hold(namespace?: string): PromiseWithResolvers<void> {
  const open = Promise.withResolvers<void>();
  held = { namespace, until: open.promise };
  return open;
}

/** Answers with the name of the caller. It refuses unknown callers. */
function answerName({ headers }: IncomingMessage, response: ServerResponse): void {
  const username = headers.authorization?.replace('Bearer ', '');
  response.writeHead(username === 'stranger' ? 401 : 201, { 'content-type': 'application/json' });
  response.end(JSON.stringify({ status: { userInfo: { username } } }));
}

async function answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
  const { pathname, search, searchParams } = new URL(request.url ?? '', 'http://localhost');
  if (request.method === 'POST') {
    answerName(request, response);
    return;
  }
  const namespace = /namespaces\/([^/]+)/.exec(pathname)?.[1] ?? '';
  queries.push(`${namespace}${search}`);
  if (held !== undefined && (held.namespace ?? namespace) === namespace) {
    await held.until;
  }
  const count = objects.count[namespace] ?? 0;
  const first = Number(searchParams.get('continue') ?? 0);
  const end = Math.min(count, first + Number(searchParams.get('limit') ?? count));
  const metadata = end < count ? { continue: String(end) } : {};
  response.setHeader('content-type', 'application/json');
  // The client closes the connection when it has read enough.
  await pipeline(Readable.from(listOf(first, end, metadata)), response).catch(() => undefined);
}

function* listOf(first: number, end: number, metadata: object): Generator<string> {
  yield `{"metadata":${JSON.stringify(metadata)},"items":[`;
  const annotations = { large: 'x'.repeat(objects.annotation) };
  for (let index = first; index < end; index += 1) {
    const object = { metadata: { name: `vm-${index}`, annotations }, spec: {} };
    yield (index === first ? '' : ',') + JSON.stringify(object);
  }
  yield ']}';
}

const nameOf = ({ metadata: { name } }: VM) => ({ name });
const annotationsOf = ({ metadata }: VM) => metadata.annotations;
const namesOf = (items: readonly { name: string }[]) => items.map(({ name }) => name);

it('reads a whole list, and one page with a limit', async () => {
  const whole = await listAs(caller, VMS, { namespace: 'one', labelSelector: 'a=b' }, nameOf);
  expect(whole).toEqual({ items: [{ name: 'vm-0' }, { name: 'vm-1' }, { name: 'vm-2' }] });
  const page = await listAs(caller, VMS, { namespace: 'one', limit: 1, continue: '1' }, nameOf);
  expect(page).toEqual({ items: [{ name: 'vm-1' }], continue: '2' });
  expect(queries).toEqual(['one?labelSelector=a%3Db', 'one?limit=1&continue=1']);
});

it('keeps the place of a page whose objects are left out', async () => {
  const some = (vm: VM) => (vm.metadata.name === 'vm-0' ? undefined : nameOf(vm));
  const page = await listAs(caller, VMS, { namespace: 'one', limit: 2 }, some);
  expect(page).toEqual({ items: [{ name: 'vm-1' }], continue: '2' });
});

it('adds the objects of the default namespace whose names are free', async () => {
  objects.count = { one: 1, shared: 3 };
  const items = await listWithShared(caller, VMS, { namespace: 'one' }, 'shared', nameOf);
  expect(namesOf(items)).toEqual(['vm-0', 'vm-1', 'vm-2']);
});

it('needs a fraction of the memory of large objects', async () => {
  objects = { count: { one: 1_000 }, annotation: 64 * 1024 };
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as () => void;
  const used = () => {
    collect();
    const { heapUsed, external } = process.memoryUsage();
    return heapUsed + external;
  };
  const before = used();
  let [seen, most] = [0, 0];
  const { items } = await listAs(caller, VMS, { namespace: 'one' }, (vm) => {
    seen += 1;
    most = seen % 50 === 1 ? Math.max(most, used() - before) : most;
    return nameOf(vm);
  });
  expect(items).toHaveLength(1_000);
  const whole = 1_000 * 64 * 1024;
  expect(most / whole).toBeLessThan(1 / 4);
});

it('refuses a list whose items are too large', async () => {
  objects = { count: { one: 5 }, annotation: 2 * MEBIBYTE };
  const whole = listAs(caller, VMS, { namespace: 'one' }, annotationsOf);
  await expect(whole).rejects.toMatchObject({ status: 422 });
});

it('holds the items of all lists within a limit until their answers are written', async () => {
  objects = { count: { one: 3 }, annotation: 2 * MEBIBYTE };
  const ends = ['ann', 'bob', 'cleo'].map(() => new AbortController());
  const [ann, bob, cleo] = ends.map(({ signal }, index) => callerOf(`user-${index}`, signal)) as [
    CallerClient,
    CallerClient,
    CallerClient,
  ];
  const read = async (by: CallerClient) => await listAs(by, VMS, { namespace: 'one' }, annotationsOf);
  await read(ann);
  await expect(read(ann)).rejects.toMatchObject({
    status: 429,
    message: expect.stringMatching(/user-0.*8388608 bytes/),
  });
  await read(bob);
  await expect(read(cleo)).rejects.toMatchObject({ status: 503 });
  ends[0]?.abort();
  await read(callerOf('user-3', ends[1]?.signal));
  ends.forEach((one) => one.abort());
});

it('reads few lists at once, and refuses callers when too many wait', async () => {
  const open = hold();
  const read = async (user: string) => await listAs(callerOf(user), VMS, { namespace: 'one' }, nameOf);
  const accepted = Array.from({ length: 8 + 256 }, async (_one, index) => await read(`user-${index % 4}`));
  await vi.waitFor(() => expect(queries).toHaveLength(8), WAIT);
  await expect(read('late')).rejects.toMatchObject({ status: 429 });
  expect(queries).toHaveLength(8);
  open.resolve();
  const answers = await Promise.all(accepted);
  expect(answers.every(({ items }) => items.length === 3)).toBe(true);
});

it('reads both lists of a namespace in one place', async () => {
  objects.count = { one: 1, shared: 1 };
  const open = hold('shared');
  const read = async () => await listWithShared(caller, VMS, { namespace: 'one' }, 'shared', nameOf);
  const lists = Array.from({ length: 40 }, read);
  await vi.waitFor(() => expect(queries.filter((query) => query === 'shared')).toHaveLength(8), WAIT);
  expect(queries.filter((query) => query === 'one')).toHaveLength(8);
  open.resolve();
  await Promise.all(lists);
});

it('leaves places to others when one user reads many lists', async () => {
  const open = hold();
  const read = async (user: string) => await listAs(callerOf(user), VMS, { namespace: 'one' }, nameOf);
  const accepted = Array.from({ length: 66 }, async () => await read('busy'));
  await vi.waitFor(() => expect(queries).toHaveLength(8), WAIT);
  await expect(read('busy')).rejects.toMatchObject({
    status: 429,
    message: expect.stringMatching(/^User busy has reached the limit of 66 requests for lists /),
  });
  const other = read('other');
  open.resolve();
  await Promise.all([...accepted, other]);
});

it('reads no list for strangers', async () => {
  const list = listAs(callerOf('stranger'), VMS, { namespace: 'one' }, nameOf);
  await expect(list).rejects.toMatchObject({ status: 401 });
  expect(queries).toEqual([]);
});

it('gives the places of clients that are gone to others', async () => {
  const open = hold();
  const gone = new AbortController();
  const read = async (end?: AbortSignal) =>
    await listAs(callerOf('busy', end), VMS, { namespace: 'one' }, nameOf);
  const [first, ...others] = [
    read(gone.signal),
    ...Array.from({ length: 64 }, async () => await read()),
    read(gone.signal),
  ];
  const last = others.pop();
  await vi.waitFor(() => expect(queries).toHaveLength(8), WAIT);
  const reason = new Error('gone');
  gone.abort(reason);
  await expect(first).rejects.toBe(reason);
  await expect(last).rejects.toBe(reason);
  const later = [read(), read()];
  open.resolve();
  await Promise.all([...others, ...later]);
});
