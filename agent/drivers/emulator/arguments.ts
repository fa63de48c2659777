/** The command line and the environment of an emulator. */
import { AVD_NAME } from './avd.ts';

/** Port of the emulator's console on the loopback address of its network namespace. */
export const CONSOLE_PORT = 5554;
/**
 * Port at which an emulator looks for an ADB server when it starts. No program listens at this port, so the emulator finds no server. At
 * the usual port, the emulator could find an ADB server of another user, and that server would then list the emulator.
 */
const NO_SERVER_PORT = 5038;
/** Value of the emulator's environment variable `PATH`. The emulator starts programs of the host from these folders. */
const PATH = '/usr/sbin:/usr/bin:/sbin:/bin';
const MEBIBYTE = 1024 ** 2;

export interface EmulatorCommand {
  program: string;
  uid: string;
  cpu: number;
  memoryBytes: number;
  /** Whether the emulator can use the processor's virtualization. */
  isAccelerated: boolean;
  dnsServer: string;
}

/**
 * Returns the given values as an array. In a long array, the code formatter would put each value on its own line. A call of this function
 * keeps an option and its values on one line.
 */
export function words(...values: string[]): string[] {
  return values;
}

/**
 * Returns the arguments by which the agent finds a machine's process among all processes. The uid alone is not enough, because a program
 * that searches for the machine can have it as an argument too.
 */
export function processMark(uid: string): string[] {
  return ['-id', uid];
}

export function commandLine(command: EmulatorCommand): [string, ...string[]] {
  return [
    command.program,
    ...words('-avd', AVD_NAME, ...processMark(command.uid)),
    // With these options, the emulator has no screen, no sound and no snapshots. So each boot is a cold boot, and the state of a running
    // guest is never saved.
    ...words('-no-window', '-no-audio', '-no-boot-anim', '-no-snapshot', '-gpu', 'swiftshader_indirect'),
    // These options prevent reports to the vendor, and helper processes that would outlive the emulator.
    ...words('-no-metrics', '-feature', '-BluetoothEmulation', '-feature', '-Uwb'),
    ...words('-cores', String(command.cpu), '-memory', String(Math.floor(command.memoryBytes / MEBIBYTE))),
    // With `-accel on`, the emulator ends at once with an error if it cannot use virtualization.
    ...words('-accel', command.isAccelerated ? 'on' : 'auto'),
    // `-port` sets the port of the console. The port of ADB is the next higher number. If another program uses the console's port, the
    // emulator ends. The option `-ports` is not used, because with it some versions of the emulator do not report such a conflict. With
    // `-skip-adb-auth`, ADB requires no key. This is safe, because the machine's network protects ADB. gRPC stays off, because the emulator
    // would serve gRPC without a password.
    ...words('-port', String(CONSOLE_PORT), '-skip-adb-auth'),
    ...words('-dns-server', command.dnsServer, '-show-kernel'),
  ];
}

/** Names of folders in a machine's folder. These folders belong to the machine's user. */
export const FOLDERS = {
  /** Home folder of the user. The folder contains the token of the console. */
  home: 'home',
  temporary: 'tmp',
  /** Folder for sockets, and for the file with which other programs find the emulator. */
  runtime: 'run',
} as const;

/**
 * Name of the folder in a machine's folder that contains the machine's Android virtual device (AVD). This folder belongs to root, so that
 * the machine's user cannot replace the AVD by a link.
 */
export const AVDS = 'avd';

/**
 * Returns the environment of an emulator. `folder` is the path of the machine's folder, as the emulator sees it. All folders to which the
 * emulator writes are in this folder, so no other emulator of the host has the same folders.
 */
export function environment(folder: string, sdk: string): Record<string, string> {
  const home = `${folder}/${FOLDERS.home}`;
  const temporary = `${folder}/${FOLDERS.temporary}`;
  return {
    PATH,
    LC_ALL: 'C',
    HOME: home,
    USER: AVD_NAME,
    LOGNAME: AVD_NAME,
    TMPDIR: temporary,
    ANDROID_TMP: temporary,
    XDG_RUNTIME_DIR: `${folder}/${FOLDERS.runtime}`,
    ANDROID_HOME: sdk,
    ANDROID_SDK_ROOT: sdk,
    ANDROID_EMULATOR_HOME: `${home}/.android`,
    ANDROID_AVD_HOME: `${folder}/${AVDS}`,
    ANDROID_ADB_SERVER_PORT: String(NO_SERVER_PORT),
  };
}
