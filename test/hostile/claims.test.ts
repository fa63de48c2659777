/**
 * Folders whose files are not what they claim to be. Another host, or the file server, can write to the folder of the image storage and to
 * shared folders at any time, and can set any time of modification. A host uses only bytes that it has copied and hashed itself.
 */
import { createHash } from 'node:crypto';
import { execFileSync } from 'node:child_process';
import { closeSync, openSync, statSync, truncateSync, utimesSync, writeSync } from 'node:fs';
import {
  link,
  mkdir,
  open,
  readFile,
  rename,
  rm,
  stat,
  symlink,
  truncate,
  writeFile,
} from 'node:fs/promises';
import { join } from 'node:path';
import { beforeEach, describe, expect, it } from 'vitest';
import { classOf, ReasonedError } from '../../api/v1alpha1/reasons.ts';
import type { BaseImage } from '../../agent/disks/disk.ts';
import type { AskedImage, HostImageStore } from '../../agent/images/store.ts';
import type { MachineImageSource } from '../../api/v1alpha1/source.ts';
import { ensure, openStore } from '../worlds/imagestores.ts';
import { makeFolder } from '../support/folder.ts';

const DISK_BYTES = 12 * 1024 * 1024;
/** Part of a disk that an attacker replaces. */
const PATCH_BYTES = 4096;
/** Position of the part, near the end of the disk. */
const PATCH_AT = DISK_BYTES - 1024 * 1024;

const SPARSE_BYTES = 64 * 1024 * 1024;

let root: string;
let storage: string;
let path: string;
let sha256: string;

beforeEach(async () => {
  root = makeFolder();
  storage = join(root, 'storage');
  await mkdir(storage);
  path = join(storage, 'disk.qcow2');
  await writeDisk(path);
  sha256 = sha256Of(await readFile(path));
});

/** Writes a qcow2 file whose content is not zero. */
async function writeDisk(to: string): Promise<void> {
  execFileSync('qemu-img', ['create', '-q', '-f', 'qcow2', '-o', 'preallocation=full', to, '4M']);
  const file = await open(to, 'r+');
  const content = Buffer.alloc(DISK_BYTES, 'berth');
  const { size } = await file.stat();
  await file.write(content.subarray(0, DISK_BYTES - size), 0, DISK_BYTES - size, size);
  await file.close();
}

function sha256Of(content: Buffer): string {
  return createHash('sha256').update(content).digest('hex');
}

/** Rewrites a part of a file in place, and restores the time of its last modification. */
function rewriteSync(file: string): void {
  const { atime, mtime } = statSync(file);
  const descriptor = openSync(file, 'r+');
  writeSync(descriptor, Buffer.alloc(PATCH_BYTES, 'foreign'), 0, PATCH_BYTES, PATCH_AT);
  closeSync(descriptor);
  utimesSync(file, atime, mtime);
}

async function openHost(name: string): Promise<HostImageStore> {
  return await openStore(join(root, name), [], { sharedRoots: [storage], storageFolder: storage });
}

function storedFile(name = 'disk.qcow2'): MachineImageSource {
  return { type: 'storedFile', path: name, sha256 };
}

const SHARED: MachineImageSource = { type: 'sharedFile', path: 'disk.qcow2' };

/** Ensures the image, and expects that a machine would run from exactly the bytes of the digest, which lie in the host's own store. */
async function use(
  host: HostImageStore,
  source: MachineImageSource,
  options: Partial<AskedImage> = {},
): Promise<BaseImage> {
  const image = await ensure(host, source, 'machine/a', { name: 'berth.dev/team/disk', ...options });
  expect(`sha256:${sha256Of(await readFile(image.path))}`).toBe(image.digest);
  expect(image.path.startsWith(`${storage}/`)).toBe(false);
  return image;
}

async function reasonOf(work: Promise<unknown>): Promise<string> {
  return await work.then(
    () => 'accepted',
    (error: unknown) => (error instanceof ReasonedError ? error.reason : String(error)),
  );
}

describe('a stored file of which 4 KiB were rewritten in place, with the old time of modification', () => {
  it('is refused by a host that does not have it, also after a restart, and does not reach a host that has it', async () => {
    const before = await use(await openHost('a'), storedFile());
    rewriteSync(path);
    expect(await reasonOf(use(await openHost('b'), storedFile()))).toBe('DigestMismatch');
    expect(await reasonOf(use(await openHost('b'), storedFile()))).toBe('DigestMismatch');
    expect(await use(await openHost('a'), storedFile())).toEqual(before);
  });

  it('is refused by a host that has removed its own copy', async () => {
    const host = await openHost('a');
    const { path: copy } = await use(host, storedFile(), { name: undefined });
    host.release('machine/a');
    await expect.poll(async () => await stat(copy).catch(() => undefined)).toBeUndefined();
    rewriteSync(path);
    expect(await reasonOf(use(host, storedFile()))).toBe('DigestMismatch');
    expect(await reasonOf(use(await openHost('a'), storedFile()))).toBe('DigestMismatch');
  });
});

