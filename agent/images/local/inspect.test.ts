import { execFileSync } from 'node:child_process';
import { chmod, mkdir, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setImmediate as immediate } from 'node:timers/promises';
import { writeFileSync } from 'node:fs';
import { gzipSync, zstdCompressSync } from 'node:zlib';
import { afterEach, beforeEach, describe, expect, it, test, vi } from 'vitest';
import { formatOf, inspectImage } from './inspect.ts';
import { makeFolder } from '../../../test/support/folder.ts';

/** Time limit of `qemu-img info`, which is not configurable. */
const LIMIT_MILLISECONDS = 60_000;
/** Limit of its CPU time, in seconds. */
const CPU_SECONDS = 10;

describe('a qcow2 file, when qemu-img', () => {
  let folder: string;
  let path: string;

  beforeEach(async () => {
    folder = makeFolder();
    path = join(folder, 'disk.qcow2');
    execFileSync('qemu-img', ['create', '-q', '-f', 'qcow2', path, '1M']);
    const bin = join(folder, 'bin');
    await mkdir(bin);
    // On Linux, prlimit runs qemu-img with limits.
    if (process.platform === 'linux') {
      await symlink(execFileSync('sh', ['-c', 'command -v prlimit']).toString().trim(), join(bin, 'prlimit'));
    }
    vi.stubEnv('PATH', bin);
  });

  afterEach(async () => {
    vi.unstubAllEnvs();
    vi.useRealTimers();
  });

  /** Replaces qemu-img by a script. */
  async function replace(script: string): Promise<void> {
    const program = join(folder, 'bin', 'qemu-img');
    await writeFile(program, `#!/bin/sh\n${script}\n`);
    await chmod(program, 0o755);
  }

  it('is not installed, is not called invalid', async () => {
    await expect(inspectImage(path)).rejects.toMatchObject({ name: 'ProgramError' });
  });

  it('cannot be started, is not called invalid', async () => {
    await rm(join(folder, 'bin', 'prlimit'), { force: true });
    await expect(inspectImage(path)).rejects.toMatchObject({ name: 'ProgramError', code: 'ENOENT' });
  });

  it('is killed, is not called invalid', async () => {
    await replace('kill -9 $$');
    await expect(inspectImage(path)).rejects.toThrow('qemu-img info ended with SIGKILL');
  });

  it.each([
    ['refuses it', 'echo bad table >&2; exit 1', 'bad table'],
    ['crashes', 'kill -SEGV $$', 'ended with SIGSEGV'],
    ['writes without end', 'while echo endless; do :; done', 'wrote more than 1048576 bytes'],
  ])('%s, is ImageInvalid', async (_, script, expected) => {
    await replace(script);
    const message = expect.stringContaining(expected) as string;
    await expect(inspectImage(path)).rejects.toMatchObject({ reason: 'ImageInvalid', message });
  });

  it('needs too much CPU time, is ImageInvalid', async ({ skip }) => {
    skip(process.platform !== 'linux', 'only Linux has prlimit');
    await replace(`test "$(ulimit -t)" = ${CPU_SECONDS} && kill -XCPU $$`);
    const message = expect.stringContaining('ended with SIGXCPU') as string;
    await expect(inspectImage(path)).rejects.toMatchObject({ reason: 'ImageInvalid', message });
  });

  it('waits without end, is not called invalid', async () => {
    await replace('exec /bin/sleep 600');
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
    const inspected = inspectImage(path);
    inspected.catch(() => undefined);
    while (vi.getTimerCount() === 0) {
      await immediate();
    }
    vi.advanceTimersByTime(LIMIT_MILLISECONDS);
    await expect(inspected).rejects.toMatchObject({ name: 'ProgramError', exceeded: 'time' });
  });
});

it('content of the image storage has the format in which the agent stores it, and other files have the stated format', () => {
  const artifact = { type: 'storedArtifact', reference: 'registry.example/berth/a:1' } as const;
  const file = { type: 'storedFile', path: 'team/a.qcow2', sha256: '0' } as const;
  const shared = { type: 'sharedFile', path: 'a' } as const;
  expect([artifact, file, shared].map((source) => formatOf(source, 'QCOW2'))).toEqual([
    'Raw',
    'QCOW2',
    'QCOW2',
  ]);
  expect([artifact, file, shared].map((source) => formatOf(source, 'Raw'))).toEqual(['Raw', 'QCOW2', 'Raw']);
  expect(formatOf(shared)).toBe('Auto');
  expect(formatOf({ type: 'ipsw', url: '', sha256: '' }, 'Raw')).toBe('IPSW');
});

