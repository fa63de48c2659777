/**
 * What the driver for emulators relies on, each in one test: options, files, ports, exit codes and words of the Android emulator. The tests run
 * against the stand-in for the emulator, and under `make real` against the real program of `ANDROID_HOME`.
 */
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { mkdir, mkdtemp, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { connect, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { waitFor } from '../../../hack/wait.ts';
import { ConsoleClient } from '../../standins/emulator/consoleclient.ts';
import { readIni } from '../../standins/emulator/program/places.ts';
import { giveCue } from '../../standins/emulator/sdk.ts';
import {
  EmulatorHome,
  IS_REAL,
  type RunningEmulator,
  sdkUnderTest,
} from '../../standins/emulator/undertest.ts';

/** A cold boot of the real program takes minutes without acceleration. */
const BOOT_MILLISECONDS = IS_REAL ? 600_000 : 30_000;
const END_MILLISECONDS = 30_000;
/** Console ports at the end of the range, because other tests use its begin. */
const [PORT, OTHER_PORT] = [5584, 5582];
/** Options with which the driver starts every emulator. */
const OPTIONS = [
  '-no-window -no-audio -no-boot-anim -no-snapshot -skip-adb-auth -no-metrics -show-kernel',
  '-gpu swiftshader_indirect -memory 4096 -cores 2 -id berth-of-the-test',
  '-feature -BluetoothEmulation -feature -Uwb',
].flatMap((line) => line.split(' '));

let folder: string;
let sdk: string;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-emulator-sdk-'));
  sdk = await sdkUnderTest(folder);
});

afterAll(async () => {
  await rm(folder, { recursive: true, force: true });
});

describe(`before a start (${IS_REAL ? 'real emulator' : 'stand-in for the emulator'})`, () => {
  test('an unknown option ends it with code 1 and names the option', async () => {
    await using home = await EmulatorHome.make(sdk);
    await home.avd('phone');
    const { code, output } = await home.run(['-avd', 'phone', '-no-such-option']);
    expect(code).toBe(1);
    expect(output).toContain('unknown option: -no-such-option');
  });

  test('-list-avds prints the AVDs of ANDROID_AVD_HOME', async () => {
    await using home = await EmulatorHome.make(sdk);
    await home.avd('phone');
    await home.avd('tablet');
    const { code, output } = await home.run(['-list-avds']);
    expect(code).toBe(0);
    expect(output.split('\n')).toEqual(expect.arrayContaining(['phone', 'tablet']));
  });

  test('-accel-check ends with 0 if there is acceleration', async () => {
    await using home = await EmulatorHome.make(sdk);
    expect((await home.run(['-accel-check'])).code).toBe(0);
  });

  test('an unknown AVD ends it with code 1', async () => {
    await using home = await EmulatorHome.make(sdk);
    const { code, output } = await home.run(['-avd', 'nobody', ...OPTIONS]);
    expect(code).toBe(1);
    expect(output).toContain('Unknown AVD name');
  });

  test('a missing system image ends it with code 1', async () => {
    await using home = await EmulatorHome.make(sdk);
    await home.avd('phone', { 'image.sysdir.1': 'system-images/android-1/none/none/' });
    const { code, output } = await home.run(['-avd', 'phone', ...OPTIONS]);
    expect(code).toBe(1);
    expect(output).toMatch(/^(FATAL|ERROR|PANIC).*AVD system path/m);
  });

  test('ANDROID_HOME counts only with the folders platforms and platform-tools', async () => {
    await using home = await EmulatorHome.make(sdk);
    await home.avd('phone');
    const other = join(home.folder, 'sdk');
    await mkdir(join(other, 'platforms'), { recursive: true });
    const started = home.start(['-avd', 'phone', '-port', `${PORT}`, ...OPTIONS], { ANDROID_HOME: other });
    await home.discovered(started);
    await started.kill();
    await mkdir(join(other, 'platform-tools'));
    const { code, output } = await home.run(['-avd', 'phone', ...OPTIONS], { ANDROID_HOME: other });
    expect(code).toBe(1);
    expect(output).toMatch(/^(FATAL|ERROR|PANIC).*AVD system path/m);
  });

  test('an AVD of another architecture ends it with code 1', async () => {
    await using home = await EmulatorHome.make(sdk);
    const other =
      process.arch === 'arm64'
        ? { 'hw.cpu.arch': 'x86_64', 'abi.type': 'x86_64' }
        : { 'hw.cpu.arch': 'arm64', 'abi.type': 'arm64-v8a' };
    await home.avd('phone', other);
    const { code, output } = await home.run(['-avd', 'phone', ...OPTIONS]);
    expect(code).toBe(1);
    expect(output).toContain('is not supported by the QEMU2 emulator on');
  });

  test('a named port that is taken ends it with code 1', async () => {
    await using home = await EmulatorHome.make(sdk);
    await home.avd('phone');
    await using taker = createServer().listen(PORT, '127.0.0.1');
    await once(taker, 'listening');
    const { code, output } = await home.run(['-avd', 'phone', '-port', `${PORT}`, ...OPTIONS]);
    expect(code).toBe(1);
    expect(output).toContain('too many emulator instances are running on this machine');
  });
});

