/** Writes a tar archive in memory. */

export interface TarFile {
  /** Path of at most 100 ASCII characters. */
  readonly name: string;
  readonly content: Buffer;
}

const BLOCK = 512;
const NAME_LENGTH = 100;
/** Offset and length of the checksum in a header. The checksum is computed over a header that has spaces at this place. */
const CHECKSUM = { at: 148, length: 8 } as const;

/**
 * Returns the archive. All files have the mode 0600. `seconds` is the modification time of all files, in seconds since the epoch.
 *
 * @throws RangeError when a name is too long.
 */
export function tarOf(files: readonly TarFile[], seconds: number): Buffer {
  const parts = files.flatMap(({ name, content }) => [
    headerOf(name, content.length, seconds),
    content,
    Buffer.alloc((BLOCK - (content.length % BLOCK)) % BLOCK),
  ]);
  return Buffer.concat([...parts, Buffer.alloc(2 * BLOCK)]);
}

function headerOf(name: string, size: number, seconds: number): Buffer {
  if (name.length > NAME_LENGTH) {
    throw new RangeError(`the name ${name} is too long for a tar archive`);
  }
  const header = Buffer.alloc(BLOCK);
  header.write(name, 0, 'latin1');
  header.write('0000600\0', 100, 'latin1');
  header.write('0000000\0', 108, 'latin1');
  header.write('0000000\0', 116, 'latin1');
  header.write(`${size.toString(8).padStart(11, '0')}\0`, 124, 'latin1');
  header.write(`${seconds.toString(8).padStart(11, '0')}\0`, 136, 'latin1');
  header.write(' '.repeat(CHECKSUM.length), CHECKSUM.at, 'latin1');
  header.write('0', 156, 'latin1');
  header.write('ustar\x0000', 257, 'latin1');
  const sum = header.reduce((total, byte) => total + byte, 0);
  header.write(`${sum.toString(8).padStart(6, '0')}\0 `, CHECKSUM.at, 'latin1');
  return header;
}
