/**
 * Makes an SDK folder as a host of emulators has it, with the stand-in for the Android emulator in place of the real program. The folder contains
 * all that the stand-in needs, so that any user of the machine can run it.
 */
import { chmod, copyFile, link, mkdir, mkdtemp, realpath, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { bundleInto } from '../../../hack/bundle.ts';
import type { GuestArchitecture } from '../../../hack/guest.ts';
import { adbdFiles } from '../../fixtures/images.ts';
import { type Cue, CUES_FOLDER } from './program/cues.ts';

/** Names of each architecture: of its system images, in `hw.cpu.arch`, and of its host. */
const NAMES = {
  amd64: { abi: 'x86_64', cpu: 'x86_64' },
  arm64: { abi: 'arm64-v8a', cpu: 'arm64' },
} as const;

/** Files of a system image that the stand-in does not read. */
const UNREAD = [
  'NOTICE.txt',
  'VerifiedBootParams.textproto',
  'advancedFeatures.ini',
  'encryptionkey.img',
  'kernel_cmdline.txt',
  'system.img',
  'userdata.img',
  'vendor.img',
];

export interface SdkOptions {
  /** Architecture of the program and of its system images. The real program runs images of its own architecture only. */
  architecture: GuestArchitecture;
  /** `guest`: QEMU boots a Linux guest with Debian's adbd. `sleeping`: no guest; the stand-in answers `getprop` over ADB itself. */
  mode: 'guest' | 'sleeping';
  /** Cues for all emulators of this SDK, with a number for the cues that have one. */
  cues?: Partial<Record<Cue, number | true>>;
  /** Names of the system images, as in `system-images/PLATFORM/TYPE`. */
  images?: readonly string[];
}

export interface StandInSdk {
  /** Value of `ANDROID_HOME` and of `emulator.sdk` in the agent's configuration. */
  root: string;
  /** `emulator/emulator` of the SDK. */
  program: string;
  /** Name of the architecture in the path of a system image and in `abi.type`. */
  abi: 'x86_64' | 'arm64-v8a';
  /** Name of the architecture in `hw.cpu.arch`. */
  cpu: 'x86_64' | 'arm64';
  /** Gives a cue to all emulators of this SDK; some cues also work while an emulator runs. */
  give: (cue: Cue, value?: number) => Promise<void>;
  /** Takes a cue back. */
  take: (cue: Cue) => Promise<void>;
}

/** Gives a cue to one AVD, by its folder `NAME.avd`. */
export async function giveCue(folder: string, cue: Cue, value?: number): Promise<void> {
  await mkdir(join(folder, CUES_FOLDER), { recursive: true });
  await writeFile(join(folder, CUES_FOLDER, cue), value === undefined ? '' : String(value));
}

/**
 * Makes an empty folder for an SDK that other users can enter. It is not in the folder for temporary files, because an emulator sees a
 * folder of its own there.
 */
export async function makeSdkFolder(): Promise<string> {
  const folder = await mkdtemp('/var/lib/berth-sdk-');
  await chmod(folder, 0o755);
  return folder;
}

/** Makes the SDK in `folder`, which is made if it does not exist. Callers let other users into the folders above. */
export async function makeSdk(
  folder: string,
  { architecture, mode, cues = {}, images = ['android-36/google_apis'] }: SdkOptions,
): Promise<StandInSdk> {
  const names = NAMES[architecture];
  const emulator = join(folder, 'emulator');
  for (const name of ['emulator', 'platform-tools', 'platforms', 'licenses']) {
    await mkdir(join(folder, name), { recursive: true });
  }
  await chmod(folder, 0o755);
  await makeProgram(emulator, `${names.cpu} ${architecture}`);
  for (const image of images) {
    const imageFolder = join(folder, 'system-images', image, names.abi);
    await makeImage(imageFolder, names.abi, image);
    if (mode === 'guest') {
      const { kernel, initramfs } = await adbdFiles(architecture);
      await copyFile(kernel, join(imageFolder, 'kernel-ranchu'));
      await copyFile(initramfs, join(imageFolder, 'ramdisk.img'));
    }
  }
  const sdk: StandInSdk = {
    root: folder,
    program: join(emulator, 'emulator'),
    ...names,
    give: async (cue, value) => await giveCue(emulator, cue, value),
    take: async (cue) => await rm(join(emulator, CUES_FOLDER, cue), { force: true }),
  };
  if (mode === 'sleeping') {
    await sdk.give('sleeping');
  }
  for (const [cue, value] of Object.entries(cues)) {
    await sdk.give(cue as Cue, value === true ? undefined : value);
  }
  return sdk;
}

/** Writes the program: a script that becomes the stand-in, with the same process id. */
async function makeProgram(folder: string, architectures: string): Promise<void> {
  const main = join(import.meta.dirname, 'program', 'main.ts');
  // One file without types starts in half the time and has half the memory.
  await bundleInto(join(folder, 'standin'), { main }, { extension: '.mjs', sourcemap: false });
  await linkOrCopy(await realpath(process.execPath), join(folder, 'standin', 'node'));
  await writeFile(join(folder, 'source.properties'), 'Pkg.Path=emulator\nPkg.Revision=36.1.9\n');
  const script = [
    '#!/bin/sh',
    '# Stand-in for the Android emulator.',
    'folder=$(dirname "$0")',
    `exec "$folder/standin/node" "$folder/standin/main.mjs" "$0" ${architectures} "$@"`,
    '',
  ];
  await writeFile(join(folder, 'emulator'), script.join('\n'), { mode: 0o755 });
}

async function makeImage(folder: string, abi: string, name: string): Promise<void> {
  const [platform = '', type = ''] = name.split('/');
  await mkdir(folder, { recursive: true });
  for (const file of [...UNREAD, 'kernel-ranchu', 'ramdisk.img']) {
    await writeFile(join(folder, file), '');
  }
  const properties = {
    'Pkg.Desc': `System image of the stand-in, ${name}`,
    'Pkg.Revision': '1',
    'AndroidVersion.ApiLevel': platform.replace('android-', ''),
    'SystemImage.Abi': abi,
    'SystemImage.TagId': type,
    'SystemImage.TagDisplay': 'Stand-in',
  };
  const lines = Object.entries(properties).map(([key, value]) => `${key}=${value}\n`);
  await writeFile(join(folder, 'source.properties'), lines.join(''));
  await writeFile(join(folder, 'build.prop'), `ro.product.cpu.abi=${abi}\n`);
  await writeFile(
    join(folder, 'package.xml'),
    `<localPackage path="system-images;${platform};${type};${abi}"/>\n`,
  );
}

/** A link takes no place, and other users can run it wherever the original is. */
async function linkOrCopy(file: string, target: string): Promise<void> {
  try {
    await link(file, target);
  } catch {
    // The folders are on different file systems.
    await copyFile(file, target);
  }
}
