/**
 * Finds what this host has for emulators: the emulator's program and system images of an Android SDK for the guests' architecture, and the
 * right to use the processor's virtualization. The host's administrator installs the SDK. The folders of the SDK can be incomplete, or can
 * contain any number of other files. So each read has a limit.
 */
import { constants } from 'node:fs';
import { open, readdir, stat } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { ANDROID_NAME, systemImageName } from '../../../api/v1alpha1/emulatormachine.ts';
import { isOfSystem, undefinedIf } from '../../../base/errors.ts';
import type { Architecture, EmulatorOffer } from '../driver.ts';

export interface SdkOptions {
  /** Folder of the SDK, or undefined if the configuration names none. */
  sdk: string | undefined;
  /** Path of the emulator's program. If undefined, the program is `emulator/emulator` in the SDK. */
  program: string | undefined;
  /** Architecture of guests. */
  architecture: Architecture;
  /** Whether each machine runs as a separate Linux user. If true, all users must have the right to read the SDK's files. */
  isRoot: boolean;
  /** Path of the host's root directory: `/proc/1/root` if the agent runs in a container, and otherwise an empty text. */
  hostRoot: string;
}

/**
 * Largest number of entries that are read in one folder. The vendor offers about 20 platforms, and about 8 image types for each platform.
 */
const ENTRIES_LIMIT = 64;
/** Limit of a file `source.properties` in bytes. The vendor's files have about 500 bytes. */
const PROPERTIES_LIMIT_BYTES = 16 * 1024;
/** Folders that an SDK must have, because the emulator does not accept an SDK without them. */
const FOLDERS = ['platforms', 'platform-tools'];
/** Files that a system image must have, because no emulator boots without them. */
const IMAGE_FILES = ['kernel-ranchu', 'ramdisk.img', 'system.img'];
const PROPERTIES = 'source.properties';

/** Mode bits for users who are neither the owner of a file nor in its group. */
const READ = 0o004;
const ENTER = 0o001;

/** Names of each architecture in an SDK: the name of the ABI, and the name of the processor. */
export const ABIS = {
  amd64: { abi: 'x86_64', cpu: 'x86_64' },
  arm64: { abi: 'arm64-v8a', cpu: 'arm64' },
} as const;

/**
 * Architecture of this host's processor. It is the default for guests, because the emulator's program runs only guests of its own
 * architecture.
 */
export const NATIVE: Architecture = process.arch === 'arm64' ? 'arm64' : 'amd64';

interface ImageName {
  platform: string;
  imageType: string;
  architecture: Architecture;
}

/** Returns the folder of a system image, relative to the SDK. */
export function imageFolder({ platform, imageType, architecture }: ImageName): string {
  return join('system-images', platform, imageType, ABIS[architecture].abi);
}

export function programOf({ sdk = '', program }: Pick<SdkOptions, 'sdk' | 'program'>): string {
  return program ?? join(sdk, 'emulator', 'emulator');
}

/** Returns the system images of this host, or the reason why the host runs no emulators. */
export async function scan(options: SdkOptions): Promise<EmulatorOffer> {
  const { sdk, hostRoot, architecture } = options;
  if (sdk === undefined) {
    return none('The configuration of the agent names no SDK (emulator.sdk)');
  }
  const problem = await problemOf(options, sdk);
  if (problem !== undefined) {
    return none(problem);
  }
  const found: string[] = [];
  let first: string | undefined;
  for await (const name of imagesIn(join(hostRoot, sdk), architecture)) {
    const fault = await faultOf(name, options);
    if (fault === undefined) {
      found.push(systemImageName(name));
    }
    first ??= fault;
  }
  if (found.length > 0) {
    return { kind: 'offered', systemImages: found };
  }
  const why = first ?? 'install one with the SDK manager';
  return none(`The SDK ${sdk} has no usable system image for ${ABIS[architecture].abi}: ${why}`);
}

function none(message: string): EmulatorOffer {
  return { kind: 'none', message };
}

/** Returns the first reason why no emulator can run from this SDK; undefined if there is no such reason. */
async function problemOf(options: SdkOptions, sdk: string): Promise<string | undefined> {
  const { hostRoot, isRoot } = options;
  for (const name of FOLDERS) {
    if ((await folderMode(join(hostRoot, sdk, name))) === undefined) {
      return `The SDK ${sdk} has no folder ${name}`;
    }
  }
  const program = programOf(options);
  const mode = await fileMode(join(hostRoot, program));
  const right = isRoot ? ENTER : 0o100;
  if (mode === undefined || (mode & right) === 0) {
    return `The emulator ${program} is not a file that the Linux users of machines can execute`;
  }
  for (const path of isRoot ? [sdk, dirname(program)] : []) {
    const closed = await closedFolder(hostRoot, path);
    if (closed !== undefined) {
      return `The Linux users of machines have no right to enter ${closed}, so they cannot use the SDK`;
    }
  }
  return undefined;
}

/**
 * Checks each folder of a path, from the root on. Returns the first folder that some users have no right to enter; undefined if all users
 * may enter all of these folders.
 */
async function closedFolder(hostRoot: string, path: string): Promise<string | undefined> {
  const above = dirname(path);
  const closed = above === path ? undefined : await closedFolder(hostRoot, above);
  const mode = closed === undefined ? await folderMode(join(hostRoot, path)) : 0;
  return closed ?? ((mode ?? 0) & ENTER ? undefined : path);
}

