import { execFileSync } from 'node:child_process';
import { mkdtemp, readFile, rm, stat, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it, onTestFinished, vi } from 'vitest';
import { compressionOf, digHoles, unpack, unpackedLimit } from './unpack.ts';

const MEBIBYTE = 1024 ** 2;
const LIMIT = 64 * MEBIBYTE;
/** A disk of 1 MiB of data, a hole of 7 MiB, and 512 bytes of data, which are less than a block. */
const DISK = Buffer.concat([
  Buffer.alloc(MEBIBYTE, 'berth'),
  Buffer.alloc(7 * MEBIBYTE),
  Buffer.alloc(512, 1),
]);
const { signal } = new AbortController();

describe.each([
  ['xz', ['-0']],
  ['gzip', ['-1']],
  ['zstd', ['-1', '-q']],
] as const)('a disk in %s', (program, options) => {
  let folder: string;
  let from: string;
  let to: string;

  beforeEach(async () => {
    folder = await mkdtemp(join(tmpdir(), 'berth-unpack-'));
    from = join(folder, 'packed');
    to = join(folder, 'disk');
  });

  afterEach(async () => {
    await rm(folder, { recursive: true });
  });

  function pack(content: Buffer): Buffer {
    return execFileSync(program, [...options, '-c'], { input: content, maxBuffer: LIMIT });
  }

  async function unpackAll(limitBytes = LIMIT): Promise<void> {
    await unpack(program, { from, to, limitBytes }, signal);
  }

  it('is recognised by its content, and unpacked unchanged, with holes for its zeros', async () => {
    await writeFile(from, pack(DISK));
    expect(await compressionOf(from)).toBe(program);
    await unpackAll();
    expect((await readFile(to)).equals(DISK)).toBe(true);
    expect((await stat(to)).blocks * 512).toBeLessThan(2 * MEBIBYTE);
  });

  it('of several parts is unpacked completely', async () => {
    const parts = [DISK.subarray(0, 100), DISK.subarray(100, 3 * MEBIBYTE), DISK.subarray(3 * MEBIBYTE)];
    await writeFile(from, Buffer.concat(parts.map(pack)));
    await unpackAll();
    expect((await readFile(to)).equals(DISK)).toBe(true);
  });

  it.each([
    ['that is cut off', (packed: Buffer) => packed.subarray(0, packed.length - 9)],
    [
      'with a wrong byte',
      (packed: Buffer) => Buffer.from(packed).fill(0xa5, packed.length - 20, packed.length - 4),
    ],
  ])('%s is ImageInvalid', async (_, broken) => {
    await writeFile(from, broken(pack(DISK)));
    await expect(unpackAll()).rejects.toMatchObject({ kind: 'invalid' });
  });

  it('that becomes larger than its limit is ImageInvalid', async () => {
    await writeFile(from, pack(DISK));
    await expect(unpackAll(4 * MEBIBYTE)).rejects.toMatchObject({
      kind: 'invalid',
      message: expect.stringContaining(`${4 * MEBIBYTE} bytes`) as string,
    });
  });

  it('is cancelled when no caller waits for it', async () => {
    await writeFile(from, pack(DISK));
    const given = AbortSignal.abort(new Error('no longer wanted'));
    await expect(unpack(program, { from, to, limitBytes: LIMIT }, given)).rejects.toThrow('no longer wanted');
  });
});

describe('a file that is not compressed', () => {
  it('is distinguished from compressed files, and gets holes for its zeros', async () => {
    const folder = await mkdtemp(join(tmpdir(), 'berth-unpack-'));
    try {
      const path = join(folder, 'disk');
      await writeFile(path, DISK);
      expect(await compressionOf(path)).toBeUndefined();
      await digHoles(path);
      expect((await stat(path)).blocks * 512).toBeLessThan(2 * MEBIBYTE);
      expect((await readFile(path)).equals(DISK)).toBe(true);
      await truncate(path, 3);
      expect(await compressionOf(path)).toBeUndefined();
    } finally {
      await rm(folder, { recursive: true });
    }
  });

  it('may become as large as most disks, and larger only by a factor', () => {
    expect(unpackedLimit(1)).toBe(64 * 1024 ** 3);
    expect(unpackedLimit(1024 ** 3)).toBe(400 * 1024 ** 3);
  });
});

it('a file in xz is not called broken when its program is killed', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'berth-unpack-'));
  onTestFinished(async () => {
    vi.unstubAllEnvs();
    await rm(folder, { recursive: true });
  });
  await writeFile(join(folder, 'xz'), '#!/bin/sh\nkill -9 $$\n', { mode: 0o755 });
  vi.stubEnv('PATH', folder);
  const unpacking = { from: join(folder, 'packed'), to: join(folder, 'disk'), limitBytes: LIMIT };
  await expect(unpack('xz', unpacking, signal)).rejects.toMatchObject({ name: 'ProgramError' });
});
