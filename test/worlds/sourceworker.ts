/**
 * A real image store in a network namespace of its own. In the namespace, all addresses belong to this machine and every
 * connection is counted. The test therefore sees each connection of the store. The name server also runs here, so that a name can
 * mean any address and change its meaning. The store runs in a process of its own, because Node cannot change its namespace. The
 * process prints the results as JSON.
 */
import { execFileSync } from 'node:child_process';
import { createSocket } from 'node:dgram';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import { mkdtempSync, realpathSync, rmSync, writeFileSync } from 'node:fs';
import { isIP } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { HostImageStore } from '../../agent/images/store.ts';
import type { MachineImageSource } from '../../api/v1alpha1/source.ts';
import { ensure, openStore } from './imagestores.ts';

/** One attempt: an address, and the way in which the store is led to the address. */
export interface SourceAttempt {
  address: string;
  way: (typeof WAYS)[number];
}

export interface SourceResult extends SourceAttempt {
  /** Reason and message of the store's failure. */
  reason: string;
  message: string;
  /** Number of connections that arrived at the address. */
  connections: number;
}

export interface SourceWork {
  addresses: string[];
  clusterCIDRs: string[];
  /** An address of an interface of this machine. */
  ownAddress: string;
}

const WAYS = [
  'http: literal',
  'http: name',
  'http: redirect',
  'http: rebound name',
  'registry: literal',
  'registry: name',
  'registry: redirect',
  'registry: realm',
  'registry: rebound name',
] as const;

const NAME_SERVER = '127.0.0.53';
/**
 * Addresses of a web server and of a registry to which the store may connect. The store has settings for the registry and none
 * for the web server.
 */
const FRONT = '10.0.0.2';
const REGISTRY = '10.0.0.3';
const PORT = 5000;
const DOMAIN = 'attack.test';
const TYPE_A = 1;
const TYPE_AAAA = 28;

/** Number of connections, by address in the kernel's spelling. */
const connections = new Map<string, number>();
/** Number of look-ups of each name, by name and type. */
const lookups = new Map<string, number>();

function prepare({ ownAddress }: SourceWork): void {
  const ip = (...parameters: string[]): void => void execFileSync('ip', parameters);
  ip('link', 'set', 'lo', 'up');
  ip('address', 'add', `${ownAddress}/32`, 'dev', 'lo');
  // Names are resolved to IPv6 only if an interface has an IPv6 address other than loopback.
  ip('address', 'add', '2001:db8:77::1/128', 'dev', 'lo');
  // All addresses belong to this machine, although its interfaces do not have them.
  ip('route', 'add', 'local', '0.0.0.0/0', 'dev', 'lo');
  ip('-6', 'route', 'add', 'local', '::/0', 'dev', 'lo');
}

/** Makes this process use the test's name server. No other process is affected, because this process has its own mounts. */
function useNameServer(folder: string): void {
  const file = join(folder, 'resolv.conf');
  writeFileSync(file, `nameserver ${NAME_SERVER}\n`);
  execFileSync('mount', ['--bind', file, realpathSync('/etc/resolv.conf')]);
}

/**
 * Returns a name for an address. `n-HEX.attack.test` means the address whose text is HEX. `r-…` means FRONT at the first look-up,
 * and the address afterwards.
 */
function nameOf(kind: 'n' | 'r', address: string, way: string): string {
  const label = Buffer.from(address).toString('hex');
  return `${kind}-${label.slice(0, 40)}.x${label.slice(40)}.${way.startsWith('http') ? 'h' : 'r'}.${DOMAIN}`;
}

async function serveNames(): Promise<void> {
  const socket = createSocket('udp4');
  socket.on('message', (query, from) => {
    const { labels, end } = questionOf(query);
    const type = query.readUInt16BE(end);
    const answer = addressFor(labels, type);
    const bytes = answer === undefined ? undefined : bytesOf(answer);
    const fits = bytes !== undefined && bytes.length === (type === TYPE_A ? 4 : 16);
    const header = Buffer.from(query.subarray(0, 12));
    header.writeUInt16BE(0x81_80, 2);
    header.writeUInt16BE(fits ? 1 : 0, 6);
    header.writeUInt32BE(0, 8);
    const record = Buffer.from([0xc0, 12, 0, type, 0, 1, 0, 0, 0, 0, 0, bytes?.length ?? 0]);
    const parts = [header, query.subarray(12, end + 4), ...(fits ? [record, bytes] : [])];
    socket.send(Buffer.concat(parts), from.port, from.address);
  });
  await new Promise<void>((resolve) => {
    socket.bind(53, NAME_SERVER, resolve);
  });
  socket.unref();
}

function questionOf(query: Buffer): { labels: string[]; end: number } {
  const labels: string[] = [];
  let at = 12;
  for (let length = query[at] ?? 0; length > 0; length = query[at] ?? 0) {
    labels.push(query.toString('latin1', at + 1, at + 1 + length));
    at += 1 + length;
  }
  return { labels, end: at + 1 };
}

function addressFor([first = '', second = '', ...rest]: string[], type: number): string | undefined {
  const address = Buffer.from(`${first.slice(2)}${second.slice(1)}`, 'hex').toString();
  const key = `${first}.${second}.${rest.join('.')} ${type}`;
  const seen = (lookups.get(key) ?? 0) + 1;
  lookups.set(key, seen);
  const now = first.startsWith('r-') && seen === 1 ? FRONT : address;
  return isIP(now) === (type === TYPE_AAAA ? 6 : 4) ? now : undefined;
}