/** Yields the names of folders that are perhaps system images for this host. */
async function* imagesIn(sdk: string, architecture: Architecture): AsyncGenerator<ImageName> {
  const root = join(sdk, 'system-images');
  for (const platform of await readNames(root)) {
    for (const imageType of await readNames(join(root, platform))) {
      const name = { platform, imageType, architecture };
      if ((await folderMode(join(sdk, imageFolder(name)))) !== undefined) {
        yield name;
      }
    }
  }
}

async function readNames(folder: string): Promise<string[]> {
  const names = (await undefinedIf(isOfSystem, readdir(folder))) ?? [];
  return names
    .filter((name) => ANDROID_NAME.test(name))
    .sort()
    .slice(0, ENTRIES_LIMIT);
}

/** Returns the reason why a system image cannot be used; undefined if it can be used. */
async function faultOf(name: ImageName, options: SdkOptions): Promise<string | undefined> {
  const { sdk: own = '', hostRoot, isRoot } = options;
  const [folder, sdk] = [imageFolder(name), join(hostRoot, own)];
  const closed = isRoot ? await closedFolder(hostRoot, join(own, folder)) : undefined;
  if (closed !== undefined) {
    return `the Linux users of machines have no right to enter ${closed}`;
  }
  for (const file of IMAGE_FILES) {
    const mode = await fileMode(join(sdk, folder, file));
    if (mode === undefined || (isRoot && (mode & READ) === 0)) {
      return `${folder} has no file ${file} that the Linux users of machines can read`;
    }
  }
  const text = await readBounded(join(sdk, folder, PROPERTIES));
  return text === undefined ? `${folder} has no readable ${PROPERTIES}` : contradiction(name, text);
}

/**
 * Compares `text`, the content of `source.properties`, with the names in the image's path. Returns a message about the first difference, or
 * undefined if there is none.
 */
export function contradiction(name: ImageName, text: string): string | undefined {
  const { platform, imageType, architecture } = name;
  const stated = parseProperties(text);
  const level = /^android-(\d+)/.exec(platform)?.[1];
  const wanted: [key: string, value: string | undefined][] = [
    ['Pkg.Revision', undefined],
    ['AndroidVersion.ApiLevel', level],
    ['SystemImage.Abi', ABIS[architecture].abi],
    ['SystemImage.TagId', imageType],
  ];
  const wrong = wanted.find(([key, value]) => {
    const found = stated.get(key);
    return found === undefined || (value !== undefined && value !== found);
  });
  const file = join(imageFolder(name), PROPERTIES);
  return wrong && `${file} has no line ${wrong[0]}${wrong[1] === undefined ? '' : `=${wrong[1]}`}`;
}

function parseProperties(text: string): Map<string, string> {
  const lines = text.split(/\r?\n/).map((line) => /^\s*([A-Za-z0-9.]+)\s*=\s*(.*?)\s*$/.exec(line));
  return new Map(lines.flatMap((match) => (match === null ? [] : [[match[1] ?? '', match[2] ?? '']])));
}

async function folderMode(path: string): Promise<number | undefined> {
  const found = await undefinedIf(isOfSystem, stat(path));
  return found?.isDirectory() ? found.mode : undefined;
}

async function fileMode(path: string): Promise<number | undefined> {
  const found = await undefinedIf(isOfSystem, stat(path));
  return found?.isFile() ? found.mode : undefined;
}

/**
 * Reads a small text file. Returns undefined if the path is not a regular file, or the file is too large or not readable. If the path is a
 * pipe, the call does not block.
 */
async function readBounded(path: string): Promise<string | undefined> {
  const handle = await undefinedIf(isOfSystem, open(path, constants.O_RDONLY | constants.O_NONBLOCK));
  if (handle === undefined) {
    return undefined;
  }
  try {
    const found = await handle.stat();
    if (!found.isFile() || found.size > PROPERTIES_LIMIT_BYTES) {
      return undefined;
    }
    const { buffer, bytesRead } = await handle.read(Buffer.alloc(PROPERTIES_LIMIT_BYTES), 0);
    return buffer.toString('utf8', 0, bytesRead);
  } finally {
    await handle.close();
  }
}

const DEVICE = '/dev/kvm';
const READ_AND_WRITE = { all: 0o006, group: 0o060 };

/**
 * Returns the Linux groups (gid) that a machine's user needs to open the device `/dev/kvm`; at most one. Returns undefined if the user cannot open the device, or
 * the device does not work. The emulator opens the device as the machine's user, so the rights of root are not enough.
 */
export async function accelerationGroups(hostRoot: string, isRoot: boolean): Promise<number[] | undefined> {
  const path = join(hostRoot, DEVICE);
  const handle = await undefinedIf(isOfSystem, open(path, constants.O_RDWR | constants.O_NONBLOCK));
  if (handle === undefined) {
    return undefined;
  }
  await handle.close();
  return isRoot ? groupsFor(await stat(path)) : [];
}

/**
 * Returns the groups that a user other than root needs to read and write a file. The list is empty if all users may read and write the
 * file. Returns undefined if no usable group gives these rights.
 */
export function groupsFor({ mode, gid }: { mode: number; gid: number }): number[] | undefined {
  if ((mode & READ_AND_WRITE.all) === READ_AND_WRITE.all) {
    return [];
  }
  // The group of root is not usable, because a process in this group could read other files of the host.
  return (mode & READ_AND_WRITE.group) === READ_AND_WRITE.group && gid !== 0 ? [gid] : undefined;
}
