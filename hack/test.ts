/**
 * Runs the named test projects, or all projects but `real`, one after the other, and adds up their counts. The last line is `N passed, N failed, N
 * skipped`. The exit code is 1 when a test failed. With CI=true it is also 1 when a test was skipped, because CI must provide everything
 * that tests need.
 */
import { join } from 'node:path';
import type { HistoryCount, RunSummary, TestOutcome } from './vitest/reporter.ts';
import { runVitest } from './vitest/run.ts';
import { runCommand } from './command.ts';

const ROOT = join(import.meta.dirname, '..');
const PROJECTS = [
  'unit',
  'integration',
  'images',
  'chart',
  'oci',
  'docker',
  'harness',
  'e2e',
  'installed',
  'faults',
  'nat',
  'hostile',
];
/** Projects that run only when they are named, because they need programs that no package registry has. */
const ON_REQUEST = ['real'];
/** Length of a message in the summary, enough to see the expected value. The output of the tests contains the whole message. */
const REASON_CHARACTERS = 1_000;

const MAY_NOT_SKIP = process.env['CI'] === 'true';

interface ProjectResult extends RunSummary {
  project: string;
  seconds: number;
}

async function runProject(project: string): Promise<ProjectResult> {
  const summary = join(ROOT, 'dist', 'test', `${project}.json`);
  const started = performance.now();
  process.stdout.write(`\n== ${project}\n`);
  const results = await runVitest({ root: ROOT, args: ['--project', project], summary });
  return { project, seconds: Math.round((performance.now() - started) / 1000), ...results };
}

/** Returns a line for the project and a line for each failed or skipped test. The end of a log then shows the result. */
function describe(result: ProjectResult): string {
  const counts = `${result.passed} passed, ${result.failed.length} failed, ${result.skipped.length} skipped`;
  return [
    `${result.project.padEnd(12)} ${String(result.seconds).padStart(5)} s   ${counts}`,
    ...result.failed.map((test) => describeTest('failed', test)),
    ...result.skipped.map((test) => describeTest('skipped', test)),
    ...result.attempts.map(({ input, outcome, count }) => `  tried ${count} × ${input}: ${outcome}`),
    ...result.histories.map(describeHistories),
    '',
  ].join('\n');
}

function describeHistories({ test, histories, meanLength, longest }: HistoryCount): string {
  return `  ${histories} histories of ${meanLength.toFixed(1)} steps, the longest of ${longest}: ${test}`;
}

function describeTest(outcome: 'failed' | 'skipped', { name, reason }: TestOutcome): string {
  const short = reason.length > REASON_CHARACTERS ? `${reason.slice(0, REASON_CHARACTERS)}…` : reason;
  return `  ${outcome}: ${name}: ${short.replaceAll('\n', '\n    ')}`;
}

async function main(projects: readonly string[]): Promise<void> {
  const unknown = projects.filter((project) => ![...PROJECTS, ...ON_REQUEST].includes(project));
  if (unknown.length > 0) {
    throw new Error(`no such project: ${unknown.join(', ')}`);
  }
  const results: ProjectResult[] = [];
  for (const project of projects.length > 0 ? projects : PROJECTS) {
    results.push(await runProject(project));
  }
  process.stdout.write(`\n${results.map(describe).join('')}`);
  const passed = results.reduce((total, result) => total + result.passed, 0);
  const failed = results.reduce((total, result) => total + result.failed.length, 0);
  const skipped = results.reduce((total, result) => total + result.skipped.length, 0);
  if (skipped > 0 && MAY_NOT_SKIP) {
    process.stdout.write('with CI=true, a skipped test counts as failed\n');
  }
  process.stdout.write(`${passed} passed, ${failed} failed, ${skipped} skipped\n`);
  process.exitCode = failed === 0 && (skipped === 0 || !MAY_NOT_SKIP) ? 0 : 1;
}

await runCommand(async () => await main(process.argv.slice(2)));
