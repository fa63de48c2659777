/**
 * Decides which files of tests run once more at the end of a whole run, and what their second result means. A file runs again alone, so a
 * busy machine does not fail the whole run. A test that passes then is flaky: it counts as passed, and the report shows its first failure.
 */
import type { RunSummary, TestOutcome } from './reporter.ts';

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
