import { describe, expect, it } from 'vitest';
import { readTar, type TarEntry } from './tar.ts';

interface Written {
  name: string;
  type?: string;
  content?: string;
  /** Content of the size field. The default is the length of the content. */
  size?: Buffer;
  prefix?: string;
}

function entry({ name, type = '0', content = '', size, prefix }: Written): Buffer {
  const header = Buffer.alloc(512);
  header.write(name, 0);
  header.write('0000644\0', 100);
  header.write(Buffer.byteLength(content).toString(8).padStart(11, '0'), 124);
  size?.copy(header, 124);
  header.write(type, 156, 'latin1');
  header.write('ustar\x0000', 257, 'latin1');
  if (prefix !== undefined) {
    header.write(prefix, 345);
  }
  header.fill(0x20, 148, 156);
  const sum = header.reduce((total, byte) => total + byte, 0);
  header.write(`${sum.toString(8).padStart(6, '0')}\0 `, 148, 'latin1');
  const padding = Buffer.alloc((512 - (Buffer.byteLength(content) % 512)) % 512);
  return Buffer.concat([header, Buffer.from(content), padding]);
}

function pax(records: Record<string, string>): string {
  return Object.entries(records)
    .map(([key, value]) => {
      const rest = ` ${key}=${value}\n`;
      const length = Buffer.byteLength(rest);
      const digits = String(length + String(length + 2).length).length;
      return `${length + digits}${rest}`;
    })
    .join('');
}

const END = Buffer.alloc(1024);

async function read(archive: Buffer, pieceBytes = archive.length): Promise<string[]> {
  const found: string[] = [];
  async function* pieces(): AsyncGenerator<Buffer> {
    for (let at = 0; at < archive.length; at += pieceBytes) {
      yield archive.subarray(at, at + pieceBytes);
    }
  }
  for await (const item of readTar(pieces())) {
    found.push(await shown(item));
  }
  return found;
}

async function shown(item: TarEntry): Promise<string> {
  const parts: Buffer[] = [];
  for await (const bytes of item.content()) {
    parts.push(bytes);
  }
  return `${item.type} ${item.path} ${Buffer.concat(parts).toString()}`;
}

describe('a tar archive', () => {
  const archive = Buffer.concat([
    entry({ name: './disk/', type: '5' }),
    entry({ name: 'disk.img', prefix: 'disk', content: 'x'.repeat(700) }),
    entry({ name: 'pax', type: 'x', content: pax({ path: 'disk/ä', mtime: '1' }) }),
    entry({ name: 'short', content: 'pax' }),
    entry({ name: '././@LongLink', type: 'L', content: `${'long/'.repeat(40)}\0` }),
    entry({ name: 'short', content: 'gnu' }),
    entry({ name: 'link', type: '2' }),
    entry({ name: 'empty' }),
    END,
  ]);

  it.each([archive.length, 1000, 7])('is read in pieces of %i bytes', async (pieceBytes) => {
    expect(await read(archive, pieceBytes)).toEqual([
      'folder disk ',
      `file disk/disk.img ${'x'.repeat(700)}`,
      'file disk/ä pax',
      `file ${'long/'.repeat(40).slice(0, -1)} gnu`,
      'link link ',
      'file empty ',
    ]);
  });

  it('may have files of more than 8 GiB, in both forms of their size', async () => {
    const large = 10 * 1024 ** 3;
    const binary = Buffer.alloc(12);
    binary[0] = 0x80;
    binary.writeBigUInt64BE(BigInt(large), 4);
    const headers = [
      entry({ name: 'a', size: binary }),
      Buffer.concat([
        entry({ name: 'p', type: 'x', content: pax({ size: String(large) }) }),
        entry({ name: 'a' }),
      ]),
    ];
    for (const header of headers) {
      async function* pieces(): AsyncGenerator<Buffer> {
        yield header;
      }
      const first = await readTar(pieces()).next();
      expect(first.value).toMatchObject({ path: 'a', type: 'file', size: large });
    }
  });

  it('is skipped where its entries are not read', async () => {
    const paths: string[] = [];
    async function* pieces(): AsyncGenerator<Buffer> {
      yield archive;
    }
    for await (const { path } of readTar(pieces())) {
      paths.push(path);
    }
    expect(paths).toHaveLength(6);
  });

  it('is refused when it has too many headers, even if it has no entry', async () => {
    const headers = entry({ name: '././@LongLink', type: 'K' });
    const piece = Buffer.alloc(headers.length * 1000, headers);
    async function* pieces(): AsyncGenerator<Buffer> {
      yield* Array<Buffer>(401).fill(piece);
    }
    await expect(readTar(pieces()).next()).rejects.toThrow('it has more than 400000 headers');
  });

  it('recognises sparse entries of both kinds', async () => {
    const content = pax({ 'GNU.sparse.major': '1', 'GNU.sparse.name': 'disk/a' });
    const sparse = Buffer.concat([
      entry({ name: 'a', type: 'S' }),
      entry({ name: 'p', type: 'x', content }),
      entry({ name: 'b' }),
      entry({ name: 'c' }),
      END,
    ]);
    expect(await read(sparse)).toEqual(['sparse a ', 'sparse b ', 'file c ']);
  });

  const broken = Buffer.from(archive);
  broken[0] = 0x41;
  it.each([
    ['leads out of its folder', entry({ name: 'disk/../../x' }), 'leads out of its folder'],
    ['is absolute', entry({ name: '/disk/x' }), 'is absolute'],
    [
      'is absolute by an attribute',
      Buffer.concat([entry({ name: 'p', type: 'x', content: pax({ path: '/x' }) }), entry({ name: 'x' })]),
      'is absolute',
    ],
    [
      'has a NUL byte',
      Buffer.concat([entry({ name: 'p', type: 'x', content: pax({ path: 'a\0b' }) }), entry({ name: 'x' })]),
      'contains a NUL byte',
    ],
    [
      'is given to all entries',
      entry({ name: 'p', type: 'g', content: pax({ path: 'disk/x' }) }),
      'a global header (type g) sets a name or a size',
    ],
    [
      'is 10 MiB long',
      entry({ name: 'p', type: 'x', size: Buffer.from('00050000000\0') }),
      'has 10485760 bytes',
    ],
    [
      'has 129 attributes',
      entry({ name: 'p', type: 'x', content: '6 a=b\n'.repeat(129) }),
      'more than 128 PAX attributes',
    ],
    [
      'has broken attributes',
      entry({ name: 'p', type: 'x', content: '99 path=x\n' }),
      'PAX attributes cannot be read',
    ],
    ['has a wrong checksum', broken, 'wrong checksum'],
    ['has no number', entry({ name: 'a', size: Buffer.from('zzzzzzzzzzz\0') }), 'is not octal'],
    ['has a negative number', entry({ name: 'a', size: Buffer.alloc(12, 0xff) }), 'out of range'],
    ['is not followed by an end', entry({ name: 'a' }), 'is cut off'],
    ['is cut', archive.subarray(0, 1200), '524 bytes of a file are missing'],
    ['is no header', Buffer.from('short'), 'is cut off'],
  ])('is refused when a name or header %s', async (_what, content, message) => {
    await expect(read(content)).rejects.toThrow(message);
    await expect(read(content)).rejects.toMatchObject({ kind: 'invalid' });
  });
});
