/**
 * Makes the Android virtual device (AVD) of an emulator. The AVD describes the device to the emulator's program. An AVD consists of
 * `NAME.ini` and of a folder `NAME.avd` with `config.ini`. The emulator adds its disks to this folder.
 */
import {
  type EmulatorMachine,
  EMULATOR_DATA_BYTES,
  type EMULATOR_DEVICES,
} from '../../../api/v1alpha1/emulatormachine.ts';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { ABIS, type Architecture, imageFolder } from './sdk.ts';

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

export interface AvdFiles {
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
