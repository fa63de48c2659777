/** Writes what a run counted to the file named by BERTH_TEST_SUMMARY, for hack/test.ts to add up. */
import { writeFileSync } from 'node:fs';
import type { Reporter, TestCase, TestModule } from 'vitest/node';

/** A test and, in one piece of text, why it failed or was skipped. */
export interface TestOutcome {
  name: string;
  reason: string;
}

/** How often a kind of hostile input was tried, and what came of it. */
export interface AttemptCount {
  input: string;
  outcome: string;
  count: number;
}

/** How many histories a property was tried with, and how long they were, in steps. */
export interface HistoryCount {
  test: string;
  histories: number;
  meanLength: number;
  longest: number;
}

declare module 'vitest' {
  export interface TaskMeta {
    /** Why a suite or test is skipped: `describe('nat', unless(missing), …)`. */
    skipReason?: string;
    /** Filled by test/support/properties.ts. */
    histories?: HistoryCount[];
    /** Filled by test/hostile/support/attempts.ts. */
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
      // A file that could not even be loaded has no tests to fail.
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
