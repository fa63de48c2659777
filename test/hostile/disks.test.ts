/** Disks from strangers: headers that name other files or claim content that does not exist, and archives that would unpack forever. */
import { execFile } from 'node:child_process';
import { chmod, mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { createServer, type Server } from 'node:net';
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import { promisify } from 'node:util';
import { gzipSync, zstdCompressSync } from 'node:zlib';
import * as fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { judgeQcow2 } from '../../agent/disks/qcow2.ts';
import type { HostImageStore } from '../../agent/images/store.ts';
import { publishDisk } from '../../agent/images/layouts/publish.ts';
import { readCompression, unpack, zstdDecoder } from '../../agent/disks/unpack.ts';
import { codeOf, reasonOf } from '../../base/errors.ts';
import { asReasonedError } from '../../agent/images/layouts/pull.ts';
import { ensure, openStore } from '../worlds/imagestores.ts';
import { pull, PullWorld } from '../worlds/pulls.ts';
import { containerImage, type ImageToPush, pushImage, tarOf } from '../fixtures/vmimages.ts';
import { hostileRuns, tried } from './support/attempts.ts';
import { EXTENSION, qcow2File, type Qcow2Fields } from '../fixtures/qcow2.ts';

const run = promisify(execFile);
const MIB = 1024 ** 2;
const { signal } = new AbortController();
const IS_ROOT = process.getuid?.() === 0;
/** User as which an agent with root reads images. */
const READER = { uid: 1_900_000_000, gid: 1_900_000_000 };

let root: string;

beforeAll(async () => {
  root = await mkdtemp(join(tmpdir(), 'berth-disks-'));
});

afterAll(async () => {
  await rm(root, { recursive: true });
});

/** Records the user and the command of each call of qemu-img, and then runs the real one. `calls` returns the records and removes them. */
class Programs {
  readonly #log: string;
  readonly #before = process.env['PATH'];

  private constructor(log: string) {
    this.#log = log;
  }

  static async watch(folder: string): Promise<Programs> {
    const bin = join(folder, 'bin');
    const watch = new Programs(join(folder, 'calls'));
    await mkdir(bin);
    await writeFile(watch.#log, '', { mode: 0o666 });
    await chmod(watch.#log, 0o666);
    const { stdout } = await run('sh', ['-c', 'command -v qemu-img']);
    const script = `#!/bin/sh\necho "$(id -u) $1" >> '${watch.#log}'\nexec ${stdout.trim()} "$@"\n`;
    await writeFile(join(bin, 'qemu-img'), script, { mode: 0o755 });
    await chmod(folder, 0o755);
    process.env['PATH'] = `${bin}${delimiter}${watch.#before}`;
    return watch;
  }

  async calls(): Promise<string[]> {
    const text = await readFile(this.#log, 'utf8');
    await writeFile(this.#log, '');
    return text.split('\n').filter((line) => line !== '');
  }

  end(): void {
    process.env['PATH'] = this.#before;
  }
}

/** A server at the address to which hostile files lead. It counts its visitors. */
class Canary {
  readonly #server: Server;
  visits = 0;
  port = 0;

  constructor() {
    this.#server = createServer((socket) => {
      this.visits += 1;
      socket.destroy();
    });
  }

  async listen(): Promise<void> {
    await new Promise<void>((resolve) => this.#server.listen(0, '127.0.0.1', resolve));
    const address = this.#server.address();
    this.port = typeof address === 'object' && address !== null ? address.port : 0;
  }

  close(): void {
    this.#server.close();
  }
}

describe('a qcow2 file', () => {
  const canary = new Canary();
  let programs: Programs;
  let shared: string;
  let store: HostImageStore;

  beforeAll(async () => {
    await canary.listen();
    programs = await Programs.watch(root);
    shared = join(root, 'shared');
    await mkdir(shared);
    const options = { sharedRoots: [shared], ...(IS_ROOT ? { reader: READER } : {}) };
    store = await openStore(join(root, 'data'), [], options);
  });

  afterAll(() => {
    canary.close();
    programs?.end();
  });

  /** Uses the content as the disk of an Image. Returns the reason of a refusal, or the size of the disk in bytes. */
  async function used(content: Buffer): Promise<{ refusal: string; message: string } | { bytes: number }> {
    await writeFile(join(shared, 'disk'), content);
    try {
      const image = await ensure(store, { type: 'sharedFile', path: 'disk' }, 'machine/hostile');
      return { bytes: image.virtualSizeBytes };
    } catch (error) {
      return { refusal: reasonOf(error) ?? 'none', message: String(error) };
    }
  }

  const nbd = (): string => `nbd://127.0.0.1:${canary.port}/x`;
  const json = (): string =>
    `json:{"driver":"nbd","server":{"type":"inet","host":"127.0.0.1","port":"${canary.port}"}}`;
  const name = (text: string): Buffer => Buffer.from(text);

  const kinds: [string, () => Qcow2Fields][] = [
    ['a backing file', () => ({ backing: '/etc/passwd' })],
    ['a backing file over the network', () => ({ backing: nbd() })],
    ['a backing file as json:', () => ({ backing: json() })],
    [
      'a backing file of a format',
      () => ({ backing: nbd(), extensions: [[EXTENSION.backingFormat, name('raw')]] }),
    ],
    ['a backing file without a name', () => ({ backing: '' })],
    [
      'a data file with its bit',
      () => ({ incompatible: 4n, extensions: [[EXTENSION.dataFile, name(nbd())]] }),
    ],
    ['a data file without its bit', () => ({ extensions: [[EXTENSION.dataFile, name('/etc/passwd')]] })],
    ['the bit of a data file alone', () => ({ incompatible: 4n })],
    [
      'a raw data file',
      () => ({ incompatible: 4n, autoclear: 2n, extensions: [[EXTENSION.dataFile, name(json())]] }),
    ],
    ['AES', () => ({ encryption: 1 })],
    ['LUKS', () => ({ encryption: 2, extensions: [[EXTENSION.encryption, Buffer.alloc(16)]] })],
    ['the extension of LUKS alone', () => ({ extensions: [[EXTENSION.encryption, Buffer.alloc(16)]] })],
    ['an encryption that is not known', () => ({ encryption: 0xffffffff })],
    ['snapshots', () => ({ snapshots: 1, snapshotsOffset: 65_536n })],
    ['snapshots beyond number', () => ({ snapshots: 0xffffffff, snapshotsOffset: 65_536n })],
    ['2^63 bytes', () => ({ size: 2n ** 63n })],
    ['2^64 - 1 bytes', () => ({ size: 2n ** 64n - 1n })],
    ['65 TiB', () => ({ size: 65n * 1024n ** 4n })],
    ['a first table of 2^32 - 1 entries', () => ({ l1Entries: 0xffffffff })],
    ['a first table of 64 MiB', () => ({ l1Entries: 8 * MIB })],
    ['a first table beyond its end', () => ({ l1Offset: 2n ** 40n })],
    ['a first table whose end overflows', () => ({ l1Offset: 2n ** 64n - 65_536n })],
    ['reference counts of 2^32 - 1 clusters', () => ({ refcountClusters: 0xffffffff })],
    ['reference counts beyond its end', () => ({ refcountOffset: 2n ** 62n })],
    ['the mark of corruption', () => ({ incompatible: 2n })],
    ['version 0', () => ({ version: 0 })],
    ['version 4', () => ({ version: 4 })],
    ['clusters of 1 byte', () => ({ clusterBits: 0 })],
    ['clusters of 4 GiB', () => ({ clusterBits: 32 })],
    ['clusters of 2^(2^32 - 1) bytes', () => ({ clusterBits: 0xffffffff })],
    ['a header of 0 bytes', () => ({ headerLength: 0 })],
    ['a header of 4 GiB', () => ({ headerLength: 0xffffffff })],
    ['reference counts of 2^31 bits', () => ({ refcountOrder: 31 })],
    ['a compression of another type than it needs', () => ({ compression: 7 })],
    [
      'an extension beyond its header',
      () => ({
        extensions: [
          [0x12345678, Buffer.alloc(65_000)],
          [0x12345678, Buffer.alloc(4096)],
        ],
      }),
    ],
  ];

  it.for(kinds)('with %s is refused before anybody reads it', async ([kind, fields], context) => {
    const result = await used(qcow2File(fields()));
    tried(context, `qcow2 with ${kind}`, 'refusal' in result ? result.refusal : 'used');
    expect(result).toMatchObject({ refusal: 'ImageInvalid' });
    expect(await programs.calls()).toEqual([]);
    expect(canary.visits).toBe(0);
  });

  it('that needs a feature which is not known is refused, whichever it is', async (context) => {
    for (let bit = 5n; bit < 64n; bit += 1n) {
      const result = await used(qcow2File({ incompatible: 2n ** bit }));
      tried(context, 'qcow2 with an unknown bit', 'refusal' in result ? result.refusal : 'used');
      expect(result).toMatchObject({ refusal: 'ImageInvalid' });
    }
    expect(await programs.calls()).toEqual([]);
  });

  it('cut off anywhere in its header is refused', async (context) => {
    const whole = qcow2File();
    for (let length = 4; length < 112; length += 4) {
      const result = await used(whole.subarray(0, length));
      tried(context, 'qcow2 cut off in its header', 'refusal' in result ? result.refusal : 'used');
      expect(result).toMatchObject({ refusal: 'ImageInvalid' });
    }
  });

  it.each([
    ['an empty disk', []],
    ['the old version', ['-o', 'compat=0.10']],
    ['small clusters', ['-o', 'cluster_size=512']],
    ['large clusters', ['-o', 'cluster_size=2M']],
    ['two-level clusters', ['-o', 'extended_l2=on']],
    ['zstd', ['-o', 'compression_type=zstd']],
    ['lazy reference counts', ['-o', 'lazy_refcounts=on']],
    ['reference counts of one bit', ['-o', 'refcount_bits=1']],
  ])('of QEMU itself with %s is used, and read as the user that owns nothing', async (_what, options) => {
    const path = join(shared, 'good');
    await run('qemu-img', ['create', '-q', '-f', 'qcow2', ...options, path, '100M']);
    await programs.calls();
    expect(await used(await readFile(path))).toEqual({ bytes: 100 * MIB });
    expect(await programs.calls()).toEqual([`${IS_ROOT ? READER.uid : process.getuid?.()} info`]);
  });

  it('that we take after any change of its header names no other file for QEMU either', {
    timeout: 120_000,
  }, async (context) => {
    const path = join(root, 'changed');
    const whole = qcow2File();
    const changes = fc.array(
      fc.record({
        at: fc.nat(199),
        bytes: fc.oneof(
          fc.uint8Array({ minLength: 1, maxLength: 8 }),
          fc.constantFrom(
            [0],
            [1],
            [2],
            [4],
            [255, 255, 255, 255],
            [0x44, 0x41, 0x54, 0x41],
            [0, 0, 0, 0, 0, 0, 0, 120],
          ),
        ),
      }),
      { minLength: 1, maxLength: 4 },
    );
    let taken = 0;
    const property = fc.asyncProperty(changes, async (list) => {
      const file = Buffer.from(whole);
      for (const { at, bytes } of list) {
        file.set(bytes, at);
      }
      file.write('QFI\xfb', 'latin1');
      const verdict = judgeQcow2(file, file.length);
      tried(context, 'qcow2 with changed bytes', 'refusal' in verdict ? 'refused by us' : 'taken by us');
      if ('refusal' in verdict) {
        return;
      }
      await writeFile(path, file);
      const info = await infoOf(path);
      tried(context, 'qcow2 taken by us', info === undefined ? 'refused by qemu-img' : 'read by qemu-img');
      if (info !== undefined) {
        taken += 1;
        expect(info).toEqual({ bytes: verdict.virtualSizeBytes, names: [] });
      }
    });
    await fc.assert(property, { ...hostileRuns(1000), endOnFailure: true });
    expect(taken).toBeGreaterThan(0);
    expect(canary.visits).toBe(0);
  });
});

/** Returns what qemu-img reports without our limits: the size, and all features beyond those of a plain disk. Undefined if it refuses. */
async function infoOf(path: string): Promise<{ bytes: number; names: string[] } | undefined> {
  let stdout: string;
  try {
    ({ stdout } = await run('qemu-img', ['info', '-f', 'qcow2', '--output=json', path], { timeout: 60_000 }));
  } catch (error) {
    if (error instanceof Error && 'code' in error && error.code === 1) {
      return undefined;
    }
    throw error;
  }
  const info = JSON.parse(stdout) as Record<string, unknown>;
  const names = ['backing-filename', 'full-backing-filename', 'encrypted', 'snapshots'].filter(
    (key) => key in info,
  );
  const data = (info['format-specific'] as { data?: Record<string, unknown> } | undefined)?.data ?? {};
  return {
    bytes: Number(info['virtual-size']),
    names: [...names, ...['data-file', 'encrypt'].filter((key) => key in data)],
  };
}

/** Returns a zstd frame of one block with five bytes, whose header asks for a window of 2^log bytes. */
function frameWithWindow(log: number): Buffer {
  const [magic, block] = [Buffer.from([0x28, 0xb5, 0x2f, 0xfd]), Buffer.from([1 | (5 << 3), 0, 0])];
  return Buffer.concat([magic, Buffer.from([0, (log - 10) << 3]), block, Buffer.from('hello')]);
}

describe('what is packed', () => {
  let world: PullWorld;

  beforeAll(async () => {
    world = await PullWorld.start();
  });

  afterAll(async () => await world?.[Symbol.asyncDispose]());

  async function refusal(tag: string, image: ImageToPush): Promise<string> {
    const repository = world.repository('hostile');
    await pushImage(repository, tag, image);
    const before = process.memoryUsage().rss;
    const error = await pull(repository, { folder: await world.folder(), tag }).then(
      () => undefined,
      (thrown: unknown) => thrown,
    );
    expect(process.memoryUsage().rss - before).toBeLessThan(512 * MIB);
    return `${reasonOf(error) ?? 'none'}: ${error instanceof Error ? error.message : 'it was used'}`;
  }

  it.for([28, 31])('as a layer with a window of 2^%d bytes is refused', async (log, context) => {
    const result = await refusal(`window-${log}`, containerImage([frameWithWindow(log)], 'zstd'));
    tried(context, 'zstd layer with a huge window', result.split(':')[0] ?? '');
    expect(result).toMatch(/^ImageInvalid: .*Frame requires too much memory/);
  });

  it.for([27, 31])('as a disk of our own with a window of 2^%d bytes is refused', async (log, context) => {
    const repository = world.repository('hostile');
    const path = join(root, 'raw');
    await writeFile(path, Buffer.alloc(MIB, 'berth'));
    const what = { repository, tag: 'own', path, virtualSizeBytes: MIB, architecture: 'amd64' as const };
    await publishDisk(what, { signal, onBytes: () => undefined });
    const { manifest } = await repository.resolve('own', 'amd64', signal);
    const config = await repository.blob(manifest.config, MIB, signal);
    const image = {
      config: { mediaType: manifest.config.mediaType, bytes: config },
      layers: manifest.layers.map(({ mediaType }) => ({ mediaType, bytes: frameWithWindow(log) })),
      artifactType: 'application/vnd.berth.disk.v1',
    };
    const result = await refusal(`own-${log}`, image);
    tried(context, 'zstd chunk with a huge window', result.split(':')[0] ?? '');
    expect(result).toMatch(/^ImageInvalid: .*Frame requires too much memory/);
  });

  it('as a file with a window of 2^31 bytes is refused', async (context) => {
    const [from, to] = [join(root, 'window.zst'), join(root, 'window')];
    await writeFile(from, frameWithWindow(31));
    expect(await readCompression(from)).toBe('zstd');
    const thrown = await unpack('zstd', { from, to, limitBytes: MIB }, signal).catch(
      (error: unknown) => error,
    );
    const error = asReasonedError(thrown, 'a disk');
    tried(context, 'zstd file with a huge window', reasonOf(error) ?? 'used');
    expect(error).toMatchObject({ reason: 'ImageInvalid' });
  });

  it('has the largest window that zstd makes by itself', async () => {
    const decoder = zstdDecoder(MIB);
    decoder.end(frameWithWindow(27));
    expect(String(await decoder.toArray())).toBe('hello');
    const refused = zstdDecoder(MIB);
    refused.end(frameWithWindow(28));
    expect(codeOf(await refused.toArray().catch((error: unknown) => error))).toMatch(/windowTooLarge$/);
  });

  it('as 16 million entries is refused at 200 000', { timeout: 180_000 }, async (context) => {
    const entries = tarOf([{ name: 'etc/x' }]).subarray(0, 512);
    const packed = gzipSync(Buffer.alloc(16 * MIB, entries));
    // Each of the folders has 32 768 entries.
    const parts = 512;
    const result = await refusal(
      'entries',
      containerImage([Buffer.concat(Array<Buffer>(parts).fill(packed))], 'gzip'),
    );
    tried(context, 'archive of millions of entries', result.split(':')[0] ?? '');
    expect(result).toMatch(/^ImageInvalid: .*it has more than 200000 entries/);
  });

  it.for([
    ['of 80 GB of zeros', { name: 'disk/disk.img', size: 80e9 }, 'gzip'],
    ['beside its disk', { name: 'etc/x', size: 80e9 }, 'zstd'],
  ] as const)('as a bomb %s is refused', { timeout: 180_000 }, async ([kind, item, encoding], context) => {
    const pack = encoding === 'gzip' ? gzipSync : zstdCompressSync;
    const zeros = pack(Buffer.alloc(64 * MIB));
    const bomb = Buffer.concat([pack(tarOf([item]).subarray(0, 512)), ...Array<Buffer>(150).fill(zeros)]);
    const result = await refusal(`bomb-${encoding}`, containerImage([bomb], encoding));
    tried(context, `bomb ${kind}`, result.split(':')[0] ?? '');
    expect(result).toMatch(/^ImageInvalid: .*unpacks to more than 68719476736 bytes/);
  });
});
