import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, existsSync, openSync } from 'node:fs';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, it } from 'vitest';

/** Program that logs for a moment, also more than may wait, and then ends as the programs of Berth do. */
const PROGRAM = `
const { programLogger } = await import(${JSON.stringify(join(import.meta.dirname, 'log.ts'))});
const logger = programLogger({ level: 'info' });
for (let number = 0; number < 40; number += 1) {
  logger.info({ number, text: 'x'.repeat(number % 4 === 1 ? 200_000 : 10) }, 'a line');
  await new Promise((resolve) => setTimeout(resolve, 5));
}
process.exit(7);
`;
/** A program that waits for its log never ends. */
const LIMIT_MILLISECONDS = 30_000;

async function run(output: string): Promise<unknown> {
  const descriptor = openSync(output, 'w');
  const child = spawn(process.execPath, ['--input-type=module', '--eval', PROGRAM], {
    stdio: ['ignore', descriptor, 'inherit'],
    timeout: LIMIT_MILLISECONDS,
  });
  closeSync(descriptor);
  return await once(child, 'exit');
}

it('the log has all lines, also those from just before the end of the program', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'berth-log-'));
  try {
    const file = join(folder, 'log');
    expect(await run(file)).toEqual([7, null]);
    const lines = (await readFile(file, 'utf8')).trimEnd().split('\n');
    expect(lines.map((line) => (JSON.parse(line) as { number: number }).number)).toEqual([...lines.keys()]);
    expect(lines).toHaveLength(40);
  } finally {
    await rm(folder, { recursive: true });
  }
});

it.runIf(existsSync('/dev/full'))(
  'a program continues and ends although its log is on a full disk',
  async () => {
    expect(await run('/dev/full')).toEqual([7, null]);
  },
);
