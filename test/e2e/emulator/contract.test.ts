/**
 * What the driver for emulators relies on, each in one test: options, files, ports, exit codes and words of the Android emulator. The tests run
 * against the stand-in for the emulator, and under `make real` against the real program of `ANDROID_HOME`.
 */
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { mkdir, mkdtemp, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { askBooted } from '../../../agent/drivers/emulator/adb.ts';
import { AVD_NAME, CONSOLE_PORT } from '../../../agent/drivers/emulator/arguments.ts';
import { chooseLines } from '../../../agent/drivers/emulator/processes.ts';
import { imageFolder, NATIVE } from '../../../agent/drivers/emulator/sdk.ts';
import { EMULATOR_DEFAULTS } from '../../../api/v1alpha1/fields.ts';
import { ADB_PORT } from '../../../api/v1alpha1/names.ts';
import { waitFor } from '../../../hack/wait.ts';
import { ConsoleClient } from '../../standins/emulator/consoleclient.ts';
import { readIni } from '../../standins/emulator/program/places.ts';
import { giveCue } from '../../standins/emulator/sdk.ts';
import {
  connects,
  EmulatorHome,
  IS_REAL,
  MACHINE_ID,
  NAME,
  type RunningEmulator,
  sdkUnderTest,
} from '../../standins/emulator/undertest.ts';

/** A cold boot of the real program takes minutes without acceleration. */
const BOOT_MILLISECONDS = IS_REAL ? 600_000 : 90_000;
const END_MILLISECONDS = 60_000;
const TOKEN = 'token-of-the-driver';

let folder: string;
let sdk: string;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-emulator-sdk-'));
  sdk = await sdkUnderTest(folder);
});

afterAll(async () => {
  await rm(folder, { recursive: true, force: true });
});

describe(`${NAME}: before a start`, () => {
  test('an unknown option ends it with code 1 and names the option', async () => {
    await using home = await EmulatorHome.make(sdk);
    const { code, output } = await home.run([...home.options(), '-no-such-option']);
    expect(code).toBe(1);
    expect(output).toContain('unknown option: -no-such-option');
  });

  test('-list-avds prints the AVD of ANDROID_AVD_HOME', async () => {
    await using home = await EmulatorHome.make(sdk);
    const { code, output } = await home.run(['-list-avds']);
    expect(code).toBe(0);
    expect(output.split('\n')).toContain(AVD_NAME);
  });

  test('-accel-check ends with 0 if there is acceleration', async () => {
    await using home = await EmulatorHome.make(sdk);
    expect((await home.run(['-accel-check'])).code).toBe(0);
  });

  test('an unknown AVD ends it with code 1', async () => {
    await using home = await EmulatorHome.make(sdk);
    await rm(home.avd, { recursive: true });
    await rm(home.avd.replace('.avd', '.ini'));
    const { code, output } = await home.run(home.options());
    expect(code).toBe(1);
    expect(output).toContain('Unknown AVD name');
  });

  test('a missing system image ends it with code 1', async () => {
    await using home = await EmulatorHome.make(sdk, {
      changes: { 'image.sysdir.1': 'system-images/no/such/image/' },
    });
    const { code, output } = await home.run(home.options());
    expect(code).toBe(1);
    expect(chooseLines(output)).toContain('AVD system path');
  });

  test('ANDROID_HOME counts only with the folders platforms and platform-tools', async () => {
    await using home = await EmulatorHome.make(sdk);
    const other = join(home.folder, 'sdk');
    const variables = { ANDROID_HOME: other, ANDROID_SDK_ROOT: other };
    await mkdir(join(other, 'platforms'), { recursive: true });
    const started = home.start(home.options(), variables);
    await home.discovered(started);
    await started.kill();
    await home.prepare(TOKEN);
    await mkdir(join(other, 'platform-tools'));
    const { code, output } = await home.run(home.options(), variables);
    expect(code).toBe(1);
    expect(chooseLines(output)).toContain('AVD system path');
  });

  test('an AVD of another architecture ends it with code 1', async () => {
    const architecture = NATIVE === 'arm64' ? 'amd64' : 'arm64';
    const changes = { 'image.sysdir.1': `${imageFolder({ ...EMULATOR_DEFAULTS, architecture: NATIVE })}/` };
    await using home = await EmulatorHome.make(sdk, { architecture, changes });
    const { code, output } = await home.run(home.options());
    expect(code).toBe(1);
    expect(output).toContain('is not supported by the QEMU2 emulator on');
  });

  test.each([CONSOLE_PORT, ADB_PORT])('the named port %s, if taken, ends it with code 1', async (port) => {
    await using home = await EmulatorHome.make(sdk);
    await using taker = createServer().listen(port, '127.0.0.1');
    await once(taker, 'listening');
    const { code, output } = await home.run(home.options());
    expect(code).toBe(1);
    expect(chooseLines(output)).toContain('too many emulator instances are running on this machine');
  });
});

