/** Messages that refuse a request to an emulator, because only VMs support the request. */
import { ADB_PORT } from '../../../api/v1alpha1/names.ts';

export const NO_CONSOLE = 'An emulator has no console to attach to. Read its log with `kubectl logs`';
export const NO_SCREEN =
  'Berth does not serve the screen of an emulator. Use a program that shows screens over ADB';
export const NO_FORWARD = 'An emulator has its own address, so the host forwards no port to it';
export const NO_COMMAND = `An emulator has no guest agent that runs commands. To run a command, forward port ${ADB_PORT} with \`kubectl port-forward\`, and use \`adb shell\``;
export const NO_SUSPEND = 'An emulator cannot be suspended. Delete it, and create it again';
export const NO_REVERT = 'An emulator cannot be reverted. Delete it, and create it again';
export const NO_DISK_COPY = 'Berth cannot copy the data of an emulator. Copy its files with `adb pull`';
