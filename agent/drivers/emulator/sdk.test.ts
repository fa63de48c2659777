import { chmod, mkdir, rm, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import * as fc from 'fast-check';
import { beforeEach, describe, expect, it } from 'vitest';
import { run } from '../../../base/exec.ts';
import type { Architecture } from '../driver.ts';
import { contradiction, imageFolder, scan } from './sdk.ts';
import { makeFolder } from '../../../test/support/folder.ts';

const IMAGE = {
  platform: 'android-36',
  imageType: 'google_apis',
  architecture: 'amd64' as Architecture,
};
const PROPERTIES = [
  'Pkg.Revision=7',
  'AndroidVersion.ApiLevel=36',
  'SystemImage.Abi=x86_64',
  'SystemImage.TagId=google_apis',
];
const COMMAND = { timeoutMilliseconds: 60_000 };

let root: string;

beforeEach(async () => {
  root = makeFolder();
  await chmod(root, 0o755);
  for (const folder of ['platforms', 'platform-tools', 'emulator']) {
    await mkdir(join(root, folder));
  }
  await writeFile(join(root, 'emulator', 'emulator'), '#!/bin/sh\n', { mode: 0o755 });
  await makeImage();
});

async function makeImage(image = IMAGE, lines: readonly string[] = PROPERTIES): Promise<void> {
  const folder = join(root, imageFolder(image));
  await mkdir(folder, { recursive: true });
  for (const file of ['kernel-ranchu', 'ramdisk.img', 'system.img']) {
    await writeFile(join(folder, file), 'content');
  }
  await writeFile(join(folder, 'source.properties'), lines.join('\n'));
}

interface Changes {
  sdk?: string | undefined;
  program?: string;
  isRoot?: boolean;
  architecture?: Architecture;
}

async function offered(changes: Changes = {}) {
  const options = {
    sdk: root,
    program: undefined,
    isRoot: true,
    hostRoot: '',
    architecture: 'amd64' as const,
  };
  return await scan({ ...options, ...changes });
}

async function reason(changes: Changes = {}): Promise<string> {
  const offer = await offered(changes);
  return offer.kind === 'none' ? offer.message.replaceAll(root, 'SDK') : offer.kind;
}

describe('the SDK of a host', () => {
  it('offers the system images of the architecture of its guests', async () => {
    await makeImage({ ...IMAGE, platform: 'android-34' }, [
      ...PROPERTIES.filter((line) => !line.startsWith('AndroidVersion')),
      'AndroidVersion.ApiLevel=34',
    ]);
    await makeImage({ ...IMAGE, imageType: 'other' });
    await makeImage({ ...IMAGE, imageType: 'default', architecture: 'arm64' }, [
      ...PROPERTIES.slice(0, 2),
      'SystemImage.Abi=arm64-v8a',
      'SystemImage.TagId=default',
    ]);
    expect(await offered()).toEqual({
      kind: 'offered',
      systemImages: ['android-34.google_apis', 'android-36.google_apis'],
    });
    expect(await offered({ architecture: 'arm64' })).toEqual({
      kind: 'offered',
      systemImages: ['android-36.default'],
    });
  });

  it('says why a host offers nothing', async () => {
    expect(await reason({ sdk: undefined })).toBe(
      'The configuration of the agent names no SDK (emulator.sdk)',
    );
    expect(await reason({ sdk: join(root, 'nothing') })).toBe('The SDK SDK/nothing has no folder platforms');
    expect(await reason({ program: '/nowhere' })).toBe(
      'The emulator /nowhere is not a file that the Linux users of machines can execute',
    );
    await chmod(join(root, 'emulator', 'emulator'), 0o700);
    expect(await reason()).toContain('is not a file that the Linux users of machines can execute');
    expect(await reason({ isRoot: false })).toBe('offered');
    await chmod(join(root, 'emulator', 'emulator'), 0o755);
    await chmod(root, 0o700);
    expect(await reason()).toBe(
      'The Linux users of machines have no right to enter SDK, so they cannot use the SDK',
    );
    await chmod(root, 0o755);
    expect(await reason()).toBe('offered');
    await rm(join(root, 'platform-tools'), { recursive: true });
    expect(await reason()).toBe('The SDK SDK has no folder platform-tools');
  });

  it.each([
    ['no kernel', async (folder: string) => await rm(join(folder, 'kernel-ranchu')), 'no file kernel-ranchu'],
    [
      'a folder for a file',
      async (folder: string) => {
        await rm(join(folder, 'ramdisk.img'));
        await mkdir(join(folder, 'ramdisk.img'));
      },
      'no file ramdisk.img',
    ],
    [
      'a file for root alone',
      async (folder: string) => await chmod(join(folder, 'system.img'), 0o600),
      'no file system.img',
    ],
    [
      'a pipe that nobody writes',
      async (folder: string) => {
        await rm(join(folder, 'source.properties'));
        await run('mkfifo', [join(folder, 'source.properties')], COMMAND);
      },
      'no readable source.properties',
    ],
    [
      'a link in a circle',
      async (folder: string) => {
        await rm(join(folder, 'source.properties'));
        await symlink('source.properties', join(folder, 'source.properties'));
      },
      'no readable source.properties',
    ],
    [
      'a huge file',
      async (folder: string) => {
        await run('truncate', ['-s', '1T', join(folder, 'source.properties')], COMMAND);
      },
      'no readable source.properties',
    ],
    [
      'a closed folder',
      async (folder: string) => await chmod(join(folder, '..'), 0o700),
      'no right to enter',
    ],
  ])('does not offer a system image with %s', async (_, damage, expected) => {
    await damage(join(root, imageFolder(IMAGE)));
    expect(await reason()).toContain(expected);
  });

  it('offers only names that are allowed in paths, and looks at 64 types of a platform', async () => {
    for (let level = 100; level < 102; level += 1) {
      for (let type = 0; type < 70; type += 1) {
        const image = { ...IMAGE, platform: `android-${level}`, imageType: `t${type}` };
        const lines = ['Pkg.Revision=1', `AndroidVersion.ApiLevel=${level}`, 'SystemImage.Abi=x86_64'];
        await makeImage(image, [...lines, `SystemImage.TagId=t${type}`]);
      }
    }
    for (const imageType of ['with space', '..x']) {
      await makeImage({ ...IMAGE, imageType }, [...PROPERTIES.slice(0, 3), `SystemImage.TagId=${imageType}`]);
    }
    const offer = await offered();
    const names = offer.kind === 'offered' ? offer.systemImages : [];
    expect(names.filter((name) => name.startsWith('android-100.'))).toHaveLength(64);
    expect(names.filter((name) => name.startsWith('android-101.'))).toHaveLength(64);
    // The names of the two other image types are not allowed in paths.
    expect(names.filter((name) => name.startsWith('android-36.'))).toEqual(['android-36.google_apis']);
  });
});

describe('source.properties', () => {
  it.each(PROPERTIES)('must have the line %s', (line) => {
    const text = PROPERTIES.filter((other) => other !== line).join('\r\n');
    expect(contradiction(IMAGE, text)).toContain(`has no line ${line.split('=')[0]}`);
    expect(contradiction(IMAGE, PROPERTIES.join('\r\n'))).toBeUndefined();
  });

  it('is read whatever it holds', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'binary' }), (text) => {
        expect(contradiction(IMAGE, text)).toContain('has no line Pkg.Revision');
      }),
    );
  });
});
