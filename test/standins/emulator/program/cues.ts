/**
 * Stand-in for the Android emulator: cues, by which tests choose its failures. A cue is a file in `cues` of the folder `emulator` of the SDK, for all
 * emulators, or of the AVD's folder. The command line of the product therefore stays as it is with the real program.
 */
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

/** Cues and their values. Cues without an explanation are files without content. */
export type Cue =
  /** No guest: the stand-in answers ADB itself, and only `getprop`. */
  | 'sleeping'
  /** Milliseconds from the start of the guest until `sys.boot_completed` is 1. */
  | 'boot-after'
  /** Without a guest, the boot completes when the file is removed. A guest's boot completes after `echo >/run/boot` in its shell. */
  | 'never-boots'
  /** Milliseconds until the emulator ends with code 1. */
  | 'ends-during-boot'
  | 'image-missing'
  | 'no-acceleration'
  | 'disk-full'
  | 'avd-locked'
  | 'port-taken'
  /** ADB answers and asks for a key. No guest is started. */
  | 'asks-for-key'
  /** A child that outlives the emulator, whatever its options are. */
  | 'lasting-child'
  /** The console says OK to `kill`, and the emulator goes on. SIGTERM does nothing either. */
  | 'hangs-at-kill';

/** Name of the folder of the cues. */
export const CUES_FOLDER = 'cues';

/** Cues of the SDK and of one AVD. They are read at each question, so that a test can give one while the emulator runs. */
export class Cues {
  readonly #folders: string[];

  constructor(...folders: string[]) {
    this.#folders = folders.map((folder) => join(folder, CUES_FOLDER));
  }

  has(cue: Cue): boolean {
    return this.#folders.some((folder) => existsSync(join(folder, cue)));
  }

  /** Returns the number in the cue's file; `otherwise` if there is no such cue. */
  number(cue: Cue, otherwise: number): number {
    const file = this.#folders.map((folder) => join(folder, cue)).find((path) => existsSync(path));
    return file === undefined ? otherwise : Number(readFileSync(file, 'utf8'));
  }
}
