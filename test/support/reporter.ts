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

declare module 'vitest' {
  export interface TaskMeta {
    /** Filled by test/hostile/support/attempts.ts. */
    attempts?: AttemptCount[];
  }
}

export interface RunSummary {
  passed: number;
  failed: TestOutcome[];
  skipped: TestOutcome[];
  attempts: AttemptCount[];
}

// vitest loads a reporter by its default export.
// oxlint-disable-next-line import/no-default-export
export default class SummaryReporter implements Reporter {
  onTestRunEnd(modules: readonly TestModule[], unhandled: readonly { message: string }[]): void {
    const path = process.env['BERTH_TEST_SUMMARY'];
    if (path === undefined) return;
    const summary: RunSummary = { passed: 0, failed: [], skipped: [], attempts: [] };
    for (const { message } of unhandled)
      summary.failed.push({ name: 'outside of any test', reason: message });
    for (const module of modules) {
      // A file that could not even be loaded has no tests to fail.
      for (const { message } of module.errors()) {
        summary.failed.push({ name: module.relativeModuleId, reason: message });
      }
      for (const test of module.children.allTests()) count(test, summary);
    }
    writeFileSync(path, JSON.stringify(summary));
  }
}

function count(test: TestCase, summary: RunSummary): void {
  const result = test.result();
  summary.attempts.push(...(test.meta().attempts ?? []));
  const name = `${test.module.relativeModuleId} > ${test.fullName}`;
  if (result.state === 'passed') summary.passed += 1;
  else if (result.state === 'failed') {
    summary.failed.push({ name, reason: result.errors.map(({ message }) => message).join('; ') });
  } else summary.skipped.push({ name, reason: skipReason(result) });
}

function skipReason(result: ReturnType<TestCase['result']>): string {
  if (result.state === 'skipped') return result.note ?? 'no reason given';
  return 'never finished';
}
