/**
 * What the driver for Apple hosts relies on, each in one test: commands, options, files, signals, exit codes and words of `tart`. The tests run
 * against the stand-in for `tart`, and under `make real` against the real program on an Apple computer.
 */
import { describe, expect, test } from 'vitest';
import { waitFor } from '../../../hack/wait.ts';
import { unless } from '../../support/unless.ts';
import { logIn } from '../../support/vnc.ts';
import { IS_REAL, NAME, TartUnderTest, whyNoSoftnet, whyNoTart } from '../../worlds/tartundertest.ts';

/** A real guest with macOS needs minutes to write its memory, and the test of the limit starts three of them. */
const TEST_MILLISECONDS = IS_REAL ? 1_200_000 : 120_000;
const NO_SOFTNET = await whyNoSoftnet();
const [MACOS, LINUX] = ['berth-macos', 'berth-linux'];

describe(`${NAME}: the contract`, { timeout: TEST_MILLISECONDS, ...unless(await whyNoTart()) }, () => {
  test('--version ends with code 0', async () => {
    await using tart = await TartUnderTest.make();
    const { code, output } = await tart.call('--version');
    expect(code).toBe(0);
    expect(output).toMatch(/^\d+\.\d+/);
  });

  test('a machine is found by its files alone, and is not running', async () => {
    await using tart = await TartUnderTest.make();
    tart.add(LINUX, 'linux');
    expect(await tart.describe(LINUX)).toMatchObject({ Running: false });
  });

  test('a machine that does not exist gives code 2', async () => {
    await using tart = await TartUnderTest.make();
    for (const command of [
      ['get', 'none', '--format', 'json'],
      ['ip', 'none'],
      ['run', 'none', '--no-graphics'],
    ]) {
      expect(await tart.call(...command)).toMatchObject({ code: 2 });
    }
  });

  test('set changes processors, memory and display', async () => {
    await using tart = await TartUnderTest.make();
    tart.add(LINUX, 'linux');
    const size = ['--cpu', '3', '--memory', '2048', '--display', '1280x720px'];
    expect((await tart.call('set', LINUX, ...size)).code).toBe(0);
    expect(await tart.describe(LINUX)).toMatchObject({ CPU: 3, Memory: 2048, Display: '1280x720' });
  });

  test('set does not make a disk smaller', async () => {
    await using tart = await TartUnderTest.make();
    tart.add(LINUX, 'linux');
    expect((await tart.call('set', LINUX, '--disk-size', '100')).code).toBe(0);
    expect((await tart.call('set', LINUX, '--disk-size', '50')).code).not.toBe(0);
  });

  test('SIGINT takes the power away, and the process ends with code 0', async () => {
    await using tart = await TartUnderTest.make();
    tart.add(LINUX, 'linux');
    const running = await tart.run(LINUX);
    running.send('SIGINT');
    expect((await running.ended).code).toBe(0);
    expect(await tart.describe(LINUX)).toMatchObject({ Running: false });
  });

  test('SIGUSR2 shuts a guest with Linux down, and the words tell it from an error', async () => {
    await using tart = await TartUnderTest.make();
    tart.add(LINUX, 'linux');
    const running = await tart.run(LINUX);
    running.send('SIGUSR2');
    const { code, output } = await running.ended;
    expect(code).toBe(0);
    expect(output).not.toContain('due to error');
  });

  test('a machine that runs cannot be started or deleted', async () => {
    await using tart = await TartUnderTest.make();
    tart.add(LINUX, 'linux');
    await tart.run(LINUX);
    expect((await tart.call('run', LINUX, '--no-graphics')).code).toBe(2);
    expect((await tart.call('delete', LINUX)).code).toBe(1);
  });

  test('a guest with Linux cannot be suspended: code 64', async () => {
    await using tart = await TartUnderTest.make();
    tart.add(LINUX, 'linux');
    await tart.run(LINUX);
    expect((await tart.call('suspend', LINUX)).code).toBe(64);
  });

  test('a guest with macOS is suspended into a file, and the next run continues from it and removes it', async () => {
    await using tart = await TartUnderTest.make();
    tart.add(MACOS, 'darwin');
    const running = await tart.run(MACOS, '--suspendable');
    expect((await tart.call('suspend', MACOS)).code).toBe(0);
    expect((await running.ended).code).toBe(0);
    expect(tart.has(MACOS, 'state.vzvmsave')).toBe(true);
    const again = await tart.run(MACOS, '--suspendable');
    expect(tart.has(MACOS, 'state.vzvmsave')).toBe(false);
    again.send('SIGINT');
    expect((await again.ended).code).toBe(0);
  });

  test('--vnc-experimental prints the port and the password of a VNC server, which takes them', async () => {
    await using tart = await TartUnderTest.make();
    tart.add(LINUX, 'linux');
    const running = await tart.run(LINUX, '--vnc-experimental');
    const address = /^VNC server is running at vnc:\/\/:(\S+)@127\.0\.0\.1:(\d+)$/m;
    const [, password = '', port] = await waitFor(
      'the address',
      () => address.exec(running.printed) ?? undefined,
    );
    const loggedIn = await logIn('127.0.0.1', Number(port), password);
    expect(loggedIn).toBe(true);
  });

  test(
    '--net-softnet with its lists runs a machine, and SIGINT ends it as any other',
    unless(NO_SOFTNET),
    async () => {
      await using tart = await TartUnderTest.make();
      tart.add(LINUX, 'linux');
      const filter = ['--net-softnet-allow', '@host,10.0.0.0/8', '--net-softnet-block', '169.254.0.0/16'];
      const running = await tart.run(LINUX, '--net-softnet', ...filter);
      running.send('SIGINT');
      expect((await running.ended).code).toBe(0);
    },
  );

  test('a third guest with macOS is refused with these words', async () => {
    await using tart = await TartUnderTest.make();
    const names = ['first', 'second', 'third'].map((name) => `${MACOS}-${name}`);
    names.forEach((name) => tart.add(name, 'darwin'));
    const [first = '', second = '', third = ''] = names;
    await tart.run(first);
    await tart.run(second);
    const { code, output } = await tart.call('run', third, '--no-graphics');
    expect(code).toBe(1);
    expect(output).toContain('The number of VMs exceeds the system limit');
  });
});