function bytesOf(address: string): Buffer {
  if (isIP(address) === 4) {
    return Buffer.from(address.split('.').map(Number));
  }
  // A URL writes every IPv6 address in one short form without dots.
  const [head = '', tail] = new URL(`http://[${address}]`).hostname.slice(1, -1).split('::');
  const groups = (text: string): number[] =>
    text === '' ? [] : text.split(':').map((group) => Number.parseInt(group, 16));
  const [before, after] = [groups(head), groups(tail ?? '')];
  const all =
    tail === undefined
      ? before
      : [...before, ...Array<number>(8 - before.length - after.length).fill(0), ...after];
  return Buffer.from(all.flatMap((group) => [group >> 8, group & 255]));
}

async function serve(): Promise<void> {
  const server = createServer(answer);
  server.on('connection', ({ localAddress = '' }) => {
    connections.set(localAddress, (connections.get(localAddress) ?? 0) + 1);
  });
  // A registry uses TLS, which nothing here supports. FRONT closes the connection, and the store then tries again.
  server.on('clientError', (_error, socket) => {
    if ('localAddress' in socket && socket.localAddress === `::ffff:${FRONT}`) {
      socket.destroy();
    } else {
      socket.end('HTTP/1.1 400 Bad Request\r\n\r\n');
    }
  });
  await new Promise<void>((resolve) => {
    server.listen(PORT, '::', resolve);
  });
  server.unref();
}

/**
 * Answers a request. FRONT and REGISTRY redirect to the address in the request. All other addresses answer with content that the
 * store must never get.
 */
function answer(request: IncomingMessage, response: ServerResponse): void {
  const local = request.socket.localAddress?.replace('::ffff:', '');
  const { searchParams, pathname } = new URL(request.url ?? '', 'http://front');
  const host = Buffer.from(/to-([0-9a-f]+)/.exec(pathname)?.[1] ?? '', 'hex').toString();
  const target = searchParams.get('to') ?? host;
  response.setHeader('connection', 'close');
  if (pathname === '/rebind') {
    // The redirect leads to the same name again, over a new connection.
    response.writeHead(302, { location: '/again' }).end();
  } else if (local === FRONT && target !== '') {
    response.writeHead(302, { location: `http://${target}/disk` }).end();
  } else if (local === REGISTRY && pathname.includes('/realm')) {
    response
      .writeHead(401, { 'www-authenticate': `Bearer realm="http://${target}/token",service="x"` })
      .end();
  } else if (local === REGISTRY) {
    response.writeHead(307, { location: `http://${target}/manifest` }).end();
  } else {
    response.end('reached');
  }
}

function hostAndPort(address: string): string {
  return `${isIP(address) === 6 ? `[${address}]` : address}:${PORT}`;
}

function sourceOf({ address, way }: SourceAttempt): MachineImageSource {
  const target = hostAndPort(address);
  const hex = Buffer.from(target).toString('hex');
  const http = (url: string): MachineImageSource => ({ type: 'http', url, sha256: '0'.repeat(64) });
  const registry = (reference: string): MachineImageSource => ({ type: 'registry', reference });
  switch (way) {
    case 'http: literal':
      return http(`http://${target}/disk`);
    case 'http: name':
      return http(`http://${nameOf('n', address, way)}:${PORT}/disk`);
    case 'http: redirect':
      return http(`http://${FRONT}:${PORT}/?to=${encodeURIComponent(target)}`);
    case 'http: rebound name':
      return http(`http://${nameOf('r', address, way)}:${PORT}/rebind`);
    case 'registry: literal':
      return registry(`${target}/team/disk:1`);
    case 'registry: name':
      return registry(`${nameOf('n', address, way)}:${PORT}/team/disk:1`);
    case 'registry: redirect':
      return registry(`${REGISTRY}:${PORT}/to-${hex}/disk:1`);
    case 'registry: realm':
      return registry(`${REGISTRY}:${PORT}/realm/to-${hex}:1`);
    default:
      return registry(`${nameOf('r', address, way)}:${PORT}/team/disk:1`);
  }
}

async function attempt(
  store: HostImageStore,
  one: SourceAttempt,
): Promise<Omit<SourceResult, 'connections'>> {
  try {
    await ensure(store, sourceOf(one), `machine/${one.way} ${one.address}`);
    return { ...one, reason: 'none', message: 'an image' };
  } catch (error) {
    const reason = error instanceof Error && 'reason' in error ? String(error.reason) : 'not a ReasonedError';
    return { ...one, reason, message: String(error) };
  }
}

function arrivedAt(address: string): number {
  const written = isIP(address) === 4 ? `::ffff:${address}` : address;
  const wanted = bytesOf(written).toString('hex');
  let count = 0;
  for (const [local, number] of connections) {
    if (bytesOf(isIP(local) === 4 ? `::ffff:${local}` : local).toString('hex') === wanted) {
      count += number;
    }
  }
  return count;
}

async function run(work: SourceWork): Promise<SourceResult[]> {
  const folder = mkdtempSync(join(tmpdir(), 'berth-sources-'));
  try {
    prepare(work);
    useNameServer(folder);
    await serveNames();
    await serve();
    const { clusterCIDRs } = work;
    const registries = [{ host: `${REGISTRY}:${PORT}`, plainHttp: true }];
    const store = await openStore(folder, [], { allowLoopbackHttp: false, clusterCIDRs, registries });
    const attempts = work.addresses.flatMap((address) => WAYS.map((way) => ({ address, way })));
    const results: SourceResult[] = [];
    for (const one of attempts) {
      const before = arrivedAt(one.address);
      const result = await attempt(store, one);
      results.push({ ...result, connections: arrivedAt(one.address) - before });
    }
    await store.registries.close();
    return results;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

const work = JSON.parse(process.argv[2] ?? '') as SourceWork;
process.stdout.write(JSON.stringify(await run(work)));
