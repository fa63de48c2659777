/** Tests that missing packages of a new machine are installed. apt-get and sudo are stand-ins that record their arguments. */
import { spawn } from 'node:child_process';
import { readFile, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { beforeEach, describe, expect, test } from 'vitest';
import { makeFolder } from '../support/folder.ts';

const SCRIPT = join(import.meta.dirname, '..', '..', 'hack', 'prerequisites.ts');
/** Programs that the stand-ins and the script call. */
const PROGRAMS = ['sh', 'env', 'ln', 'cat'];

/** The stand-in for apt-get links the machine's real programs into the PATH of the test. */
const APT_GET = `#!/bin/sh
echo "$*" >>"$CALLS"
case "$*" in *install*) ln -sf /usr/bin/* "$BIN" ;; esac
`;
const SUDO = `#!/bin/sh
echo "sudo $*" >>"$CALLS"
[ "$1" != -n ] || shift
exec "$@"
`;

let folder: string;

beforeEach(async () => {
  folder = makeFolder();
  for (const program of PROGRAMS) {
    await symlink(`/bin/${program}`, join(folder, program));
  }
  await writeFile(join(folder, 'apt-get'), APT_GET, { mode: 0o755 });
  await writeFile(join(folder, 'sudo'), SUDO, { mode: 0o755 });
});

/**
 * Runs the script while no program of a package is on the PATH. With `answer`, the script has a terminal, and the test types the answer
 * there.
 */
async function prepare(answer?: string): Promise<{ code: number; output: string; calls: string[] }> {
  const calls = join(folder, 'calls');
  const command = [process.execPath, SCRIPT];
  const [file = '', ...args] =
    answer === undefined ? command : ['/usr/bin/script', '-qefc', command.join(' '), '/dev/null'];
  const { CI: _, ...environment } = process.env;
  const child = spawn(file, args, {
    env: { ...environment, PATH: folder, BIN: folder, CALLS: calls, SHELL: '/bin/sh' },
    stdio: ['pipe', 'pipe', 'pipe'],
  });
  child.stdin.end(answer === undefined ? '' : `${answer}\n`);
  const [stdout, stderr, code] = await Promise.all([
    text(child.stdout),
    text(child.stderr),
    new Promise<number>((resolve) => child.once('close', (ended) => resolve(ended ?? -1))),
  ]);
  const called = await readFile(calls, 'utf8').catch(() => '');
  return {
    code,
    output: stdout + stderr,
    calls: called.split('\n').filter((line) => line.includes('install')),
  };
}

describe('missing packages', () => {
  test('are named, and installed without a question if there is no terminal', async () => {
    const { code, output, calls } = await prepare();
    expect(output).toMatch(/^Installing with apt-get: .*qemu-system-x86, .*skopeo/m);
    expect(calls.at(-1)).toMatch(/ install -y --no-install-recommends .*qemu-system-x86 .*skopeo/);
    expect(output).not.toContain('Missing');
    expect(code).toBe(0);
  });

  test('are installed after Enter on a terminal', async () => {
    const { code, output, calls } = await prepare('');
    expect(output).toMatch(/Missing: .*skopeo.* Install them with (sudo )?apt-get\? \[Y\/n\]/);
    expect(calls.at(-1)).toContain(' skopeo');
    expect(code).toBe(0);
  });

  test('are listed with the installing command if the answer on a terminal is "n"', async () => {
    const { code, output, calls } = await prepare('n');
    expect(calls).toEqual([]);
    expect(output).toMatch(/Missing on this machine: .*skopeo \(skopeo\)/);
    expect(output).toMatch(/sudo apt-get install --no-install-recommends .*skopeo/);
    expect(code).toBe(1);
  });
});