describe(`while it runs (${IS_REAL ? 'real emulator' : 'stand-in for the emulator'})`, () => {
  let home: EmulatorHome;
  let avd: string;
  let emulator: RunningEmulator;
  let discovery: Map<string, string>;

  beforeAll(async () => {
    home = await EmulatorHome.make(sdk);
    avd = await home.avd('phone', { 'hw.ramSize': '2048' });
    await writeFile(join(avd, 'bootcompleted.ini'), '');
    const options = OPTIONS.filter((option) => option !== '-memory' && option !== '4096');
    emulator = home.start(['-avd', 'phone', '-port', `${PORT}`, ...options]);
    discovery = readIni(await home.discovered(emulator));
  }, BOOT_MILLISECONDS);

  afterAll(async () => {
    await home[Symbol.asyncDispose]();
  });

  test('the process keeps its id, and its discovery file names ports, AVD and id', () => {
    expect(Object.fromEntries(discovery)).toMatchObject({
      'port.serial': `${PORT}`,
      'port.adb': `${PORT + 1}`,
      'avd.name': 'phone',
      'avd.id': 'berth-of-the-test',
      'avd.dir': avd,
    });
  });

  test('console and ADB listen on loopback only', async () => {
    for (const port of [PORT, PORT + 1]) {
      await expect(connects(port, '127.0.0.1')).resolves.toBe(true);
      // A server of all addresses would answer at this one too.
      await expect(connects(port, '127.0.0.2')).resolves.toBe(false);
    }
  });

  test('memory below 2560 MB is raised', async () => {
    expect(emulator.output).toContain('Increasing RAM size to');
    const hardware = readIni(join(avd, 'hardware-qemu.ini'));
    expect(Number.parseInt(hardware.get('hw.ramSize') ?? '', 10)).toBeGreaterThanOrEqual(2560);
  });

  test('only the token in HOME allows kill and avd id on the console', async () => {
    const tokenFile = join(home.folder, '.emulator_console_auth_token');
    expect((await stat(tokenFile)).mode & 0o777).toBe(0o600);
    using console = await ConsoleClient.open(PORT);
    expect(await console.ask('ping')).toMatch(/OK$/);
    expect(await console.ask('avd name')).toBe('phone\nOK');
    expect(await console.ask('kill')).toMatch(/^KO/);
    expect(await console.ask('avd id')).toMatch(/^KO/);
    expect(await console.ask('auth wrong')).toMatch(/^KO/);
    expect(await console.ask(`auth ${await readFile(tokenFile, 'utf8')}`)).toMatch(/OK$/);
    expect(await console.ask('avd id')).toBe('berth-of-the-test\nOK');
    expect(emulator.output).not.toContain('FATAL');
  });

  test('a second emulator of the AVD ends with code 1', async () => {
    const { code, output } = await home.run(['-avd', 'phone', '-port', `${OTHER_PORT}`, ...OPTIONS]);
    expect(code).toBe(1);
    expect(output).toContain('Running multiple emulators with the same AVD');
  });

  test('bootcompleted.ini is there after the boot', async () => {
    const file = join(avd, 'bootcompleted.ini');
    await waitFor('bootcompleted.ini', () => existsSync(file), { deadlineMilliseconds: BOOT_MILLISECONDS });
  });

  test('kill on the console ends it with code 0, and locks and discovery file go', async () => {
    using console = await ConsoleClient.open(PORT);
    const token = await readFile(join(home.folder, '.emulator_console_auth_token'), 'utf8');
    await console.ask(`auth ${token}`);
    await console.last('kill');
    await expect(endOf(emulator)).resolves.toBe(0);
    expect(await locksOf(avd)).toEqual([]);
    expect(await readdir(join(home.folder, 'run', 'avd', 'running'))).toEqual([]);
  });

  test('after SIGKILL the AVD starts again without its locks', async () => {
    await using crashed = await EmulatorHome.make(sdk);
    const crashedAvd = await crashed.avd('phone');
    const args = ['-avd', 'phone', '-port', `${OTHER_PORT}`, ...OPTIONS];
    const first = crashed.start(args);
    await crashed.discovered(first);
    await first.kill();
    const locks = await locksOf(crashedAvd);
    expect(locks).not.toEqual([]);
    await Promise.all(locks.map(async (name) => await rm(join(crashedAvd, name), { recursive: true })));
    await crashed.discovered(crashed.start(args));
  });
});

