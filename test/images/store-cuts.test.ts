/**
 * Pulls that are cut by a registry that goes and returns, or by an agent that is killed. The tests count the bytes that are fetched again.
 */
import { spawn } from 'node:child_process';
import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, beforeEach, expect, it } from 'vitest';
import { ensure, keyringOf, openStore } from '../worlds/imagestores.ts';
import { startRegistry, type TestRegistry } from '../wires/registry.ts';
import { pushContainerDisk } from '../fixtures/vmimages.ts';
import { waitFor } from '../../hack/wait.ts';

const MEBIBYTE = 1024 ** 2;
const DISK_BYTES = 160 * MEBIBYTE;
/** Number of bytes after which the pull is cut. */
const CUT_BYTES = 100 * MEBIBYTE;
/** Largest number of bytes that are fetched twice: one unfinished part on each of four connections, and the overhead of TLS. */
const LOST_BYTES = 4 * 16 * MEBIBYTE + 0.03 * DISK_BYTES;
const SOON = { intervalMilliseconds: 2 };

/** Program with an agent's store. It gets its settings in the environment, and pulls until it is killed. */
const AGENT = `
  const { openStore, ensure } = await import(process.env.STORES);
  const { Keyring } = await import(process.env.CREDENTIALS);
  const registry = JSON.parse(process.env.REGISTRY);
  const store = await openStore(process.env.DATA, [registry]);
  await ensure(store, process.env.REFERENCE, 'machine/killed', { keyring: Keyring.parse([process.env.SECRET]) });
`;

let folder: string;
let registry: TestRegistry;
let reference: string;
let sha256: string;
let data: string;

async function digestOf(path: string): Promise<string> {
  return createHash('sha256')
    .update(await readFile(path))
    .digest('hex');
}

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-cuts-'));
  registry = await startRegistry({ directory: join(folder, 'registry') });
  const disk = join(folder, 'disk');
  await writeFile(disk, randomBytes(DISK_BYTES));
  sha256 = await digestOf(disk);
  reference = await pushContainerDisk(registry, 'team/large:1', disk, { encoding: 'zstd' });
  await rm(disk);
});

afterAll(async () => {
  await registry?.close();
  await rm(folder, { recursive: true, force: true });
});

beforeEach(async () => {
  data = await mkdtemp(join(folder, 'data-'));
});

afterEach(async () => {
  await rm(data, { recursive: true });
});

async function comeSince(received: number, bytes: number): Promise<void> {
  await waitFor(`${bytes} bytes to come`, () => registry.traffic.received - received > bytes, SOON);
}

/** Waits until the registry has sent nothing for half a second. */
async function untilQuiet(): Promise<void> {
  let last = -1;
  const isQuiet = (): boolean => {
    const { received } = registry.traffic;
    const isSame = received === last;
    last = received;
    return isSame;
  };
  await waitFor('the registry to be quiet', isQuiet, { intervalMilliseconds: 500 });
}

it('a registry that goes in the middle of a pull and returns: the pull continues', async () => {
  const store = await openStore(data, [registry]);
  const before = registry.traffic.received;
  const pulled = ensure(store, reference, 'machine/a', { keyring: keyringOf(registry) });
  await comeSince(before, CUT_BYTES);
  await registry.stop();
  await registry.restart();
  expect(await digestOf((await pulled).path)).toBe(sha256);
  // The pull continues also within a part.
  expect(registry.traffic.received - before).toBeLessThan(DISK_BYTES * 1.1);
});

it('an agent killed in the middle of a pull: its unfinished image is not used, and the next one fetches only the rest', async () => {
  const before = registry.traffic.received;
  const child = spawn(process.execPath, ['--input-type=module', '--eval', AGENT], {
    stdio: ['ignore', 'inherit', 'inherit'],
    env: {
      PATH: process.env['PATH'],
      STORES: join(import.meta.dirname, '..', 'worlds', 'imagestores.ts'),
      CREDENTIALS: join(import.meta.dirname, '..', '..', 'agent', 'images', 'oci', 'credentials.ts'),
      REGISTRY: JSON.stringify({ host: registry.host, caFile: registry.caFile }),
      DATA: data,
      REFERENCE: reference,
      SECRET: registry.dockerConfigJson(),
    },
  });
  const ended = once(child, 'exit');
  try {
    await comeSince(before, CUT_BYTES);
  } finally {
    child.kill('SIGKILL');
    await ended;
  }
  const store = await openStore(data, [registry]);
  expect(store.images()).toEqual([]);
  const { path } = await ensure(store, reference, 'machine/a', { keyring: keyringOf(registry) });
  expect(await digestOf(path)).toBe(sha256);
  expect(registry.traffic.received - before).toBeLessThan(DISK_BYTES + LOST_BYTES);
  expect(await readdir(join(data, 'images', 'partial'))).toEqual([]);
});

it('a machine that is deleted in the middle of a pull ends it, and the next pull continues it', async () => {
  const store = await openStore(data, [registry]);
  const before = registry.traffic.received;
  const keyring = keyringOf(registry);
  const gone = new AbortController();
  const asked = ensure(store, reference, 'machine/a', { keyring, signal: gone.signal });
  const pulled = asked.catch((error: unknown) => error);
  await comeSince(before, CUT_BYTES);
  const reason = new Error('deleted');
  gone.abort(reason);
  expect(await pulled).toBe(reason);
  // If the pull had not ended, it would become quiet only when it has fetched everything.
  await untilQuiet();
  expect(registry.traffic.received - before).toBeLessThan(DISK_BYTES);
  expect(await digestOf((await ensure(store, reference, 'machine/b', { keyring })).path)).toBe(sha256);
  expect(registry.traffic.received - before).toBeLessThan(DISK_BYTES + LOST_BYTES);
});
