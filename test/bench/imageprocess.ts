/**
 * Runs one measurement of images in a process of its own, so that memory and CPU time are those of the measurement:
 *
 *     node imageprocess.js pull|publish|ceiling|disk '{"host": …}'
 *
 * `pull` and `publish` are the agent's own code. `ceiling` fetches the blobs of the artifact over TLS, hashes and decodes as many at a time
 * as a pull, and throws them away. `disk` writes as many bytes as a pull, in the same way, with data that cannot be compressed. It prints
 * an Outcome as JSON.
 */
import '../../base/heap.ts';
import { createHash, randomFillSync } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { mkdir, stat, truncate, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { zstdDecompress } from 'node:zlib';
import { pino } from 'pino';
import { Registry } from 'prom-client';
import { type Dispatcher, Pool } from 'undici';
import { DirectFile } from '../../agent/disks/diskio.ts';
import { HostImageStore } from '../../agent/images/store.ts';
import { Publisher } from '../../agent/images/publisher.ts';
import { Keyring } from '../../agent/images/oci/credentials.ts';
import { peakMegabytes } from './measure.ts';
import { RUN_BYTES } from './testdisk.ts';

/** Number of blobs at the same time, as in the agent. */
const AT_ONCE = 4;
/** Size of the largest chunk of a disk of this size. */
const CHUNK_BYTES = 16 * 1024 * 1024;
const STAT_BLOCK_BYTES = 512;
const MANIFEST = 'application/vnd.oci.image.manifest.v1+json';

export interface Errand {
  /** Host of the registry. */
  host: string;
  caFile: string;
  /** Repository below the host. */
  repository: string;
  /** Data directory of an agent that only this process uses. */
  dataDirectory: string;
  /** Path of the raw disk to publish. */
  disk: string;
  virtualBytes: number;
  /** Number of bytes with data. */
  dataBytes: number;
}

export interface Outcome {
  seconds: number;
  /** Largest memory of this process, in MB of 1024². */
  peakMegabytes: number;
  /** Number of bytes that were written to the disk or thrown away. */
  bytes: number;
}

type Work = (errand: Errand) => Promise<number>;

const { signal } = new AbortController();

async function openStore({ dataDirectory, host, caFile }: Errand): Promise<HostImageStore> {
  return await HostImageStore.open({
    dataDirectory,
    architecture: 'amd64',
    sharedRoots: [],
    allowLoopbackHttp: false,
    registries: [{ host, caFile }],
    minimumFree: 0,
    metrics: new Registry(),
    logger: pino({ level: 'silent' }),
  });
}

async function pull(errand: Errand): Promise<number> {
  const store = await openStore(errand);
  const source = { type: 'registry' as const, reference: `${errand.host}/${errand.repository}:latest` };
  const onProgress = (): void => undefined;
  const { path } = await store.ensure(source, {
    holder: 'machine/bench',
    tenant: 'team',
    onProgress,
    onWait: () => undefined,
    signal,
  });
  await store.registries.close();
  return (await stat(path)).blocks * STAT_BLOCK_BYTES;
}

async function publish(errand: Errand): Promise<number> {
  const { registries } = await openStore(errand);
  const publisher = new Publisher({ registries, storageFolder: undefined });
  const { storageBytes } = await publisher.push(
    { reference: `${errand.host}/${errand.repository}:latest`, keyring: Keyring.parse([]) },
    { path: errand.disk, virtualSizeBytes: errand.virtualBytes, architecture: 'amd64' },
    { signal, onProgress: () => undefined },
  );
  await registries.close();
  return storageBytes;
}

async function ceiling({ host, caFile, repository }: Errand): Promise<number> {
  const connect = { ca: readFileSync(caFile, 'utf8') };
  const pool = new Pool(`https://${host}`, { connect, connections: AT_ONCE, allowH2: false });
  const get = async (path: string, headers = {}): Promise<Dispatcher.ResponseData> =>
    await pool.request({ method: 'GET', path: `/v2/${repository}/${path}`, headers });
  const { body } = await get('manifests/latest', { accept: MANIFEST });
  const { layers } = (await body.json()) as { layers: { digest: string; size: number }[] };
  const left = layers.values();
  const decode = promisify(zstdDecompress);
  let bytes = 0;
  const work = async (): Promise<void> => {
    for (const { digest, size } of left) {
      const compressed = Buffer.allocUnsafe(size);
      const hash = createHash('sha256');
      let length = 0;
      const blob = await get(`blobs/${digest}`);
      for await (const piece of blob.body as AsyncIterable<Buffer>) {
        length += piece.copy(compressed, length);
        hash.update(piece);
      }
      if (`sha256:${hash.digest('hex')}` !== digest) {
        throw new Error(`${digest} came wrong`);
      }
      const raw = await decode(compressed, { chunkSize: CHUNK_BYTES + 1 });
      createHash('sha256').update(raw).digest();
      bytes += raw.length;
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  await pool.close();
  return bytes;
}

/**
 * Writes past the page cache, with as many pieces at a time as a pull and with the holes of the test disk, until everything is on the disk.
 */
async function disk({ dataDirectory, virtualBytes, dataBytes }: Errand): Promise<number> {
  const path = join(dataDirectory, 'disk');
  await mkdir(dataDirectory, { recursive: true });
  await writeFile(path, '');
  await truncate(path, virtualBytes);
  const direct = await DirectFile.open(path, { count: AT_ONCE, bytes: CHUNK_BYTES });
  if (direct === undefined) {
    throw new Error(`${dataDirectory} takes no writes past the page cache`);
  }
  let written = 0;
  const work = async (room: Buffer): Promise<void> => {
    while (written < dataBytes) {
      const position = Math.floor(written / RUN_BYTES) * RUN_BYTES + written;
      written += room.length;
      await direct.file.write(room, 0, room.length, position);
    }
  };
  await Promise.all(direct.rooms.map((room) => work(randomFillSync(room))));
  await direct.file.datasync();
  await direct.close();
  return written;
}

const WORKS: Readonly<Record<string, Work>> = { pull, publish, ceiling, disk };

if (import.meta.main) {
  const [name = '', errand = ''] = process.argv.slice(2);
  const work = WORKS[name];
  if (work === undefined) {
    throw new Error(`there is no work "${name}"`);
  }
  const began = performance.now();
  const bytes = await work(JSON.parse(errand) as Errand);
  const seconds = (performance.now() - began) / 1000;
  const outcome: Outcome = { seconds, bytes, peakMegabytes: peakMegabytes(process.pid) };
  process.stdout.write(`${JSON.stringify(outcome)}\n`);
}
