/** Writes the counts of a run to the file that BERTH_TEST_SUMMARY names. hack/test.ts adds the counts up. */
import { writeFileSync } from 'node:fs';
import type { Reporter, TestCase, TestModule } from 'vitest/node';

/** Test with the reason for its failure or skip, as one text. */
export interface TestOutcome {
  name: string;
  reason: string;
}

/** Number of attempts with a kind of hostile input, and their outcome. */
export interface AttemptCount {
  input: string;
  outcome: string;
  count: number;
}

/** Number of histories with which a property was tested, and their lengths in steps. */
export interface HistoryCount {
  test: string;
  histories: number;
  meanLength: number;
  longest: number;
}

declare module 'vitest' {
  export interface TaskMeta {
    /** Reason why a suite or test is skipped: `describe('nat', unless(missing), …)`. */
    skipReason?: string;
    /** Set by test/support/properties.ts. */
    histories?: HistoryCount[];
    /** Set by test/hostile/support/attempts.ts. */
    attempts?: AttemptCount[];
  }
}

export interface RunSummary {
  passed: number;
  failed: TestOutcome[];
  skipped: TestOutcome[];
  attempts: AttemptCount[];
  histories: HistoryCount[];
}

export function emptySummary(): RunSummary {
  return { passed: 0, failed: [], skipped: [], attempts: [], histories: [] };
}

// vitest loads a reporter by its default export.
// oxlint-disable-next-line import/no-default-export
export default class SummaryReporter implements Reporter {
  onTestRunEnd(modules: readonly TestModule[], unhandled: readonly { message: string }[]): void {
    const path = process.env['BERTH_TEST_SUMMARY'];
    if (path === undefined) {
      return;
    }
    const summary = emptySummary();
    for (const { message } of unhandled) {
      summary.failed.push({ name: 'outside of any test', reason: message });
    }
    for (const module of modules) {
      // A file that could not be loaded has no tests that could fail.
      for (const { message } of module.errors()) {
        summary.failed.push({ name: module.relativeModuleId, reason: message });
      }
      for (const test of module.children.allTests()) {
        count(test, summary);
      }
    }
    writeFileSync(path, JSON.stringify(summary));
  }
}

function count(test: TestCase, summary: RunSummary): void {
  const result = test.result();
  const { attempts = [], histories = [], skipReason } = test.meta();
  summary.attempts.push(...attempts);
  summary.histories.push(...histories);
  const name = `${test.module.relativeModuleId} > ${test.fullName}`;
  if (result.state === 'passed') {
    summary.passed += 1;
  } else if (result.state === 'failed') {
    summary.failed.push({ name, reason: result.errors.map(({ message }) => message).join('; ') });
  } else {
    summary.skipped.push({ name, reason: whySkipped(result, skipReason) });
  }
}

function whySkipped(result: ReturnType<TestCase['result']>, reason: string | undefined): string {
  if (result.state === 'skipped') {
    return result.note ?? reason ?? 'no reason given';
  }
  return 'never finished';
}
