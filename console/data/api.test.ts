import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { Api } from './api.ts';

const never = new AbortController().signal;

/** A WebSocket of a browser whose other end is the test. */
class FakeSocket extends EventTarget {
  static readonly OPEN = 1;
  readonly url: string;
  readonly protocols: readonly string[];
  readonly sent: { start?: { id: number; path: string; resourceVersion: string }; stop?: number }[] = [];
  readyState = 0;
  binaryType = '';

  constructor(url: URL, protocols: readonly string[]) {
    super();
    this.url = url.href;
    this.protocols = protocols;
    sockets.push(this);
  }

  open(): void {
    this.readyState = FakeSocket.OPEN;
    this.dispatchEvent(new Event('open'));
  }

  send(text: string): void {
    this.sent.push(JSON.parse(text) as FakeSocket['sent'][number]);
  }

  close(): void {
    this.readyState = 3;
    this.dispatchEvent(new Event('close'));
  }

  /** Sends a piece of a watch. */
  piece(id: number, text: string): void {
    const bytes = new TextEncoder().encode(text);
    const data = new Uint8Array(bytes.length + 4);
    new DataView(data.buffer).setUint32(0, id);
    data.set(bytes, 4);
    this.dispatchEvent(new MessageEvent('message', { data: data.buffer }));
  }

  end(end: object): void {
    this.dispatchEvent(new MessageEvent('message', { data: JSON.stringify(end) }));
  }
}

let sockets: FakeSocket[];
/** Answer to the question why a WebSocket was refused. */
let refusal: { readonly status: number; readonly message: string };
const onSignedOut = vi.fn<() => void>();
let api: Api;

beforeEach(() => {
  vi.useFakeTimers();
  sockets = [];
  refusal = { status: 426, message: 'This path takes a WebSocket' };
  vi.stubGlobal('WebSocket', FakeSocket);
  vi.stubGlobal('location', { href: 'https://berth.example/console/' });
  vi.stubGlobal('fetch', async () => {
    const { status, message } = refusal;
    return await Promise.resolve(new Response(JSON.stringify({ message }), { status }));
  });
  onSignedOut.mockReset();
  api = new Api('token', onSignedOut);
});

afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

/** Begins a watch. Returns the promise of its first event. */
function watch(path: string, signal = never, onOpen = () => undefined) {
  const events = api.watch(path, '7', { signal, onOpen });
  const first = events.next();
  const failure = first.catch((error: unknown) => error);
  return { events, first, failure };
}

async function opened(): Promise<FakeSocket> {
  await vi.advanceTimersByTimeAsync(0);
  const socket = sockets.at(-1);
  if (socket === undefined) {
    throw new Error('there is no WebSocket');
  }
  socket.open();
  return socket;
}

it('all watches of a page share one WebSocket, whose token is in its protocols alone', async () => {
  const [vms, nodes] = [watch('vms'), watch('nodes')];
  const socket = await opened();
  expect(sockets).toHaveLength(1);
  expect(socket.url).toBe('wss://berth.example/console/watch');
  expect(socket.protocols).toEqual(['v1.watch.berth.dev', 'base64url.bearer.authorization.k8s.io.dG9rZW4']);
  expect(socket.sent).toEqual([
    { start: { id: 1, path: 'vms', resourceVersion: '7' } },
    { start: { id: 2, path: 'nodes', resourceVersion: '7' } },
  ]);
  socket.piece(2, '\n{"type":"ADDED","object":{"metadata":{"name":"b');
  socket.piece(1, '\n{"type":"BOOKMARK"}\n');
  socket.piece(2, 'ü"}}}\n');
  expect(await vms.first).toEqual({ done: false, value: { type: 'BOOKMARK' } });
  expect(await nodes.first).toMatchObject({ value: { object: { metadata: { name: 'bü' } } } });
  // A character can be cut between two pieces.
  const third = watch('servers');
  await vi.advanceTimersByTimeAsync(0);
  const bytes = new TextEncoder().encode('\n{"type":"ü"}\n');
  bytes.forEach((byte) => {
    const data = new Uint8Array([0, 0, 0, 3, byte]);
    socket.dispatchEvent(new MessageEvent('message', { data: data.buffer }));
  });
  expect(await third.first).toMatchObject({ value: { type: 'ü' } });
});

