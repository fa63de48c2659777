/** A writer of the "newc" cpio format, which the Linux kernel unpacks as its first file system. */

export interface CpioEntry {
  /** Relative, without a leading slash; its folders must come before it. */
  path: string;
  /** Type and permission bits, as in stat. */
  mode: number;
  content?: Buffer;
}

export const DIRECTORY_MODE = 0o040755;
export const EXECUTABLE_MODE = 0o100755;
export const FILE_MODE = 0o100644;

const ALIGNMENT = 4;

/** The archive. Times are zero and inode numbers count up, so that the same entries give the same bytes. */
export function cpioArchive(entries: CpioEntry[]): Buffer {
  const parts = entries.flatMap((entry, index) => member(entry, index + 1));
  parts.push(...member({ path: 'TRAILER!!!', mode: 0 }, 0));
  return Buffer.concat(parts);
}

function member(entry: CpioEntry, inode: number): Buffer[] {
  const content = entry.content ?? Buffer.alloc(0);
  const name = Buffer.from(`${entry.path}\0`);
  // inode, mode, uid, gid, links, time, size, device (2), special device (2), length of the name, checksum
  const fields = [inode, entry.mode, 0, 0, 1, 0, content.length, 0, 0, 0, 0, name.length, 0];
  const header = Buffer.from(
    `070701${fields.map((field) => field.toString(16).padStart(8, '0')).join('')}`,
    'latin1',
  );
  return [header, name, padding(header.length + name.length), content, padding(content.length)];
}

function padding(length: number): Buffer {
  return Buffer.alloc((ALIGNMENT - (length % ALIGNMENT)) % ALIGNMENT);
}