it('a qcow2 file with an empty disk is ImageInvalid, like an empty raw file', async () => {
  const folder = makeFolder();
  const path = join(folder, 'disk.qcow2');
  execFileSync('qemu-img', ['create', '-q', '-f', 'qcow2', path, '0']);
  const message = expect.stringContaining('size of 0 bytes') as string;
  await expect(inspectImage(path)).rejects.toMatchObject({ reason: 'ImageInvalid', message });
  await writeFile(path, '');
  await expect(inspectImage(path)).rejects.toMatchObject({ reason: 'ImageInvalid', message });
});

const KIBIBYTE = 1024;

let folder: string;
let path: string;

beforeEach(() => {
  folder = makeFolder();
  path = join(folder, 'disk');
});

/** Returns a file of 8 KiB that has these bytes at this position. A negative position counts from the end. */
function withBytes(bytes: string | Buffer, at = 0, size = 8 * KIBIBYTE): Buffer {
  const file = Buffer.alloc(size, 7);
  Buffer.from(bytes as string, 'latin1').copy(file, at < 0 ? size + at : at);
  return file;
}

/** Fills a file up to a multiple of 512 bytes, as archives and tools for block devices do. */
function padded(bytes: Buffer): Buffer {
  return Buffer.concat([bytes, Buffer.alloc((512 - (bytes.length % 512)) % 512)]);
}

function tar(format: string, name: string): Buffer {
  const options = ['-c', '--format', format, '-f', '-', '-C', folder, name];
  writeFileSync(join(folder, name), Buffer.alloc(64 * KIBIBYTE));
  return execFileSync('tar', options);
}

function program(): Buffer {
  const file = withBytes('MZ');
  file.writeUInt32LE(0x80, 60);
  file.write('PE\0\0', 0x80, 'latin1');
  return file;
}

async function expectRefused(expected: string): Promise<void> {
  const message = (text: string) => expect.stringContaining(text) as string;
  await expect(inspectImage(path)).rejects.toMatchObject({
    reason: 'ImageInvalid',
    message: message(`The image is ${expected}`),
  });
  await expect(inspectImage(path, 'QCOW2')).rejects.toMatchObject({
    reason: 'ImageInvalid',
    message: message(`it is ${expected}`),
  });
  await expect(inspectImage(path, 'ISO')).rejects.toMatchObject({
    reason: 'ImageInvalid',
    message: message(`The file is ${expected}`),
  });
}

