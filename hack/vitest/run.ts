/** Runs vitest in its own process, and reads the counts of the run. */
import { spawn } from 'node:child_process';
import { closeSync, mkdirSync, openSync, readFileSync, rmSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { messageOf } from '../../base/errors.ts';
import { emptySummary, type RunSummary } from './reporter.ts';

export interface VitestRun {
  /** Root of the work tree whose tests run. */
  readonly root: string;
  /** Name of the project whose tests run. The tests of `unit` are in two projects, whose names begin with it. */
  readonly project: string;
  /** Further arguments of `vitest run`. */
  readonly args?: readonly string[];
  /** Path of the file to which the run writes its counts. */
  readonly summary: string;
  /** File for vitest's output; our own output when absent. */
  readonly log?: string;
  /** Number of the lane in which the run is. Runs of different lanes run side by side, and use different ports. */
  readonly lane?: number;
  /** When it is aborted, the run ends with all its processes. */
  readonly signal?: AbortSignal;
}

/**
 * Resolves with the counts of the run. If a run fails without a failed test, it counts as one failure. An example is a run without tests.
 */
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

/**
 * Starts vitest and resolves with its exit code. With a signal, vitest gets its own process group. The signal then also ends workers in an
 * endless loop, which do not notice the signals of their parent.
 */
async function start({
  root,
  project,
  args = [],
  summary,
  log,
  lane = 0,
  signal,
}: VitestRun): Promise<number> {
  const program = join(root, 'node_modules', 'vitest', 'vitest.mjs');
  const reporter = join(root, 'hack', 'vitest', 'reporter.ts');
  const output = log === undefined ? 'inherit' : openSync(log, 'w');
  const child = spawn(
    process.execPath,
    [program, 'run', '--reporter=default', `--reporter=${reporter}`, '--project', `${project}*`, ...args],
    {
      cwd: root,
      stdio: ['ignore', output, output],
      detached: signal !== undefined,
      env: { ...process.env, BERTH_TEST_SUMMARY: summary, BERTH_TEST_LANE: String(lane) },
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
