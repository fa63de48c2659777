/**
 * Makes the Android virtual device (AVD), the command line and the environment of an emulator. The AVD describes the device to the emulator's
 * program. An AVD consists of `NAME.ini` and of a folder `NAME.avd` with `config.ini`. The emulator adds its disks to this folder.
 */
import {
  EMULATOR_DATA_BYTES,
  type EMULATOR_DEVICES,
  type EmulatorMachine,
} from '../../../api/v1alpha1/emulatormachine.ts';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import type { Architecture } from '../driver.ts';
import { ABIS, imageFolder } from './sdk.ts';

/** Name of the AVD. Each machine has its own folder of AVDs, so the AVDs of all machines can have the same name. */
export const AVD_NAME = 'berth';

interface Device {
  maker: 'Google' | 'Generic';
  width: number;
  height: number;
  /** Pixels per inch. The number must be one of Android's density values. */
  density: number;
}

/** Screen of each device that users can choose. */
const DEVICES: Readonly<Record<(typeof EMULATOR_DEVICES)[number], Device>> = {
  medium_phone: { maker: 'Generic', width: 1080, height: 2400, density: 420 },
  medium_tablet: { maker: 'Generic', width: 2560, height: 1600, density: 320 },
  small_phone: { maker: 'Generic', width: 720, height: 1280, density: 320 },
  pixel_6: { maker: 'Google', width: 1080, height: 2400, density: 420 },
  pixel_7: { maker: 'Google', width: 1080, height: 2400, density: 420 },
  pixel_8: { maker: 'Google', width: 1080, height: 2400, density: 420 },
  pixel_9: { maker: 'Google', width: 1080, height: 2424, density: 420 },
  pixel_9_pro: { maker: 'Google', width: 1280, height: 2856, density: 480 },
  pixel_tablet: { maker: 'Google', width: 2560, height: 1600, density: 320 },
};

const GIBIBYTE = 1024 ** 3;

interface AvdFiles {
  /** Content of `NAME.ini`. */
  ini: string;
  /** Content of `NAME.avd/config.ini`. */
  config: string;
}

type Described = Pick<EmulatorMachine, 'platform' | 'device' | 'imageType'> & { architecture: Architecture };

/** Returns the screen of a device. @throws ReasonedError `CreateFailed` when the device is unknown. The message lists the known devices. */
export function requireDevice(device: string): Device {
  const devices: Readonly<Record<string, Device>> = DEVICES;
  const known = Object.hasOwn(devices, device) ? devices[device] : undefined;
  if (known === undefined) {
    const names = Object.keys(DEVICES).sort().join(', ');
    throw new ReasonedError(
      'CreateFailed',
      `The device ${device} is unknown. The known devices are ${names}`,
    );
  }
  return known;
}

/**
 * Returns the files of an AVD. `folder` is the path of the folder of AVDs, as the emulator sees it.
 *
 * @throws ReasonedError as {@link requireDevice} does.
 */
export function avdFiles(described: Described, folder: string): AvdFiles {
  const { platform, device, imageType, architecture } = described;
  const known = requireDevice(device);
  return {
    ini: lines({
      'avd.ini.encoding': 'UTF-8',
      path: `${folder}/${AVD_NAME}.avd`,
      'path.rel': `avd/${AVD_NAME}.avd`,
      target: platform,
    }),
    config: lines({
      AvdId: AVD_NAME,
      'PlayStore.enabled': imageType.includes('playstore') ? 'yes' : 'no',
      'abi.type': ABIS[architecture].abi,
      'avd.ini.displayname': AVD_NAME,
      'avd.ini.encoding': 'UTF-8',
      'disk.dataPartition.size': `${EMULATOR_DATA_BYTES / GIBIBYTE}G`,
      'fastboot.forceColdBoot': 'yes',
      'hw.cpu.arch': ABIS[architecture].cpu,
      'hw.device.manufacturer': known.maker,
      'hw.device.name': device,
      'hw.gpu.enabled': 'yes',
      'hw.gpu.mode': 'swiftshader_indirect',
      'hw.keyboard': 'yes',
      'hw.lcd.density': String(known.density),
      'hw.lcd.height': String(known.height),
      'hw.lcd.width': String(known.width),
      'image.sysdir.1': `${imageFolder(described)}/`,
      showDeviceFrame: 'no',
      'tag.display': imageType,
      'tag.id': imageType,
    }),
  };
}

function lines(values: Record<string, string>): string {
  return Object.entries(values)
    .map(([key, value]) => `${key}=${value}\n`)
    .join('');
}

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
export function args(...values: string[]): string[] {
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
    ...args('-avd', AVD_NAME, ...processMark(command.uid)),
    // With these options, the emulator has no screen, no sound and no snapshots. So each boot is a cold boot, and the state of a running
    // guest is never saved.
    ...args('-no-window', '-no-audio', '-no-boot-anim', '-no-snapshot', '-gpu', 'swiftshader_indirect'),
    // These options prevent reports to the vendor, and helper processes that would outlive the emulator.
    ...args('-no-metrics', '-feature', '-BluetoothEmulation', '-feature', '-Uwb'),
    ...args('-cores', String(command.cpu), '-memory', String(Math.floor(command.memoryBytes / MEBIBYTE))),
    // With `-accel on`, the emulator ends at once with an error if it cannot use virtualization.
    ...args('-accel', command.isAccelerated ? 'on' : 'auto'),
    // `-port` sets the port of the console. The port of ADB is the next higher number. If another program uses the console's port, the
    // emulator ends. The option `-ports` is not used, because with it some versions of the emulator do not report such a conflict. With
    // `-skip-adb-auth`, ADB requires no key. This is safe, because the machine's network protects ADB. gRPC stays off, because the emulator
    // would serve gRPC without a password.
    ...args('-port', String(CONSOLE_PORT), '-skip-adb-auth'),
    ...args('-dns-server', command.dnsServer, '-show-kernel'),
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
