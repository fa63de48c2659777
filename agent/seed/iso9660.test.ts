import { describe, expect, it } from 'vitest';
import { isoImage } from './iso9660.ts';

const SECTOR = 2048;

interface Volume {
  label: string;
  files: Record<string, string>;
}

/** Returns a number that is stored in both byte orders. @throws Error when the two stored numbers differ. */
function both32(bytes: Buffer, at: number): number {
  const value = bytes.readUInt32LE(at);
  expect(bytes.readUInt32BE(at + 4)).toBe(value);
  return value;
}

/** Reads an image as a strict reader would: each length, both byte orders, and each file inside the volume. */
function read(image: Buffer, isJoliet: boolean): Volume {
  const wanted = isJoliet ? 2 : 1;
  let at = 16 * SECTOR;
  while (image[at] !== wanted) {
    expect(image.toString('ascii', at + 1, at + 6)).toBe('CD001');
    expect(image[at]).not.toBe(255);
    at += SECTOR;
  }
  const volume = image.subarray(at, at + SECTOR);
  const text = (bytes: Buffer): string =>
    isJoliet ? Buffer.from(bytes).swap16().toString('utf16le') : bytes.toString('ascii');
  expect(both32(volume, 80) * SECTOR).toBe(image.length);
  expect(volume.readUInt16LE(128)).toBe(SECTOR);
  const root = both32(volume, 156 + 2);
  expect(image.readUInt32LE(volume.readUInt32LE(140) * SECTOR + 2)).toBe(root);
  expect(image.readUInt32BE(volume.readUInt32BE(148) * SECTOR + 2)).toBe(root);
  const folder = image.subarray(root * SECTOR, root * SECTOR + both32(volume, 156 + 10));
  const files: Volume['files'] = {};
  for (let next = 0; (folder[next] ?? 0) > 0; next += folder[next] ?? 0) {
    const isFolder = ((folder[next + 25] ?? 0) & 2) !== 0;
    const from = both32(folder, next + 2) * SECTOR;
    const length = both32(folder, next + 10);
    expect(from + length).toBeLessThanOrEqual(image.length);
    const name = folder.subarray(next + 33, next + 33 + (folder[next + 32] ?? 0));
    if (!isFolder) {
      files[text(name)] = image.toString('utf8', from, from + length);
    }
  }
  return { label: text(volume.subarray(40, 72)).trimEnd(), files };
}

describe('an ISO image', () => {
  const texts = {
    'meta-data': '{}',
    'user-data': 'ä'.repeat(3000),
    'vendor-data': '',
    'b.txt': 'x'.repeat(SECTOR),
  };
  const image = isoImage(
    'cidata',
    Object.entries(texts).map(([name, text]) => ({ name, data: Buffer.from(text) })),
  );

  it('has the label, and each file under its own name for readers of Joliet', () => {
    expect(read(image, true)).toEqual({ label: 'cidata', files: texts });
  });

  it('has the files under short names for other readers', () => {
    const { label, files } = read(image, false);
    expect([label, Object.keys(files)]).toEqual([
      'cidata',
      ['B_TXT.;1', 'META_DAT.;1', 'USER_DAT.;1', 'VENDOR_D.;1'],
    ]);
    expect(Object.values(files).toSorted()).toEqual(Object.values(texts).toSorted());
  });

  it('is refused if the names do not fit into one sector', () => {
    const files = Array.from({ length: 60 }, (_, n) => ({ name: `file-number-${n}`, data: Buffer.of() }));
    expect(() => isoImage('cidata', files)).toThrow(RangeError);
  });
});
