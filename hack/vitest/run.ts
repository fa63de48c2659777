/** Runs vitest as a process of its own, and reads what the run counted. */
import { spawn } from 'node:child_process';
import { closeSync, mkdirSync, openSync, readFileSync, rmSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { messageOf } from '../../base/errors.ts';
import { emptySummary, type RunSummary } from './reporter.ts';

export interface VitestRun {
  /** The work tree whose tests run. */
  readonly root: string;
  /** After `vitest run`. */
  readonly args: readonly string[];
  /** Where the counts are written. */
  readonly summary: string;
  /** A file for what vitest prints; our own output when absent. */
  readonly log?: string;
  /** Ends the run with all its processes. */
  readonly signal?: AbortSignal;
}

/** Resolves with the counts of the run. A run that failed without naming a failure (no tests, a set-up that broke) counts as one. */
export async function runVitest(run: VitestRun): Promise<RunSummary> {
  const { summary: path } = run;
  mkdirSync(dirname(path), { recursive: true });
  rmSync(path, { force: true });
  const code = await start(run);
  const summary = readResults(path);
  const total = summary.passed + summary.failed.length + summary.skipped.length;
  const reason = total === 0 ? 'no tests' : `vitest ended with exit code ${code}`;
  const unnamed = summary.failed.length === 0 && (total === 0 || code !== 0);
  return unnamed ? { ...summary, failed: [{ name: 'the run', reason }] } : summary;
}

/** In a process group of its own when it may be ended from here: workers in an endless loop hear no signal of their parent. */
async function start({ root, args, summary, log, signal }: VitestRun): Promise<number> {
  const program = join(root, 'node_modules', 'vitest', 'vitest.mjs');
  const reporter = join(root, 'hack', 'vitest', 'reporter.ts');
  const output = log === undefined ? 'inherit' : openSync(log, 'w');
  const child = spawn(
    process.execPath,
    [program, 'run', '--reporter=default', `--reporter=${reporter}`, ...args],
    {
      cwd: root,
      stdio: ['ignore', output, output],
      detached: signal !== undefined,
      env: { ...process.env, BERTH_TEST_SUMMARY: summary },
    },
  );
  const end = () => process.kill(-(child.pid ?? 0), 'SIGKILL');
  signal?.addEventListener('abort', end);
  try {
    return await new Promise((resolve, reject) => {
      child.once('error', reject);
      child.once('close', (code) => resolve(code ?? 1));
    });
  } finally {
    signal?.removeEventListener('abort', end);
    if (typeof output === 'number') {
      closeSync(output);
    }
  }
}

function readResults(path: string): RunSummary {
  try {
    return JSON.parse(readFileSync(path, 'utf8')) as RunSummary;
  } catch (error) {
    const reason = `no results: ${messageOf(error)}`;
    return { ...emptySummary(), failed: [{ name: 'the run', reason }] };
  }
}
