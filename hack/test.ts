/**
 * Runs the test projects named (all when none is), one after the other, and adds up what they counted.
 * The last line is `N passed, N failed`; the exit code is 1 when anything failed.
 */
import { spawn } from 'node:child_process';
import { mkdirSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import type { RunSummary } from '../test/support/reporter.ts';

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
];
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

/** A run that failed without counting a failure (no tests, a set-up that broke) counts as one. */
function readSummary(path: string, code: number): RunSummary {
  let summary: RunSummary = { passed: 0, failed: 0, skipped: [] };
  try {
    summary = JSON.parse(readFileSync(path, 'utf8')) as RunSummary;
  } catch (error) {
    process.stderr.write(`no results: ${error instanceof Error ? error.message : String(error)}\n`);
    return { ...summary, failed: 1 };
  }
  if (summary.passed + summary.failed + summary.skipped.length === 0) return { ...summary, failed: 1 };
  return code === 0 ? summary : { ...summary, failed: Math.max(summary.failed, 1) };
}

async function main(projects: readonly string[]): Promise<void> {
  const unknown = projects.filter((project) => !PROJECTS.includes(project));
  if (unknown.length > 0) throw new Error(`no such project: ${unknown.join(', ')}`);
  const results: ProjectResult[] = [];
  for (const project of projects.length > 0 ? projects : PROJECTS) results.push(await runProject(project));
  process.stdout.write('\n');
  for (const result of results) {
    const counts = `${result.passed} passed, ${result.failed} failed, ${result.skipped.length} skipped`;
    process.stdout.write(
      `${result.project.padEnd(12)} ${String(result.seconds).padStart(5)} s   ${counts}\n`,
    );
    for (const { name, reason } of result.skipped) {
      process.stdout.write(`  skipped: ${name}: ${reason}\n`);
    }
  }
  const sum = (field: 'passed' | 'failed'): number =>
    results.reduce((total, result) => total + result[field], 0);
  process.stdout.write(`${sum('passed')} passed, ${sum('failed')} failed\n`);
  process.exitCode = sum('failed') === 0 ? 0 : 1;
}

await main(process.argv.slice(2));
