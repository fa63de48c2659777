import { execFileSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdir, mkdtemp, open, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, it, onTestFinished, vi } from 'vitest';
import { DirectFile } from '../../disks/diskio.ts';
import { extractDisk } from './layer.ts';

const MEBIBYTE = 1024 ** 2;
const PIECE_BYTES = 4096;

it('writes a disk that comes in small pieces by the mebibyte where direct writes are impossible', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'berth-layer-'));
  onTestFinished(() => rm(folder, { recursive: true }));
  const content = randomBytes(4 * MEBIBYTE);
  await mkdir(join(folder, 'root', 'disk'), { recursive: true });
  await writeFile(join(folder, 'root', 'disk', 'disk.img'), content);
  const archive = execFileSync('tar', ['-c', '-C', join(folder, 'root'), '.'], { maxBuffer: 8 * MEBIBYTE });
  async function* pieces(): AsyncGenerator<Buffer> {
    for (let at = 0; at < archive.length; at += PIECE_BYTES) {
      yield archive.subarray(at, at + PIECE_BYTES);
    }
  }
  const disk = join(folder, 'disk.img');
  const file = await open(disk, 'w');
  const write = vi.spyOn(Object.getPrototypeOf(file) as typeof file, 'write');
  onTestFinished(() => write.mockRestore());
  await file.close();
  const direct = vi.spyOn(DirectFile, 'open').mockResolvedValue(undefined);
  onTestFinished(() => direct.mockRestore());
  const covering = { hidden: new Set<string>(), opaque: false };
  const allowance = { limitBytes: 8 * MEBIBYTE, leftBytes: 8 * MEBIBYTE };
  const layer = { encoding: 'none' as const, diffId: undefined };
  const { signal } = new AbortController();
  expect(await extractDisk(layer, pieces(), { disk, covering, allowance }, signal)).toBe(true);
  expect((await readFile(disk)).equals(content)).toBe(true);
  expect(write.mock.calls.map(([bytes]) => (bytes as unknown as Buffer).length)).toEqual(
    Array(4).fill(MEBIBYTE),
  );
});
