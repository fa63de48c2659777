/** Stand-in for the Android emulator: the files that it makes in its AVD, and the file by which others discover it. */
import {
  closeSync,
  ftruncateSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { Fatal } from './arguments.ts';
import { type Avd, readIni, runningFolder } from './places.ts';

const LOCKS = ['hardware-qemu.ini.lock', 'multiinstance.lock'];
/** Size of the data disk without content. The real disk grows up to `disk.dataPartition.size`. */
const DATA_BYTES = 1024 * 1024;

/**
 * Takes the AVD for this process. A lock counts while a process with its number lives, whichever program that is.
 * @throws Fatal if another process has it.
 */
export function lock(avd: Avd): void {
  for (const name of LOCKS) {
    const file = join(avd.folder, name);
    const holder = readPid(file);
    if (holder !== undefined && isAlive(holder)) {
      throw new Fatal(SAME_AVD);
    }
    writeFileSync(file, `${process.pid}\n`);
  }
}

export const SAME_AVD =
  'Running multiple emulators with the same AVD is an experimental feature.\nPlease use -read-only flag to enable this feature.';

/** Removes the locks and the discovery file, as an emulator does that ends by itself. */
export function removeTraces(avd: Avd): void {
  for (const file of [...LOCKS.map((name) => join(avd.folder, name)), discoveryFile()]) {
    rmSync(file, { force: true });
  }
}

/** Writes `hardware-qemu.ini` and disks, and removes the sign of an earlier boot. */
export function writeAvdFiles(avd: Avd, hardware: Readonly<Record<string, string | number>>): void {
  rmSync(bootFile(avd), { force: true });
  mkdirSync(join(avd.folder, 'snapshots'), { recursive: true });
  for (const name of ['userdata-qemu.img', 'cache.img', 'encryptionkey.img']) {
    const disk = openSync(join(avd.folder, name), 'a');
    ftruncateSync(disk, DATA_BYTES);
    closeSync(disk);
  }
  writeFileSync(join(avd.folder, 'hardware-qemu.ini'), iniText(hardware));
}

export function writeBootCompleted(avd: Avd): void {
  writeFileSync(bootFile(avd), '');
}

/** Returns the path of the discovery file of this process. Files of ended emulators are removed. */
export function writeDiscovery(facts: Readonly<Record<string, string | number>>): string {
  const folder = runningFolder();
  mkdirSync(folder, { recursive: true });
  for (const file of readdirSync(folder)) {
    const pid = Number(/^pid_(\d+)\.ini$/.exec(file)?.[1] ?? process.pid);
    if (!isAlive(pid)) {
      rmSync(join(folder, file), { force: true });
    }
  }
  const file = discoveryFile();
  writeFileSync(file, iniText(facts), { mode: 0o600 });
  return file;
}

/** Returns whether the SDK has the system image, as `source.properties` of its folder says. */
export function hasSystemImage(folder: string): boolean {
  try {
    for (const file of ['kernel-ranchu', 'ramdisk.img', 'system.img']) {
      closeSync(openSync(join(folder, file), 'r'));
    }
    return readIni(join(folder, 'source.properties')).has('SystemImage.Abi');
  } catch {
    return false;
  }
}

function discoveryFile(): string {
  return join(runningFolder(), `pid_${process.pid}.ini`);
}

function bootFile(avd: Avd): string {
  return join(avd.folder, 'bootcompleted.ini');
}

function iniText(facts: Readonly<Record<string, string | number>>): string {
  return Object.entries(facts)
    .map(([key, value]) => `${key}=${value}\n`)
    .join('');
}

function readPid(file: string): number | undefined {
  try {
    const pid = Number(readFileSync(file, 'utf8'));
    return pid > 0 ? pid : undefined;
  } catch {
    // There is no such file.
    return undefined;
  }
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}
