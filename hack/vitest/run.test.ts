import { expect, it } from 'vitest';
import { emptySummary } from './reporter.ts';
import { filesToRetry, RETRIED_FILES, withRetry } from './run.ts';

function failedTest(file: string, test = 'works') {
  return { name: `${file} > ${test}`, reason: `the reason of ${test}` };
}

function numberedFiles(count: number): string[] {
  return Array.from({ length: count }, (_, index) => `test/e2e/${index}.test.ts`);
}

it('each file with a failed test runs again once, also a file that could not be loaded', () => {
  const unit = {
    ...emptySummary(),
    failed: [failedTest('base/a.test.ts'), failedTest('base/a.test.ts', 'other')],
  };
  const loading = { ...emptySummary(), failed: [{ name: 'test/e2e/b.test.ts', reason: 'no module' }] };
  expect(filesToRetry([unit, emptySummary(), loading])).toEqual([
    ['base/a.test.ts'],
    [],
    ['test/e2e/b.test.ts'],
  ]);
});

it('no file runs again if the whole run failed, or if too many files failed', () => {
  const run = {
    ...emptySummary(),
    failed: [failedTest('base/a.test.ts'), { name: 'the run', reason: 'no results' }],
  };
  expect(filesToRetry([run])).toBe('a failure belongs to no file');
  const many = (count: number) => [
    { ...emptySummary(), failed: numberedFiles(count).map((file) => failedTest(file)) },
  ];
  expect(filesToRetry(many(RETRIED_FILES))).toEqual([numberedFiles(RETRIED_FILES)]);
  expect(filesToRetry(many(RETRIED_FILES + 1))).toBe('11 files failed, and at most 10 run again');
});

it('a test that passes at the second try is flaky and counts as passed, and keeps its first failure', () => {
  const failed = [failedTest('base/a.test.ts'), failedTest('base/b.test.ts')];
  const first = { ...emptySummary(), passed: 7, failed, flaky: [] };
  const second = { ...emptySummary(), passed: 3 };
  expect(withRetry(first, 'base/a.test.ts', second)).toEqual({
    ...first,
    passed: 8,
    failed: [failedTest('base/b.test.ts')],
    flaky: [failedTest('base/a.test.ts')],
  });
});

it('all tests of a file that can be loaded at the second try count as passed', () => {
  const first = {
    ...emptySummary(),
    passed: 7,
    failed: [{ name: 'base/a.test.ts', reason: 'no module' }],
    flaky: [],
  };
  expect(withRetry(first, 'base/a.test.ts', { ...emptySummary(), passed: 3 }).passed).toBe(10);
});

it('a test stays failed if its file fails again, skips a test or runs none', () => {
  const first = { ...emptySummary(), failed: [failedTest('base/a.test.ts')], flaky: [] };
  for (const second of [
    { ...emptySummary(), passed: 2, failed: [failedTest('base/a.test.ts', 'other')] },
    { ...emptySummary(), passed: 2, skipped: [failedTest('base/a.test.ts')] },
    emptySummary(),
  ]) {
    expect(withRetry(first, 'base/a.test.ts', second)).toBe(first);
  }
});