describe.runIf(!IS_REAL)('on a cue, the stand-in for the emulator', () => {
  test.each([
    ['no-acceleration', 'requires hardware acceleration'],
    ['disk-full', 'does not have enough disk space to run avd'],
    ['avd-locked', 'Running multiple emulators with the same AVD'],
    ['port-taken', 'too many emulator instances are running on this machine'],
    ['image-missing', 'Broken AVD system path'],
    ['ends-during-boot', 'ends during the boot'],
  ] as const)('ends with code 1: %s', async (cue, words) => {
    await using home = await EmulatorHome.make(sdk);
    await giveCue(await home.avd('phone'), cue);
    const { code, output } = await home.run(['-avd', 'phone', '-port', `${PORT}`, ...OPTIONS]);
    expect(code).toBe(1);
    expect(output).toMatch(new RegExp(`^FATAL .*${words}`, 'm'));
  });

  test('goes on after kill and SIGTERM', async () => {
    await using home = await EmulatorHome.make(sdk);
    await giveCue(await home.avd('phone'), 'hangs-at-kill');
    const emulator = home.start(['-avd', 'phone', '-port', `${PORT}`, ...OPTIONS]);
    await home.discovered(emulator);
    using console = await ConsoleClient.open(PORT);
    await console.ask(`auth ${await readFile(join(home.folder, '.emulator_console_auth_token'), 'utf8')}`);
    await console.last('kill');
    process.kill(emulator.pid, 'SIGTERM');
    await waitFor('the stand-in to refuse both', () => emulator.output.includes('SIGTERM does nothing'));
    expect(emulator.output).toContain('kill does nothing');
    await expect(connects(PORT, '127.0.0.1')).resolves.toBe(true);
  });
});

async function endOf(emulator: RunningEmulator): Promise<number | null> {
  const late = new Promise<never>((_, reject) => {
    setTimeout(() => reject(new Error(`still runs: ${emulator.output}`)), END_MILLISECONDS).unref();
  });
  return await Promise.race([emulator.ended, late]);
}

async function locksOf(avd: string): Promise<string[]> {
  return (await readdir(avd)).filter((name) => name.endsWith('.lock'));
}

async function connects(port: number, host: string): Promise<boolean> {
  const socket = connect(port, host);
  try {
    await once(socket, 'connect');
    return true;
  } catch {
    return false;
  } finally {
    socket.destroy();
  }
}