describe('a file of another format is refused with its name, unless the Image says that it is a raw disk:', () => {
  test.each([
    ['vmdk', [], 'a VMDK disk'],
    ['vmdk', ['-o', 'subformat=streamOptimized'], 'a VMDK disk'],
    ['vmdk', ['-o', 'subformat=monolithicFlat'], 'the descriptor of a VMDK disk, without its data'],
    ['vhdx', [], 'a VHDX disk'],
    ['vpc', [], 'a VHD disk'],
    ['vpc', ['-o', 'subformat=fixed'], 'a VHD disk of a fixed size'],
    ['vdi', [], 'a VDI disk'],
    ['qed', [], 'a QED disk'],
    ['parallels', [], 'a Parallels disk'],
  ])('qemu-img create -f %s %j', async (format, options, expected) => {
    execFileSync('qemu-img', ['create', '-q', '-f', format, ...options, path, '4M']);
    await expectRefused(expected);
    // The descriptor alone has no size that a disk can have.
    if (!expected.startsWith('the descriptor')) {
      await expect(inspectImage(path, 'Raw')).resolves.toMatchObject({ format: 'raw' });
    }
  });

  test.each<[string, () => Buffer]>([
    ['a tar archive', () => tar('gnu', 'disk.raw')],
    ['a tar archive', () => tar('v7', 'disk.raw')],
    ['a tar archive', () => tar('ustar', 'vm.ovf')],
    ['a tar archive', () => tar('pax', 'disk.raw')],
    ['packed with gzip', () => padded(gzipSync(Buffer.alloc(KIBIBYTE)))],
    ['packed with zstd', () => padded(zstdCompressSync(Buffer.alloc(KIBIBYTE)))],
    ['packed with xz', () => padded(execFileSync('xz', ['-c'], { input: 'disk' }))],
    ['packed with lzma', () => padded(execFileSync('xz', ['--format=lzma', '-c'], { input: 'disk' }))],
    ['packed with bzip2', () => withBytes('BZh91AY&SY')],
    ['packed with bzip2', () => withBytes('BZh9\x17rE8P\x90')],
    ['packed with lzip', () => withBytes('LZIP\x01')],
    ['packed with lz4', () => withBytes('\x04"M\x18')],
    ['packed with lz4', () => withBytes('\x02!L\x18')],
    ['packed with zstd or lz4', () => withBytes('\x5e*M\x18')],
    ['packed with compress', () => withBytes('\x1f\x9d\x90')],
    ['packed with lzop', () => withBytes('\x89LZO\0\r\n\x1a\n')],
    ['a 7z archive', () => withBytes("7z\xbc\xaf'\x1c")],
    ['a zip archive', () => withBytes('PK\x03\x04')],
    ['a zip archive without files', () => withBytes('PK\x05\x06')],
    ['a rar archive', () => withBytes('Rar!\x1a\x07\x01\0')],
    ['a cab archive', () => withBytes('MSCF\0\0\0\0')],
    ['a WIM archive of Windows', () => withBytes('MSWIM\0\0\0')],
    ['a cpio archive', () => withBytes('070701')],
    ['an rpm package', () => withBytes('\xed\xab\xee\xdb')],
    ['a DMG disk', () => withBytes('koly\0\0\0\x04', -512)],
    ['an encrypted DMG disk', () => withBytes('encrcdsa')],
    ['an ASIF disk', () => withBytes('shdw')],
    ['a Parallels disk', () => withBytes('WithouFreSpacExt')],
    ['a VHD disk of a fixed size', () => withBytes('conectix', -511)],
    ['a VMDK disk of ESX', () => withBytes('\0\0\0\0\xbe\xba\xfe\xca')],
    ['a VMDK disk of ESX', () => withBytes('COWD')],
    ['a sparse image of Android', () => withBytes(':\xff&\xed')],
    // qemu-img makes LUKS disks too, but fails on machines whose processor time it cannot measure.
    ['a disk that is encrypted', () => withBytes('LUKS\xba\xbe\0\x01')],
    ['a disk that is encrypted', () => withBytes('LUKS\xba\xbe\0\x02')],
    ['a squashfs file system', () => withBytes('hsqs')],
    ['a program (ELF)', () => withBytes('\x7fELF')],
    ['a program for Windows or UEFI (PE)', program],
    ['an XML document', () => withBytes('<?xml version="1.0"?><Envelope/>')],
    ['a web page (HTML)', () => withBytes('\n<!DOCTYPE html>')],
  ])('%s', async (expected, content) => {
    await writeFile(path, content());
    await expectRefused(expected);
  });
});

test('a qcow2 disk is no ISO', async () => {
  execFileSync('qemu-img', ['create', '-q', '-f', 'qcow2', path, '4M']);
  const message = expect.stringContaining('The file is a qcow2 disk, which is not an ISO') as string;
  await expect(inspectImage(path, 'ISO')).rejects.toMatchObject({ reason: 'ImageInvalid', message });
});

test.each<[string, Buffer]>([
  ['zeros, as before a GPT', withBytes('EFI PART', 512)],
  ['a GPT at its end', withBytes('EFI PART', -512)],
  ['the code of a boot sector', withBytes('\xeb\x63\x90', 0)],
  ['a boot sector that begins like a program', withBytes('MZ')],
  [
    'a boot sector that begins like a program, with a far position',
    withBytes('MZ'.padEnd(60, '\0') + '\xff'.repeat(4)),
  ],
  ['the names of formats in the middle', withBytes('conectix koly KDMV', 4096)],
  ['the beginning of the word BZh', withBytes('BZh0')],
  [
    'the file system of an ISO, whose free beginning looks like an archive',
    withBytes('CD001', 32_769, 40 * KIBIBYTE),
  ],
])('a raw disk with %s stays usable', async (_, content) => {
  await writeFile(path, content);
  if (content.length > 32 * KIBIBYTE) {
    await writeFile(path, Buffer.concat([Buffer.from('PK\x03\x04'), (await readFile(path)).subarray(4)]));
  }
  for (const format of ['Auto', 'Raw', 'ISO'] as const) {
    await expect(inspectImage(path, format)).resolves.toEqual({
      format: 'raw',
      virtualSizeBytes: content.length,
    });
  }
});
