/** Lists of a stand-in for the API server that makes its objects while it sends them. */
import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { Registry } from 'prom-client';
import { afterEach, beforeEach, expect, it } from 'vitest';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { KubeClient } from '../../kube/client.ts';
import { Transport } from '../../kube/transport.ts';
import { VMS } from '../resources.ts';
import { listAs, listWithShared } from './list.ts';

const MEBIBYTE = 1024 * 1024;

/** Objects of the stand-in: their number by namespace, and the length of the annotation of each. */
let objects: { count: Record<string, number>; annotation: number };
/** Queries of the lists. */
let queries: string[];
let held: Promise<void> | undefined;
let server: Server;
let transport: Transport;
let client: KubeClient;

beforeEach(async () => {
  objects = { count: { one: 3 }, annotation: 10 };
  queries = [];
  held = undefined;
  server = createServer((request, response) => void answer(request, response)).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  transport = new Transport({ server: `http://127.0.0.1:${port}` }, { metrics: new Registry() });
  client = new KubeClient(transport);
});

afterEach(async () => {
  await transport.close();
  server.closeAllConnections();
  server.close();
});

async function answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
  const { pathname, search, searchParams } = new URL(request.url ?? '', 'http://localhost');
  const namespace = /namespaces\/([^/]+)/.exec(pathname)?.[1] ?? '';
  queries.push(`${namespace}${search}`);
  await held;
  const count = objects.count[namespace] ?? 0;
  const first = Number(searchParams.get('continue') ?? 0);
  const end = Math.min(count, first + Number(searchParams.get('limit') ?? count));
  const metadata = end < count ? { continue: String(end) } : {};
  response.setHeader('content-type', 'application/json');
  // A client that has read enough closes the connection.
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
const namesOf = (items: readonly { name: string }[]) => items.map(({ name }) => name);

it('reads a whole list, and one page with a limit', async () => {
  const whole = await listAs(client, VMS, { namespace: 'one', labelSelector: 'a=b' }, nameOf);
  expect(whole).toEqual({ items: [{ name: 'vm-0' }, { name: 'vm-1' }, { name: 'vm-2' }] });
  const page = await listAs(client, VMS, { namespace: 'one', limit: 1, continue: '1' }, nameOf);
  expect(page).toEqual({ items: [{ name: 'vm-1' }], continue: '2' });
  expect(queries).toEqual(['one?labelSelector=a%3Db', 'one?limit=1&continue=1']);
});

it('keeps the place of a page whose objects are left out', async () => {
  const some = (vm: VM) => (vm.metadata.name === 'vm-0' ? undefined : nameOf(vm));
  const page = await listAs(client, VMS, { namespace: 'one', limit: 2 }, some);
  expect(page).toEqual({ items: [{ name: 'vm-1' }], continue: '2' });
});

it('adds the objects of the default namespace whose names are free', async () => {
  objects.count = { one: 1, shared: 3 };
  const items = await listWithShared(client, VMS, { namespace: 'one' }, 'shared', nameOf);
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
  const { items } = await listAs(client, VMS, { namespace: 'one' }, (vm) => {
    seen += 1;
    most = seen % 50 === 1 ? Math.max(most, used() - before) : most;
    return nameOf(vm);
  });
  expect(items).toHaveLength(1_000);
  const whole = 1_000 * 64 * 1024;
  expect(most / whole).toBeLessThan(1 / 4);
});

it('refuses a list whose items are too large', async () => {
  objects = { count: { one: 17 }, annotation: 2 * MEBIBYTE };
  const whole = listAs(client, VMS, { namespace: 'one' }, ({ metadata }) => metadata.annotations);
  await expect(whole).rejects.toMatchObject({ status: 422 });
});

it('reads few lists at once, and refuses callers when too many wait', async () => {
  const open = Promise.withResolvers<void>();
  held = open.promise;
  const read = async () => await listAs(client, VMS, { namespace: 'one' }, nameOf);
  const accepted = Array.from({ length: 8 + 256 }, read);
  await expect(read()).rejects.toMatchObject({ status: 429 });
  expect(queries.length).toBeLessThanOrEqual(8);
  open.resolve();
  const answers = await Promise.all(accepted);
  expect(answers.every(({ items }) => items.length === 3)).toBe(true);
});
