/**
 * Runs vitest in its own process, and reads the counts of the run. At the end of a whole run, files with failed tests run once more, alone,
 * so that a busy machine does not fail the whole run. A test that passes then is flaky: it counts as passed, and the report shows its first
 * failure.
 */
import { spawn } from 'node:child_process';
import { closeSync, mkdirSync, openSync, readFileSync, rmSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { messageOf } from '../../base/errors.ts';
import { emptySummary, type RunSummary, type TestOutcome } from './reporter.ts';

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

/** Largest number of files that run again. If more files failed, one cause probably broke them all, and a second run would not help. */
export const RETRIED_FILES = 10;
/**
 * Time in seconds after the start of a run when the last file begins again. The whole run must end within 90 minutes. One file takes at most
 * ten minutes, also on a slow machine.
 */
export const LAST_RETRY_SECONDS = 75 * 60;

export interface RetriedSummary extends RunSummary {
  /** Tests that failed first and passed when their file ran again, with their first failure. */
  flaky: TestOutcome[];
}

/** Returns the file of a test. The result is undefined for a failure of the whole run. */
function fileOf({ name }: TestOutcome): string | undefined {
  return /^\S+\.test\.ts(?= > |$)/.exec(name)?.[0];
}

/** Returns the files that have failed tests, or the reason why no file runs again. */
export function filesToRetry(results: readonly RunSummary[]): string[][] | string {
  const failed = results.map((result) => [...new Set(result.failed.map(fileOf))]);
  if (failed.some((files) => files.includes(undefined))) {
    return 'a failure belongs to no file';
  }
  const count = failed.reduce((total, files) => total + files.length, 0);
  return count > RETRIED_FILES
    ? `${count} files failed, and at most ${RETRIED_FILES} run again`
    : failed.map((files) => files.filter((file) => file !== undefined));
}

/** Returns the result of a project in which `file` ran a second time with the result `second`. */
export function withRetry(first: RetriedSummary, file: string, second: RunSummary): RetriedSummary {
  if (second.failed.length > 0 || second.skipped.length > 0 || second.passed === 0) {
    return first;
  }
  const flaky = first.failed.filter((test) => fileOf(test) === file);
  // A file that could not be loaded has one failure with the name of the file, and none of its tests was counted.
  const passed = flaky.some(({ name }) => name === file) ? second.passed : flaky.length;
  return {
    ...first,
    passed: first.passed + passed,
    failed: first.failed.filter((test) => fileOf(test) !== file),
    flaky: [...first.flaky, ...flaky],
  };
}
