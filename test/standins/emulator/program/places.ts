/** Stand-in for the Android emulator: where it finds its SDK, its AVDs, and the folder of running emulators. */
import { existsSync, readdirSync, readFileSync, statSync } from 'node:fs';
import { homedir } from 'node:os';
import { dirname, join } from 'node:path';
import { Fatal } from './arguments.ts';

/** Levels above the program that are searched for an SDK. */
const GUESSED_LEVELS = 3;

export interface Avd {
  name: string;
  folder: string;
  /** Keys of `config.ini`. */
  config: Map<string, string>;
}

/** Returns the root of the SDK. `program` is the path of `emulator/emulator`. */
export function sdkRoot(program: string): string | undefined {
  const guesses = [dirname(program)];
  while (guesses.length < GUESSED_LEVELS) {
    guesses.push(dirname(guesses.at(-1) ?? '/'));
  }
  return [process.env['ANDROID_HOME'], process.env['ANDROID_SDK_ROOT'], ...guesses].find(
    (folder) =>
      folder !== undefined && isFolder(join(folder, 'platforms')) && isFolder(join(folder, 'platform-tools')),
  );
}

/** Returns the folder of AVDs. `ANDROID_AVD_HOME` counts only if the folder exists. */
function avdRoot(): string {
  const { env } = process;
  const own = env['ANDROID_AVD_HOME'];
  if (own !== undefined && isFolder(own)) {
    return own;
  }
  const settings =
    env['ANDROID_EMULATOR_HOME'] ??
    join(env['ANDROID_PREFS_ROOT'] ?? env['ANDROID_SDK_HOME'] ?? env['HOME'] ?? homedir(), '.android');
  return join(settings, 'avd');
}

export function listAvds(): string[] {
  const root = avdRoot();
  const files = isFolder(root) ? readdirSync(root) : [];
  return files
    .filter((file) => file.endsWith('.ini'))
    .map((file) => file.slice(0, -'.ini'.length))
    .sort();
}

/** @throws Fatal if there is no AVD of this name. */
export function findAvd(name: string | undefined): Avd {
  if (name === undefined) {
    throw new Fatal("No AVD specified. Use '@foo' or '-avd foo' to launch a virtual device named 'foo'");
  }
  const root = avdRoot();
  const file = join(root, `${name}.ini`);
  if (!existsSync(file)) {
    throw new Fatal(`Unknown AVD name [${name}], use -list-avds to see valid list.`);
  }
  const ini = readIni(file);
  const relative = ini.get('path.rel');
  const folder = [ini.get('path'), relative === undefined ? undefined : join(dirname(root), relative)].find(
    (path) => path !== undefined && isFolder(path),
  );
  if (folder === undefined || !existsSync(join(folder, 'config.ini'))) {
    throw new Fatal(`Could not open the configuration of AVD [${name}]`);
  }
  return { name, folder, config: readIni(join(folder, 'config.ini')) };
}

/** Returns the folder in which each running emulator has a file `pid_PID.ini`. */
export function runningFolder(): string {
  const folder = process.env['XDG_RUNTIME_DIR'] ?? `/run/user/${process.getuid?.()}`;
  return join(folder, 'avd', 'running');
}

export function readIni(file: string): Map<string, string> {
  const lines = readFileSync(file, 'utf8')
    .split('\n')
    .map((line) => /^\s*([^#;=\s][^=]*?)\s*=\s*(.*?)\s*$/.exec(line));
  return new Map(lines.flatMap((match) => (match === null ? [] : [[match[1] ?? '', match[2] ?? '']])));
}

function isFolder(path: string): boolean {
  return statSync(path, { throwIfNoEntry: false })?.isDirectory() ?? false;
}
