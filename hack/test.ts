/**
 * Runs the named test projects one after the other, or all projects but `real` and `clients`, and adds up their counts. The last line is `N passed, N failed,
 * N skipped`. The exit code is 1 when a test failed. With CI=true it is also 1 when a test was skipped, because CI must provide everything
 * that tests need. At the end, the files that failed run once more, alone. A test that passes then is flaky, and
 * counts as passed.
 */
import { readFileSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { adbdGuest } from './adbd.ts';
import { cloudImage } from './cloud.ts';
import { USED_RIGHTS_FOLDER } from './cluster/usedrights.ts';
import { guestImage } from './guest.ts';
import { prepareBase } from './images.ts';
import type { HistoryCount, TestOutcome } from './vitest/reporter.ts';
import { filesToRetry, LAST_RETRY_SECONDS, type RetriedSummary, runVitest, withRetry } from './vitest/run.ts';
import { runStages, type Stage } from './vitest/stages.ts';
import { describeError, runCommand } from './command.ts';

const ROOT = join(import.meta.dirname, '..');
/** Step of a whole run that makes the guests and the base of the images. It spends most of its time on downloads. */
const GUESTS = 'guests';
/**
 * A whole run. Projects run side by side, because each waits about half of its time for guests, time limits and other programs. Their
 * networks, processes and folders are their own. The longest projects begin early, so that no lane works alone at the end. Projects that
 * assert deadlines of the product come late in the first stage, beside those that use the processors least. `oci` builds the images for
 * `installed`. The tests of `shares` measure times. `rights` compares the rights of the chart with those that all others used.
 */
const STAGES: readonly Stage<string>[] = [
  [
    'unit',
    GUESTS,
    'integration',
    'e2e',
    'oci',
    'hostile',
    'docker',
    'harness',
    'installed',
    'faults',
    'nat',
    'chart',
    'images',
  ],
  ['shares'],
  ['rights'],
];
const PROJECTS = STAGES.flat().filter((step) => step !== GUESTS);
/** Projects that run only if the command names them: one needs programs that no package registry has, the other compiles a generator. */
const ON_REQUEST = ['real', 'clients'];
/** Length of a message in the summary, enough to see the expected value. The output of the tests contains the whole message. */
const REASON_CHARACTERS = 1_000;

const MAY_NOT_SKIP = process.env['CI'] === 'true';

interface ProjectResult extends RetriedSummary {
  project: string;
  seconds: number;
}

/** Runs a project. Outside of lane 0, its output appears at its end, so that it does not mix with the output of other projects. */
async function runProject(project: string, lane: number): Promise<ProjectResult> {
  const isLive = lane === 0;
  const results = join(ROOT, 'dist', 'test');
  const log = join(results, `${project}.log`);
  const started = performance.now();
  if (isLive) {
    process.stdout.write(`\n== ${project}\n`);
  }
  const summary = await runVitest({
    root: ROOT,
    project,
    summary: join(results, `${project}.json`),
    lane,
    ...(!isLive && { log }),
  });
  if (!isLive) {
    process.stdout.write(`\n== ${project}\n${readFileSync(log, 'utf8')}`);
  }
  return { project, seconds: Math.round((performance.now() - started) / 1000), flaky: [], ...summary };
}

/** Makes the guests and the base of the images that tests need later. The projects make what is missing, and report why that fails. */
async function makeGuests(): Promise<void> {
  const progress = (text: string): void => void process.stderr.write(`guests: ${text}\n`);
  const tell = (error: unknown): void => progress(describeError(error));
  const isRoot = process.getuid?.() === 0;
  for (const make of [guestImage, adbdGuest]) {
    for (const architecture of ['amd64', 'arm64'] as const) {
      await make(architecture, progress).catch(tell);
    }
  }
  if (isRoot) {
    await cloudImage(progress).catch(tell);
    await prepareBase(progress).catch(tell);
  }
}

async function runAll(): Promise<ProjectResult[]> {
  const folder = join(ROOT, 'dist', 'test', 'rights');
  await rm(folder, { recursive: true, force: true });
  process.env[USED_RIGHTS_FOLDER] = folder;
  const results = await runStages(STAGES, async (step, lane) =>
    step === GUESTS ? await makeGuests() : await runProject(step, lane),
  );
  return results.filter((result) => result !== undefined);
}

/** Runs the failed files again, one after the other. Prints why a file does not run again. */
async function retry(results: readonly ProjectResult[]): Promise<ProjectResult[]> {
  const files = filesToRetry(results);
  if (typeof files === 'string') {
    process.stdout.write(`\nno file runs again: ${files}\n`);
    return [...results];
  }
  const retried: ProjectResult[] = [];
  for (const [index, result] of results.entries()) {
    let last = result;
    for (const file of files[index] ?? []) {
      last = await retryFile(last, file);
    }
    retried.push(last);
  }
  return retried;
}

async function retryFile(result: ProjectResult, file: string): Promise<ProjectResult> {
  if (performance.now() > LAST_RETRY_SECONDS * 1000) {
    process.stdout.write(`\n${file} does not run again, because the run already takes too long\n`);
    return result;
  }
  const { project } = result;
  process.stdout.write(`\n== ${project}: ${file} runs again, alone\n`);
  const summary = join(ROOT, 'dist', 'test', `${project}-again.json`);
  const second = await runVitest({ root: ROOT, project, args: [file], summary });
  return { ...result, ...withRetry(result, file, second) };
}

/** Returns the lines about the inputs and histories that the tests of a project tried. */
function describeAttempts({ project, attempts, histories }: ProjectResult): string[] {
  return [
    ...attempts.map(({ input, outcome, count }) => `${project}: tried ${count} × ${input}: ${outcome}`),
    ...histories.map((history) => `${project}: ${describeHistories(history)}`),
  ];
}

/** Returns a line for the project and a line for each failed or skipped test. The end of a log then shows the result. */
function describeOutcome(result: ProjectResult): string[] {
  const counts = `${result.passed} passed, ${result.failed.length} failed, ${result.skipped.length} skipped`;
  return [
    `${result.project.padEnd(12)} ${String(result.seconds).padStart(5)} s   ${counts}`,
    ...result.flaky.map(({ name, reason }) => `  flaky: ${name}: ${reason.replaceAll('\n', '\n    ')}`),
    ...result.failed.map((test) => describeTest('failed', test)),
    ...result.skipped.map((test) => describeTest('skipped', test)),
  ];
}

function describeHistories({ test, histories, meanLength, longest }: HistoryCount): string {
  return `${histories} histories of ${meanLength.toFixed(1)} steps, the longest of ${longest}: ${test}`;
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
  const results = await retry(
    projects.length === 0
      ? await runAll()
      : await runStages(
          projects.map((project) => [project]),
          runProject,
        ),
  );
  const summary = [...results.flatMap(describeAttempts), ...results.flatMap(describeOutcome)];
  process.stdout.write(`\n${summary.map((line) => `${line}\n`).join('')}`);
  const passed = results.reduce((total, result) => total + result.passed, 0);
  const failed = results.reduce((total, result) => total + result.failed.length, 0);
  const skipped = results.reduce((total, result) => total + result.skipped.length, 0);
  if (skipped > 0 && MAY_NOT_SKIP) {
    process.stdout.write('with CI=true, a skipped test counts as failed\n');
  }
  const flaky = results.reduce((total, result) => total + result.flaky.length, 0);
  process.stdout.write(`flaky: ${flaky}\n`);
  process.stdout.write(`${passed} passed, ${failed} failed, ${skipped} skipped\n`);
  process.exitCode = failed === 0 && (skipped === 0 || !MAY_NOT_SKIP) ? 0 : 1;
}

await runCommand(async () => await main(process.argv.slice(2)));
