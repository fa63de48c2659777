/**
 * Failures of the Android emulator that a test cannot cause with the real program: the stand-in for the emulator has them on the cue of a test. Other tests
 * show how the driver deals with them.
 */
import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { askBooted } from '../../../agent/adb/booted.ts';
import { CONSOLE_PORT } from '../../../agent/drivers/emulator/arguments.ts';
import { choose } from '../../../agent/drivers/emulator/lastwords.ts';
import { NATIVE } from '../../../agent/drivers/emulator/sdk.ts';
import { ADB_PORT } from '../../../api/v1alpha1/names.ts';
import { waitFor } from '../../../hack/wait.ts';
import { ConsoleClient } from '../../standins/emulator/consoleclient.ts';
import { giveCue, makeSdk } from '../../standins/emulator/sdk.ts';
import { connects, EmulatorHome } from '../../standins/emulator/undertest.ts';

/** Limit of one question over ADB. */
const QUESTION_MILLISECONDS = 10_000;
const TOKEN = 'token-of-the-driver';

let folder: string;
let sdk: string;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-emulator-sdk-'));
  sdk = (await makeSdk(join(folder, 'sdk'), { architecture: NATIVE, mode: 'sleeping' })).root;
});

afterAll(async () => {
  await rm(folder, { recursive: true, force: true });
});

describe('on a cue, the stand-in for the emulator', () => {
  test.each([
    ['no-acceleration', 'requires hardware acceleration'],
    ['disk-full', 'does not have enough disk space to run avd'],
    ['avd-locked', 'Running multiple emulators with the same AVD'],
    ['port-taken', 'too many emulator instances are running on this machine'],
    ['image-missing', 'Broken AVD system path'],
    ['ends-during-boot', 'ends during the boot'],
  ] as const)('ends with code 1: %s', async (cue, words) => {
    await using home = await EmulatorHome.make(sdk);
    await giveCue(home.avd, cue);
    const { code, output } = await home.run(home.options());
    expect(code).toBe(1);
    expect(choose(output)).toContain(words);
  });

  test('asks for a key, or boots only when the cue is taken back', async () => {
    await using home = await EmulatorHome.make(sdk);
    const ask = async () =>
      await askBooted({ host: '127.0.0.1', port: ADB_PORT }, AbortSignal.timeout(QUESTION_MILLISECONDS));
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
