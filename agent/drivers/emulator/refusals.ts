/** Sentences with which the driver refuses requests that only other machines can fulfil. */

export const NO_CONSOLE = 'An emulator has no console for input. Use ADB, or read its log with kubectl logs';
export const NO_SCREEN =
  'An emulator has no screen that Berth serves. Use a program that shows screens over ADB';
export const NO_FORWARD = 'An emulator has an address of its own, so no port of the host leads to it';
export const NO_COMMAND = 'Berth runs no commands in an emulator. Use adb shell';
export const NO_SUSPEND = 'An emulator cannot be suspended. Delete it, and create it again';
export const NO_REVERT = 'An emulator cannot be reverted. Delete it, and create it again';
export const NO_DISK_COPY = 'The data of an emulator cannot be copied. Use adb pull';
