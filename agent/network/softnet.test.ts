import { chmodSync, chownSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeEach, expect, it, onTestFinished, vi } from 'vitest';
import { makeFolder } from '../../test/support/folder.ts';
import { softnetBeside, softnetObstacle } from './softnet.ts';

const NOBODY = 65_534;
const OPTIONS = 'echo "--allow <CIDRs or @host>"';

let folder: string;
let program: string;

beforeEach(() => {
  folder = makeFolder();
  program = softnetBeside(join(folder, 'tart'));
  // Only the stand-ins of this test are found.
  vi.stubEnv('PATH', folder);
  onTestFinished(() => void vi.unstubAllEnvs());
});

/** Writes a program as a shell script, which belongs to nobody unless it is to belong to root. */
function write(name: string, script: string, mode = 0o755, owner = NOBODY): void {
  writeFileSync(join(folder, name), `#!/bin/sh\n${script}\n`, { mode });
  if (process.getuid?.() === 0) {
    chownSync(join(folder, name), owner, 0);
  }
}

it('the program is searched beside tart', async () => {
  expect(await softnetObstacle(program)).toEqual({
    finding: `There is no program ${folder}/softnet`,
    advice: expect.stringContaining('brew install cirruslabs/cli/softnet') as string,
  });
});

it('a program that does not know the gateway by its name, or does not run, is too old', async () => {
  for (const script of ['echo "--allow <CIDRs>"', 'exit 1']) {
    write('softnet', script);
    expect(await softnetObstacle(program)).toMatchObject({
      finding: expect.stringContaining('does not know @host') as string,
      advice: expect.stringContaining('0.19.0 or later') as string,
    });
  }
});

it('without the rights of root it cannot be used, and the advice names the commands', async () => {
  write('softnet', OPTIONS);
  const refused = {
    finding: `The program ${program} does not get the rights of root`,
    advice: `Run: f=$(realpath ${program}); sudo chown root "$f" && sudo chmod u+s "$f"`,
  };
  expect(await softnetObstacle(program)).toEqual(refused);
  write('sudo', 'echo "a password is required" >&2; exit 1');
  expect(await softnetObstacle(program)).toEqual(refused);
});

it('the program can be used if sudo runs it without a password', async () => {
  write('softnet', OPTIONS);
  write('sudo', `[ "$*" = "-n ${program} --help" ] && ${OPTIONS}`);
  expect(await softnetObstacle(program)).toBeUndefined();
});

it('the program can be used with the bit that gives it the rights of root, and only if it belongs to root', async (context) => {
  context.skip(process.getuid?.() !== 0, 'Only root gives a file to root');
  write('softnet', OPTIONS);
  for (const [mode, owner, isUsable] of [
    [0o4755, 0, true],
    [0o4755, NOBODY, false],
    [0o755, 0, false],
  ] as const) {
    write('softnet', OPTIONS);
    chownSync(program, owner, 0);
    chmodSync(program, mode);
    expect((await softnetObstacle(program)) === undefined).toBe(isUsable);
  }
});
