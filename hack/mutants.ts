/**
 * Applies each mutant of test/mutants to a temporary copy of the work tree, and runs the tests that must then fail. Prints the mutants that
 * survive; the last line is `N mutants, N killed, N survived`. The exit code is 1 when a mutant survives or cannot be judged. A mutant
 * cannot be judged if its text is not in the product exactly once, or if its tests fail without the mutant too.
 *
 *   mutants.ts                    all mutants
 *   mutants.ts --only operator/   mutants with this text in their ids
 */
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { messageOf } from '../base/errors.ts';
import { literally, type Mutant, readMutants } from './mutants/definitions.ts';
import type { RunSummary } from './vitest/reporter.ts';
import { runCommand } from './command.ts';
import { MutantCopy, removeLeftCopies } from './mutants/copy.ts';
import { runVitest } from './vitest/run.ts';

const ROOT = join(import.meta.dirname, '..');
const LOGS = join(ROOT, 'dist', 'mutants');
/**
 * Time limit of tests that a mutant can block: this many times their usual time, plus a minute. If the product hangs, the mutant counts as
 * killed.
 */
const PATIENCE = 5;
const LEAST_PATIENCE_MILLISECONDS = 60_000;
/** Projects whose tests can run at the same time as other tests. Tests of other projects check deadlines or count things. */
const SIDE_BY_SIDE = new Set(['unit', 'integration', 'hostile', 'e2e']);
/** Number of files that run at the same time, as in vitest.config.ts. */
const LANES = 2;

/** Aborts at a signal. Tests run in their own process groups, which do not receive a Ctrl-C. */
const interrupted = new AbortController();
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
  process.once(signal, () => interrupted.abort(new Error('interrupted')));
}

interface Verdict {
  readonly killed: boolean;
  readonly why: string;
}

/** Judges the mutants of one file of tests, after its tests have passed without a mutant. */
async function judgeGroup(copy: MutantCopy, mutants: readonly Mutant[]): Promise<boolean[]> {
  const started = performance.now();
  const baseline = await runTests(copy, mutants, { log: `${mutants[0]?.test}` });
  const milliseconds = performance.now() - started;
  const [failed] = baseline.failed;
  const kills: boolean[] = [];
  for (const mutant of mutants) {
    interrupted.signal.throwIfAborted();
    const began = performance.now();
    const verdict =
      failed === undefined
        ? await judge(copy, mutant, PATIENCE * milliseconds + LEAST_PATIENCE_MILLISECONDS)
        : {
            killed: false,
            why: `its tests fail without it too: ${failed.name}: ${firstLine(failed.reason)}`,
          };
    const seconds = ((performance.now() - began) / 1000).toFixed(1).padStart(6);
    const word = verdict.killed ? 'killed  ' : 'SURVIVED';
    process.stdout.write(`${word} ${seconds} s  ${mutant.id}: ${verdict.why}\n`);
    kills.push(verdict.killed);
  }
  return kills;
}

async function judge(copy: MutantCopy, mutant: Mutant, patience: number): Promise<Verdict> {
  const late = AbortSignal.timeout(Math.round(patience));
  try {
    const args = ['--bail=1'];
    return await copy.with(mutant, async () => {
      const summary = await runTests(copy, [mutant], { log: mutant.id, args, late });
      // The limit is checked here, because it can expire later, while remaining processes of the tests are being ended.
      return late.aborted ? { killed: true, why: 'the tests stood still' } : verdictOf(mutant, summary);
    });
  } catch (error) {
    interrupted.signal.throwIfAborted();
    return { killed: false, why: messageOf(error) };
  }
}

/** Returns the verdict. Only a failed test kills a mutant. A product that cannot be loaded proves nothing. */
function verdictOf({ test, breaks, name = '' }: Mutant, { passed, failed }: RunSummary): Verdict {
  if (passed === 0 && failed.length === 0) {
    return { killed: false, why: `no test of ${test} has a name with "${name}"` };
  }
  const killer = failed.find(({ name }) => name.startsWith(`${test} > `));
  if (killer !== undefined) {
    return { killed: true, why: `${killer.name.slice(test.length + 3)}: ${firstLine(killer.reason)}` };
  }
  const [other] = failed;
  return other === undefined
    ? { killed: false, why: breaks }
    : { killed: false, why: `no test could run: ${other.name}: ${firstLine(other.reason)}` };
}

/**
 * Runs the tests that must fail with any of the mutants, which share a file of tests.
 *
 * @throws Error when somebody ends this program
 */
async function runTests(
  { root }: MutantCopy,
  mutants: readonly Mutant[],
  { log, args = [], late }: { log: string; args?: readonly string[]; late?: AbortSignal },
): Promise<RunSummary> {
  const names = mutants.map(({ name }) => name);
  const pattern = names.includes(undefined)
    ? []
    : ['-t', names.map((name = '') => literally(name)).join('|')];
  const [{ project, test }] = mutants as [Mutant];
  const path = join(LOGS, log.replaceAll('/', '-'));
  mkdirSync(LOGS, { recursive: true });
  const summary = await runVitest({
    root,
    project,
    args: [test, ...pattern, ...args],
    summary: `${path}.json`,
    log: `${path}.log`,
    signal: AbortSignal.any(late === undefined ? [interrupted.signal] : [interrupted.signal, late]),
  });
  interrupted.signal.throwIfAborted();
  return summary;
}

/** Judges groups of mutants, one group at a time in each copy. */
async function judgeAll(groups: readonly Mutant[][], copies: readonly MutantCopy[]): Promise<boolean[]> {
  const waiting = [...groups];
  const kills: boolean[] = [];
  const lane = async (copy: MutantCopy): Promise<void> => {
    for (let group = waiting.shift(); group !== undefined; group = waiting.shift()) {
      kills.push(...(await judgeGroup(copy, group)));
    }
  };
  await Promise.all(copies.map(lane));
  return kills;
}

function firstLine(text: string): string {
  return text.split('\n')[0] ?? '';
}

async function main(): Promise<void> {
  const { values } = parseArgs({ options: { only: { type: 'string', default: '' } } });
  const mutants = readMutants(values.only);
  if (mutants.length === 0) {
    throw new Error(`no mutant has ${JSON.stringify(values.only)} in its id`);
  }
  await removeLeftCopies();
  const groups = [...Map.groupBy(mutants, ({ project, test }) => `${project} ${test}`).values()];
  const { beside = [], alone = [] } = Object.groupBy(groups, ([first]) =>
    SIDE_BY_SIDE.has(first?.project ?? '') ? 'beside' : 'alone',
  );
  await using stack = new AsyncDisposableStack();
  // All copies are made at the beginning, so that every mutant is judged by the same state of the work tree.
  const copies: MutantCopy[] = [];
  while (copies.length < Math.min(LANES, groups.length)) {
    copies.push(stack.use(await MutantCopy.of(ROOT)));
  }
  const kills = [...(await judgeAll(beside, copies)), ...(await judgeAll(alone, copies.slice(0, 1)))];
  const killed = kills.filter(Boolean).length;
  const survived = mutants.length - killed;
  process.stdout.write(`${mutants.length} mutants, ${killed} killed, ${survived} survived\n`);
  process.exitCode = survived === 0 ? 0 : 1;
}

await runCommand(main);
