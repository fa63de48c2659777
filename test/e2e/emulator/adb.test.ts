/**
 * Debian's real ADB client against the stand-in for the Android emulator, whose guest has Debian's real adbd. The stand-in for arm64 runs its
 * guest on every machine, because QEMU emulates the processor.
 */
import { randomBytes } from 'node:crypto';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { AVD_NAME } from '../../../agent/drivers/emulator/arguments.ts';
import { NATIVE } from '../../../agent/drivers/emulator/sdk.ts';
import { waitFor } from '../../../hack/wait.ts';
import { makeSdk } from '../../standins/emulator/sdk.ts';
import { EmulatorHome } from '../../standins/emulator/undertest.ts';
import { AdbClient } from '../../wires/adb.ts';

const PORT = 5580;
const FILE_BYTES = 3 * 1024 * 1024;
/** An emulated guest boots, and then gets and sends a file. */
const TEST_MILLISECONDS = 300_000;
/** The driver's port is in use by other tests. These options keep lasting children away, as the driver's do. */
const OPTIONS = [
  `-avd ${AVD_NAME} -port ${PORT} -no-window -no-metrics -skip-adb-auth`,
  '-feature -BluetoothEmulation -feature -Uwb',
].flatMap((line) => line.split(' '));

describe.each(['amd64', 'arm64'] as const)(
  'stand-in for the emulator with a guest for %s',
  (architecture) => {
    test('ADB: connect, getprop before and after the boot, exit codes, push and pull', {
      timeout: TEST_MILLISECONDS,
    }, async () => {
      const folder = await mkdtemp(join(tmpdir(), 'berth-emulator-adb-'));
      try {
        const cues = { 'never-boots': true } as const;
        const sdk = await makeSdk(join(folder, 'sdk'), { architecture, mode: 'guest', cues });
        await using home = await EmulatorHome.make(sdk.root, { architecture });
        const emulator = home.start(OPTIONS);
        await home.discovered(emulator);
        await using adb = await AdbClient.open();
        const device = await adb.connect(`127.0.0.1:${PORT + 1}`);
        expect(await device.property('sys.boot_completed')).toBe('');
        expect(await device.property('ro.product.cpu.abi')).toBe(sdk.abi);
        expect((await device.shell('exit 7')).code).toBe(7);
        const [sent, received] = [join(folder, 'sent'), join(folder, 'received')];
        await writeFile(sent, randomBytes(FILE_BYTES));
        expect((await device.run('push', sent, '/data/local/tmp/file')).code).toBe(0);
        expect((await device.run('pull', '/data/local/tmp/file', received)).code).toBe(0);
        expect((await readFile(received)).equals(await readFile(sent))).toBe(true);
        expect(await device.property('sys.boot_completed')).toBe('');
        await device.shell('echo >/run/boot');
        await waitFor('the boot', async () => (await device.property('sys.boot_completed')) === '1');
        await waitFor('the words of the boot', () => emulator.output.includes('Boot completed in'));
      } finally {
        await rm(folder, { recursive: true, force: true });
      }
    });
  },
);

test('stand-in for the emulator without a guest: connect and getprop', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'berth-emulator-adb-'));
  try {
    const sdk = await makeSdk(join(folder, 'sdk'), { architecture: NATIVE, mode: 'sleeping' });
    await using home = await EmulatorHome.make(sdk.root);
    await home.discovered(home.start(OPTIONS));
    await using adb = await AdbClient.open();
    const device = await adb.connect(`127.0.0.1:${PORT + 1}`);
    await waitFor('the boot', async () => (await device.property('sys.boot_completed')) === '1');
    expect(await device.property('ro.product.model')).toBe('');
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
});
