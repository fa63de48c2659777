/**
 * Runs one file of tests many times while programs keep all processors busy, and prints how often it passed. Ends with exit code 1 if it
 * failed. Finds the cause of a test that fails only sometimes.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { runCommand } from './command.ts';
import { runVitest } from './vitest/run.ts';

const ROOT = join(import.meta.dirname, '..');
const RUNS = 20;
/** Time in milliseconds after which a busy program ends by itself, if nobody ends it. */
const BUSY_MILLISECONDS = 3_600_000;

/** Starts a program that keeps one processor busy. */
function startBusy(): ChildProcess {
  const script = `const end = Date.now() + ${BUSY_MILLISECONDS}; while (Date.now() < end);`;
  return spawn(process.execPath, ['--eval', script], { stdio: 'ignore' });
}

async function main(file: string | undefined): Promise<void> {
  if (file === undefined || !file.endsWith('.test.ts') || !existsSync(join(ROOT, file))) {
    throw new Error(`FILE must be a file of tests, for example test/harness/cluster.test.ts, not ${file}`);
  }
  const busy = Array.from({ length: availableParallelism() }, startBusy);
  try {
    process.exitCode = (await passes(file)) === RUNS ? 0 : 1;
  } finally {
    busy.forEach((child) => child.kill('SIGKILL'));
  }
}

/** Runs the file {@link RUNS} times, and returns how often all its tests passed. */
async function passes(file: string): Promise<number> {
  let passed = 0;
  for (let run = 1; run <= RUNS; run += 1) {
    const summary = join(ROOT, 'dist', 'test', 'flaky.json');
    // No project is named, so the file runs in each project that has it.
    const { failed } = await runVitest({
      root: ROOT,
      project: '',
      args: [file],
      summary,
      log: join(ROOT, 'dist', 'test', `flaky-${run}.log`),
    });
    passed += failed.length === 0 ? 1 : 0;
    const texts = failed.map(({ name, reason }) => `\n  ${name}: ${reason}`).join('');
    process.stdout.write(`run ${run} of ${RUNS}: ${failed.length === 0 ? 'passed' : `failed${texts}`}\n`);
  }
  process.stdout.write(`${passed} of ${RUNS} runs passed. The outputs are in dist/test/flaky-N.log\n`);
  return passed;
}

await runCommand(async () => await main(process.argv[2]));
