import { readFileSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { expect, it } from 'vitest';
import { isMissing, messageWithoutPaths, undefinedIf, undefinedIfSync } from './errors.ts';

it('an expected error is no result, and any other error is thrown', async () => {
  expect(await undefinedIf(isMissing, readFile('/none'))).toBeUndefined();
  expect(undefinedIfSync(isMissing, () => readFileSync('/none'))).toBeUndefined();
  await expect(undefinedIf(isMissing, readFile('/'))).rejects.toThrow('EISDIR');
  expect(() => undefinedIfSync(isMissing, () => readFileSync('/'))).toThrow('EISDIR');
});

it.each([
  [
    "ENOENT: no such file or directory, open '/var/lib/berth/machines/a/disk.raw'",
    "ENOENT: no such file or directory, open 'disk.raw'",
  ],
  [
    "EXDEV: cross-device link, rename '/var/a/b' -> '/srv/c/d'",
    "EXDEV: cross-device link, rename 'b' -> 'd'",
  ],
  [
    'qemu-img: Could not open file=/srv/images/team/a.qcow2: denied',
    'qemu-img: Could not open file=a.qcow2: denied',
  ],
  [
    'https://files.example/team/disk.raw and team/disk.raw and /disk',
    'https://files.example/team/disk.raw and team/disk.raw and /disk',
  ],
])('the message %j has no folder of the host for tenants: %j', (message, shown) => {
  const cause = Object.assign(new Error(message), { code: 'ENOENT' });
  expect(messageWithoutPaths(cause)).toBe(shown);
  expect(messageWithoutPaths(Object.assign(new Error(message, { cause }), { reason: 'CopyFailed' }))).toBe(
    shown,
  );
  expect(messageWithoutPaths(Object.assign(new Error(message), { reason: 'ImageInvalid' }))).toBe(message);
});