it('a watch is open when its first data has come, and not before', async () => {
  const onOpen = vi.fn<() => undefined>();
  const { first } = watch('vms', never, onOpen);
  const socket = await opened();
  await vi.advanceTimersByTimeAsync(1_000);
  expect(onOpen).not.toHaveBeenCalled();
  socket.piece(1, '\n{"type":"BOOKMARK"}\n');
  await first;
  expect(onOpen).toHaveBeenCalledOnce();
});

it('a watch that ends or is refused says so for itself alone', async () => {
  const [vms, nodes, servers] = [watch('vms'), watch('nodes'), watch('servers')];
  const socket = await opened();
  socket.end({ id: 1 });
  socket.end({ id: 2, code: 403, message: 'You may not watch nodes' });
  expect(await vms.first).toEqual({ done: true, value: undefined });
  expect(await nodes.failure).toMatchObject({ status: 403, message: 'You may not watch nodes' });
  socket.piece(3, '{"type":"ADDED"}\n');
  expect(await servers.first).toMatchObject({ value: { type: 'ADDED' } });
  expect(onSignedOut).not.toHaveBeenCalled();
});

it('a token that is no longer accepted signs the user out', async () => {
  const { failure } = watch('vms');
  (await opened()).end({ id: 1, code: 401, message: 'Unauthorized' });
  expect(await failure).toMatchObject({ status: 401 });
  expect(onSignedOut).toHaveBeenCalledOnce();
});

it('a watch that the page leaves is stopped, and the WebSocket is closed after the last one', async () => {
  const end = new AbortController();
  const [vms, nodes] = [watch('vms', end.signal), watch('nodes')];
  const socket = await opened();
  end.abort();
  expect(await vms.failure).toMatchObject({ name: 'AbortError' });
  expect(socket.sent.at(-1)).toEqual({ stop: 1 });
  socket.end({ id: 2 });
  await nodes.first;
  // A watch that has ended begins again soon.
  await vi.advanceTimersByTimeAsync(4_000);
  const again = watch('nodes');
  await vi.advanceTimersByTimeAsync(60_000);
  expect([sockets.length, socket.readyState]).toEqual([1, FakeSocket.OPEN]);
  socket.end({ id: 3 });
  await again.first;
  await vi.advanceTimersByTimeAsync(5_000);
  expect(socket.readyState).toBe(3);
});

it('a lost connection ends all watches, and the next watch opens another one', async () => {
  const [vms, nodes] = [watch('vms'), watch('nodes')];
  (await opened()).close();
  expect(await vms.failure).toBeInstanceOf(TypeError);
  expect(await nodes.failure).toBeInstanceOf(TypeError);
  const again = watch('vms');
  const socket = await opened();
  expect(sockets).toHaveLength(2);
  socket.end({ id: 1 });
  expect(await again.first).toMatchObject({ done: true });
});

it('watches without data for 90 seconds are given up, with their connection', async () => {
  const { events, first } = watch('vms');
  const socket = await opened();
  await vi.advanceTimersByTimeAsync(89_000);
  socket.piece(1, '\n{"type":"BOOKMARK"}\n');
  expect(await first).toMatchObject({ value: { type: 'BOOKMARK' } });
  const failure = events.next().catch((error: unknown) => error);
  await vi.advanceTimersByTimeAsync(89_000);
  expect(socket.readyState).toBe(FakeSocket.OPEN);
  await vi.advanceTimersByTimeAsync(2_000);
  expect(await failure).toBeInstanceOf(Error);
  expect(socket.readyState).toBe(3);
});

it.each([
  [403, 'You may not watch'],
  [429, '30 requests of user ann are already waiting'],
  [426, 'The connection could not be opened. A proxy before the server may not pass WebSockets on'],
])('a refused WebSocket tells the status %i and the message of the server', async (status, message) => {
  refusal = { status, message };
  const { failure } = watch('vms');
  await vi.advanceTimersByTimeAsync(0);
  sockets[0]?.close();
  expect(await failure).toMatchObject({ status, message });
});