describe(`${NAME}: while it runs`, () => {
  let home: EmulatorHome;
  let emulator: RunningEmulator;
  let discovery: Map<string, string>;

  beforeAll(async () => {
    home = await EmulatorHome.make(sdk);
    await home.prepare(TOKEN);
    await writeFile(join(home.avd, 'bootcompleted.ini'), '');
    emulator = home.start(home.options({ memoryBytes: 2 * 1024 ** 3 }));
    discovery = readIni(await home.discovered(emulator));
  });

  afterAll(async () => {
    await home[Symbol.asyncDispose]();
  });

  test('the process keeps its id, and its discovery file names ports, AVD and id', () => {
    expect(Object.fromEntries(discovery)).toMatchObject({
      'port.serial': `${CONSOLE_PORT}`,
      'port.adb': `${ADB_PORT}`,
      'avd.name': AVD_NAME,
      'avd.id': MACHINE_ID,
      'avd.dir': home.avd,
    });
  });

  test('console and ADB listen on loopback only', async () => {
    for (const port of [CONSOLE_PORT, ADB_PORT]) {
      await expect(connects(port, '127.0.0.1')).resolves.toBe(true);
      // A server of all addresses would answer at this one too.
      await expect(connects(port, '127.0.0.2')).resolves.toBe(false);
    }
  });

  test('memory below 2560 MB is raised', async () => {
    expect(emulator.output).toContain('Increasing RAM size to');
    const hardware = readIni(join(home.avd, 'hardware-qemu.ini'));
    expect(Number.parseInt(hardware.get('hw.ramSize') ?? '', 10)).toBeGreaterThanOrEqual(2560);
  });

  test('the console takes the token in HOME that was there before the start, and refuses kill without it', async () => {
    expect((await stat(join(home.folder, 'home', '.emulator_console_auth_token'))).mode & 0o777).toBe(0o600);
    using console = await ConsoleClient.open(CONSOLE_PORT);
    expect(await console.ask('ping')).toMatch(/OK$/);
    expect(await console.ask('avd name')).toBe(`${AVD_NAME}\nOK`);
    expect(await console.ask('kill')).toMatch(/^KO/);
    expect(await console.ask('avd id')).toMatch(/^KO/);
    expect(await console.ask('auth wrong')).toMatch(/^KO/);
    expect(await console.ask(`auth ${TOKEN}`)).toMatch(/OK$/);
    expect(await console.ask('avd id')).toBe(`${MACHINE_ID}\nOK`);
  });

  test('a second emulator of the AVD ends with code 1', async () => {
    const { code, output } = await home.run(home.options());
    expect(code).toBe(1);
    expect(chooseLines(output)).toContain('Running multiple emulators with the same AVD');
  });

  test(
    'ADB wants no key and says that the boot has completed, and bootcompleted.ini is there',
    async () => {
      const signal = AbortSignal.timeout(BOOT_MILLISECONDS);
      const deadline = { deadlineMilliseconds: BOOT_MILLISECONDS };
      const answer = await waitFor(
        'an answer of ADB',
        async () => {
          const { kind } = await askBooted({ host: '127.0.0.1', port: ADB_PORT }, signal);
          return kind === 'booted' || kind === 'wantsKey' ? kind : undefined;
        },
        deadline,
      );
      expect(answer).toBe('booted');
      await waitFor('bootcompleted.ini', () => existsSync(join(home.avd, 'bootcompleted.ini')), deadline);
    },
    BOOT_MILLISECONDS,
  );

  test('kill on the console ends it with code 0, and locks and discovery file go', async () => {
    using console = await ConsoleClient.open(CONSOLE_PORT);
    await console.ask(`auth ${TOKEN}`);
    await console.last('kill');
    await expect(endOf(emulator)).resolves.toBe(0);
    expect(await locksOf(home.avd)).toEqual([]);
    expect(await readdir(home.discoveryFolder)).toEqual([]);
  });
});