describe('a file that changes while it is copied', () => {
  it.each<[string, () => void]>([
    ['rewritten', () => rewriteSync(path)],
    ['truncated', () => truncateSync(path, PATCH_AT)],
  ])('and is %s, is asked for again, because it can become a whole disk', async (_, act) => {
    for (const source of [storedFile(), SHARED]) {
      let hasActed = false;
      const onProgress = (): void => {
        if (!hasActed) {
          hasActed = true;
          act();
        }
      };
      const host = await openHost(source.type);
      expect(await reasonOf(use(host, source, { onProgress }))).toBe('ImageFetchFailed');
      await writeDisk(path);
      expect(await reasonOf(use(host, source))).toBe('accepted');
    }
    expect(classOf('ImageFetchFailed', 'Image')).toBe('passing');
  });

  it('does not change after the copy, whatever takes its place', async () => {
    const host = await openHost('a');
    const stored = await use(host, storedFile());
    const shared = await use(host, SHARED);
    await link(path, join(storage, 'second-name'));
    rewriteSync(join(storage, 'second-name'));
    expect(sha256Of(await readFile(stored.path))).toBe(sha256);
    expect(sha256Of(await readFile(shared.path))).toBe(sha256);
    await writeFile(join(storage, 'other'), Buffer.alloc(DISK_BYTES, 'other'));
    await rename(join(storage, 'other'), path);
    expect(await use(host, storedFile())).toEqual(stored);
  });
});

describe('a shared file, which has no pinned digest,', () => {
  it('that was rewritten with the old time of modification is the old copy or a new one, and has the digest of its bytes', async () => {
    const host = await openHost('a');
    const before = await use(host, SHARED);
    rewriteSync(path);
    const after = await use(host, SHARED);
    expect([before.digest, `sha256:${sha256Of(await readFile(path))}`]).toContain(after.digest);
    expect(`sha256:${sha256Of(await readFile(before.path))}`).toBe(before.digest);
  });

  it('is copied once, also after a restart, until it changes', async () => {
    const { path: copy } = await use(await openHost('a'), SHARED);
    const { ino } = await stat(copy);
    expect((await stat((await use(await openHost('a'), SHARED)).path)).ino).toBe(ino);
    await writeFile(path, Buffer.alloc(DISK_BYTES, 'other'));
    expect((await use(await openHost('a'), SHARED)).path).not.toBe(copy);
  });
});

it('two stored files with one digest are copied once, and a file with another digest is not in their place', async () => {
  const host = await openHost('a');
  const { path: copy } = await use(host, storedFile());
  expect((await use(host, storedFile('of-another-namespace'))).path).toBe(copy);
  const other: MachineImageSource = { type: 'storedFile', path: 'disk.qcow2', sha256: '0'.repeat(64) };
  expect(await reasonOf(use(host, other))).toBe('DigestMismatch');
});

it.each<[string, string, () => Promise<void>]>([
  ['shorter', 'DigestMismatch', async () => await truncate(path, PATCH_AT)],
  ['empty', 'DigestMismatch', async () => await truncate(path, 0)],
  ['longer', 'DigestMismatch', async () => await truncate(path, DISK_BYTES * 2)],
  [
    'a link out of the folder',
    'ImageFetchFailed',
    async () => {
      await rename(path, join(root, 'outside'));
      await symlink(join(root, 'outside'), path);
    },
  ],
  [
    'a pipe',
    'ImageInvalid',
    async () => {
      await rm(path);
      execFileSync('mkfifo', [path]);
    },
  ],
])('a stored file that is %s is refused as %s', async (_, reason, act) => {
  await act();
  expect(await reasonOf(use(await openHost('a'), storedFile()))).toBe(reason);
});

it('zeros of a stored file take no space in the copy', async () => {
  await rm(path);
  execFileSync('qemu-img', ['create', '-q', '-f', 'qcow2', path, '4M']);
  await truncate(path, SPARSE_BYTES);
  sha256 = sha256Of(await readFile(path));
  const { path: copy } = await use(await openHost('a'), storedFile());
  expect((await stat(copy)).size).toBe(SPARSE_BYTES);
  expect((await stat(copy)).blocks * 512).toBeLessThan(DISK_BYTES);
});
