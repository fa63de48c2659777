/** Writes what a run counted to the file named by BERTH_TEST_SUMMARY, for hack/test.ts to add up. */
import { writeFileSync } from 'node:fs';
import type { Reporter, TestCase, TestModule } from 'vitest/node';

export interface RunSummary {
  passed: number;
  failed: number;
  skipped: { name: string; reason: string }[];
}

// vitest loads a reporter by its default export.
// oxlint-disable-next-line import/no-default-export
export default class SummaryReporter implements Reporter {
  onTestRunEnd(modules: readonly TestModule[], unhandled: readonly unknown[]): void {
    const path = process.env['BERTH_TEST_SUMMARY'];
    if (path === undefined) return;
    const summary: RunSummary = { passed: 0, failed: unhandled.length, skipped: [] };
    for (const module of modules) {
      // A file that could not even be loaded has no tests to fail.
      summary.failed += module.errors().length;
      for (const test of module.children.allTests()) count(test, summary);
    }
    writeFileSync(path, JSON.stringify(summary));
  }
}

function count(test: TestCase, summary: RunSummary): void {
  const result = test.result();
  if (result.state === 'passed') summary.passed += 1;
  else if (result.state === 'failed') summary.failed += 1;
  else summary.skipped.push({ name: test.fullName, reason: reasonOf(result) });
}

function reasonOf(result: ReturnType<TestCase['result']>): string {
  if (result.state === 'skipped') return result.note ?? 'no reason given';
  return 'never finished';
}
