import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { describeError } from './command.ts';

const ROOT = join(import.meta.dirname, '..');

function run(program: string, ...args: string[]): Promise<{ code: number | null; said: string }> {
  return new Promise((resolve) => {
    const child = execFile(process.execPath, [join(ROOT, program), ...args], (_error, stdout, stderr) => {
      resolve({ code: child.exitCode, said: `${stdout}${stderr}` });
    });
    child.stdin?.end();
  });
}

describe('a program of make with a wrong argument', () => {
  it.each([
    ['hack/cluster.ts', ['up', '--hosts', 'many'], '--hosts must be a whole number up to 10000, not "many"'],
    ['hack/demo.ts', ['around'], 'say what to do: up or down'],
    ['hack/generate.ts', ['--no-such'], "Unknown option '--no-such'"],
    ['hack/guest.ts', ['mips'], 'usage: node hack/guest.ts amd64|arm64 [OUT.qcow2]'],
    ['hack/host-token.ts', ['--no-such'], "Unknown option '--no-such'"],
    ['hack/images.ts', ['--no-such'], "Unknown option '--no-such'"],
    ['hack/manifests.ts', ['--output'], '--output needs the name of a file'],
    ['hack/docs.ts', ['--no-such'], "Unknown option '--no-such'"],
    ['hack/mutants.ts', ['--no-such'], "Unknown option '--no-such'"],
    ['hack/test.ts', ['no-such'], 'no such project: no-such'],
    ['hack/values.ts', ['--no-such'], "Unknown option '--no-such'"],
    ['test/bench/main.ts', ['--no-such'], "Unknown option '--no-such'"],
  ])('%s %j prints one line', async (program, args, expected) => {
    expect(await run(program, ...args)).toEqual({ code: 1, said: `${expected}\n` });
  });
});

it('an error of the program itself is printed with its stack', () => {
  expect(describeError(new TypeError('undefined is not a function'))).toContain('command.test.ts');
  expect(describeError(new Error('no such project'))).toBe('no such project');
});
