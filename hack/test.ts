/**
 * Runs the test projects named (all when none is), one after the other, and adds up what they counted.
 * The last line is `N passed, N failed`; the exit code is 1 when anything failed.
 */
import { spawn } from 'node:child_process';
import { mkdirSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import type { RunSummary, TestOutcome } from '../test/support/reporter.ts';

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
/** Enough of a message to see what was awaited; the whole of it stands where the test ran. */
const REASON_CHARACTERS = 1_000;
const REPORTER = join(ROOT, 'test', 'support', 'reporter.ts');

interface ProjectResult extends RunSummary {
  project: string;
  seconds: number;
}

async function runProject(project: string): Promise<ProjectResult> {
  const folder = join(ROOT, 'dist', 'test');
  mkdirSync(folder, { recursive: true });
  const path = join(folder, `${project}.json`);
  rmSync(path, { force: true });
  const started = performance.now();
  process.stdout.write(`\n== ${project}\n`);
  const code = await vitest(
    ['run', '--project', project, '--reporter=default', `--reporter=${REPORTER}`],
    path,
  );
  const seconds = Math.round((performance.now() - started) / 1000);
  return { project, seconds, ...readSummary(path, code) };
}

function vitest(args: readonly string[], summary: string): Promise<number> {
  const child = spawn(process.execPath, [join(ROOT, 'node_modules', 'vitest', 'vitest.mjs'), ...args], {
    cwd: ROOT,
    stdio: ['ignore', 'inherit', 'inherit'],
    env: { ...process.env, BERTH_TEST_SUMMARY: summary },
  });
  return new Promise((resolve, reject) => {
    child.once('error', reject);
    child.once('close', (code) => resolve(code ?? 1));
  });
}

/** A run that failed without naming a failure (no tests, a set-up that broke) counts as one. */
function readSummary(path: string, code: number): RunSummary {
  const summary = readResults(path);
  const total = summary.passed + summary.failed.length + summary.skipped.length;
  const reason = total === 0 ? 'no tests' : `vitest ended with exit code ${code}`;
  const unnamed = summary.failed.length === 0 && (total === 0 || code !== 0);
  return unnamed ? { ...summary, failed: [{ name: 'the run', reason }] } : summary;
}

function readResults(path: string): RunSummary {
  try {
    return JSON.parse(readFileSync(path, 'utf8')) as RunSummary;
  } catch (error) {
    const reason = `no results: ${error instanceof Error ? error.message : String(error)}`;
    return { passed: 0, failed: [{ name: 'the run', reason }], skipped: [], attempts: [] };
  }
}

/** A line for the project, then one for each test that failed or was skipped, so that the end of a log tells. */
function describe(result: ProjectResult): string {
  const counts = `${result.passed} passed, ${result.failed.length} failed, ${result.skipped.length} skipped`;
  return [
    `${result.project.padEnd(12)} ${String(result.seconds).padStart(5)} s   ${counts}`,
    ...result.failed.map((test) => describeTest('failed', test)),
    ...result.skipped.map((test) => describeTest('skipped', test)),
    ...result.attempts.map(({ input, outcome, count }) => `  tried ${count} × ${input}: ${outcome}`),
    '',
  ].join('\n');
}

function describeTest(outcome: 'failed' | 'skipped', { name, reason }: TestOutcome): string {
  const short = reason.length > REASON_CHARACTERS ? `${reason.slice(0, REASON_CHARACTERS)}…` : reason;
  return `  ${outcome}: ${name}: ${short.replaceAll('\n', '\n    ')}`;
}

async function main(projects: readonly string[]): Promise<void> {
  const unknown = projects.filter((project) => !PROJECTS.includes(project));
  if (unknown.length > 0) throw new Error(`no such project: ${unknown.join(', ')}`);
  const results: ProjectResult[] = [];
  for (const project of projects.length > 0 ? projects : PROJECTS) results.push(await runProject(project));
  process.stdout.write(`\n${results.map(describe).join('')}`);
  const passed = results.reduce((total, result) => total + result.passed, 0);
  const failed = results.reduce((total, result) => total + result.failed.length, 0);
  process.stdout.write(`${passed} passed, ${failed} failed\n`);
  process.exitCode = failed === 0 ? 0 : 1;
}

await main(process.argv.slice(2));
