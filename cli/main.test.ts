import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { EXIT } from './errors.ts';

/** Runs the command. The stream is closed before the command writes to it. Returns the exit code. */
async function runWithout(stream: 'stdout' | 'stderr', ...args: string[]): Promise<unknown> {
  const child = spawn(process.execPath, [join(import.meta.dirname, 'main.ts'), ...args], {
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  child[stream].destroy();
  const [code] = (await once(child, 'exit')) as unknown[];
  return code;
}

it('fails with the code of its error although nobody reads the messages', async () => {
  expect(await runWithout('stderr', 'vm', 'lst')).toBe(EXIT.usage);
});

it('succeeds if the reader of the output needs no more of it', async () => {
  expect(await runWithout('stdout', '--help')).toBe(EXIT.done);
});