describe(`${NAME}: started again, and for the first time`, () => {
  test('after SIGKILL locks stay, and the AVD starts again without them', async () => {
    await using crashed = await EmulatorHome.make(sdk);
    await crashed.prepare(TOKEN);
    const first = crashed.start(crashed.options());
    await crashed.discovered(first);
    await first.kill();
    expect(await locksOf(crashed.avd)).not.toEqual([]);
    await crashed.prepare(TOKEN);
    expect(await locksOf(crashed.avd)).toEqual([]);
    await crashed.discovered(crashed.start(crashed.options()));
  });

  test('without a token it makes one that only its user reads', async () => {
    await using fresh = await EmulatorHome.make(sdk);
    await fresh.discovered(fresh.start(fresh.options()));
    const file = join(fresh.folder, 'home', '.emulator_console_auth_token');
    expect((await stat(file)).mode & 0o777).toBe(0o600);
    expect(await readFile(file, 'utf8')).toMatch(/^\S{8,}$/);
  });
});

// Failures that a test cannot cause with the real program. The ports are those of the other tests, so these tests are in the same file.
if (!IS_REAL) {
  describe('on a cue, the stand-in for the emulator', () => {
    test.each([
      ['no-acceleration', 'requires hardware acceleration'],
      ['disk-full', 'does not have enough disk space to run avd'],
      ['avd-locked', 'Running multiple emulators with the same AVD'],
      ['port-taken', 'too many emulator instances are running on this machine'],
      ['image-missing', 'Broken AVD system path'],
      ['ends-during-boot', 'ends during the boot'],
    ] as const)('ends with code 1: %s', async (cue, expected) => {
      await using home = await EmulatorHome.make(sdk);
      await giveCue(home.avd, cue);
      const { code, output } = await home.run(home.options());
      expect(code).toBe(1);
      expect(chooseLines(output)).toContain(expected);
    });

    test('asks for a key, or boots only when the cue is taken back', async () => {
      await using home = await EmulatorHome.make(sdk);
      const ask = async () =>
        await askBooted({ host: '127.0.0.1', port: ADB_PORT }, AbortSignal.timeout(END_MILLISECONDS));
      await giveCue(home.avd, 'asks-for-key');
      await giveCue(home.avd, 'never-boots');
      const emulator = home.start(home.options());
      await home.discovered(emulator);
      expect((await ask()).kind).toBe('wantsKey');
      await rm(join(home.avd, 'cues', 'asks-for-key'));
      expect((await ask()).kind).toBe('booting');
      await rm(join(home.avd, 'cues', 'never-boots'));
      await waitFor('the boot', async () => (await ask()).kind === 'booted');
    });

    test('goes on after kill and SIGTERM', async () => {
      await using home = await EmulatorHome.make(sdk);
      await home.prepare(TOKEN);
      await giveCue(home.avd, 'hangs-at-kill');
      const emulator = home.start(home.options());
      await home.discovered(emulator);
      using console = await ConsoleClient.open(CONSOLE_PORT);
      await console.ask(`auth ${TOKEN}`);
      await console.last('kill');
      process.kill(emulator.pid, 'SIGTERM');
      await waitFor('the stand-in to refuse both', () => emulator.output.includes('SIGTERM does nothing'));
      expect(emulator.output).toContain('kill does nothing');
      await expect(connects(CONSOLE_PORT, '127.0.0.1')).resolves.toBe(true);
    });

    test('has lasting children, which the driver keeps away by its options', async () => {
      await using home = await EmulatorHome.make(sdk);
      const kept = home.start(home.options());
      await home.discovered(kept);
      await kept.kill();
      expect(await childrenIn(home)).toEqual([]);
      await home.prepare(TOKEN);
      await giveCue(home.avd, 'lasting-child');
      const emulator = home.start(home.options());
      await home.discovered(emulator);
      await emulator.kill();
      const children = await childrenIn(home);
      expect(children).toHaveLength(1);
      children.forEach((pid) => process.kill(pid, 'SIGKILL'));
    });
  });
}

async function endOf(emulator: RunningEmulator): Promise<number | null> {
  const late = new Promise<never>((_, reject) => {
    setTimeout(() => reject(new Error(`still runs: ${emulator.output}`)), END_MILLISECONDS).unref();
  });
  return await Promise.race([emulator.ended, late]);
}

async function locksOf(avd: string): Promise<string[]> {
  return (await readdir(avd)).filter((name) => name.endsWith('.lock'));
}

/** Returns the processes that have the environment of this emulator. */
async function childrenIn(home: EmulatorHome): Promise<number[]> {
  const pids = (await readdir('/proc')).map(Number).filter((pid) => pid > 0);
  const isOurs = async (pid: number) => {
    const environment = await readFile(`/proc/${pid}/environ`, 'utf8').catch(() => '');
    return environment.includes(`ANDROID_AVD_HOME=${home.folder}/`);
  };
  const ours = await Promise.all(pids.map(isOurs));
  return pids.filter((_, index) => ours[index]);
}
