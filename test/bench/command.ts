/** Measures how long calls of the command `berth` take from start to end, compared with an empty Node.js and with kubectl. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { makeExecutable } from '../../hack/cli/executable.ts';
import { ownPlatform } from '../../hack/cli/nodes.ts';
import { startCluster } from '../../hack/cluster/index.ts';
import { cpuSecondsOfChildren } from './measure.ts';
import { format, milliseconds, quantile } from './report.ts';
import { median, type Verdict } from './verdicts.ts';

/** Largest median of a start in milliseconds. People do not notice it. */
const TARGET_MILLISECONDS = 120;
/** Calls of the command that have the target. */
const JUDGED = ['berth version', 'berth vm list'] as const;

/** Times in milliseconds. */
interface Times {
  /** From start to end, one for each run. */
  readonly elapsed: number[];
  /** Of the processors, all runs together. On a busy machine, it says more. */
  cpu: number;
}

/** Times by the words of the call. */
export type CommandTimes = Readonly<Record<string, Readonly<Times>>>;

/** Runs the calls in turns, so that other load of the machine affects all of them. The cluster has no VMs. */
export async function measureCommand(folder: string, runs: number): Promise<CommandTimes> {
  const own = await mkdtemp(join(folder, 'berth-bench-command-'));
  try {
    const { path: berth } = await makeExecutable(ownPlatform(), own);
    const cluster = await startCluster({ name: `bench-command-${process.pid}` });
    try {
      const { kubeconfig, kubectlPath } = cluster;
      const calls: Readonly<Record<string, readonly string[]>> = {
        'node -e 0': [process.execPath, '-e', '0'],
        'berth --help': [berth, '--help'],
        'berth version': [berth, 'version', '--kubeconfig', kubeconfig],
        'berth vm list': [berth, 'vm', 'list', '--kubeconfig', kubeconfig],
        'kubectl version': [kubectlPath, 'version', '--kubeconfig', kubeconfig],
        'kubectl get vms': [kubectlPath, 'get', 'vms', '--kubeconfig', kubeconfig],
      };
      return await timesOf(calls, runs);
    } finally {
      await cluster.stop();
    }
  } finally {
    await rm(own, { recursive: true, force: true });
  }
}

async function timesOf(
  calls: Readonly<Record<string, readonly string[]>>,
  runs: number,
): Promise<CommandTimes> {
  const times: Record<string, Times> = {};
  // The first run reads the files from the disk, so it is not counted.
  for (let run = 0; run <= runs; run += 1) {
    for (const [name, call] of Object.entries(calls)) {
      const before = cpuSecondsOfChildren();
      const elapsed = await timeOf(call);
      if (run > 0) {
        const all = (times[name] ??= { elapsed: [], cpu: 0 });
        all.elapsed.push(elapsed);
        all.cpu += (cpuSecondsOfChildren() - before) * 1000;
      }
    }
  }
  return times;
}

/** Returns the milliseconds from start to end. @throws Error when the program fails. */
async function timeOf([program = '', ...parameters]: readonly string[]): Promise<number> {
  const began = performance.now();
  const child = spawn(program, parameters, { stdio: 'ignore' });
  const [code] = await once(child, 'exit');
  const time = performance.now() - began;
  if (code !== 0) {
    throw new Error(`${program} ${parameters.join(' ')} ended with code ${code}`);
  }
  return time;
}

export function commandTable(times: CommandTimes): string {
  const runs = Math.max(...Object.values(times).map(({ elapsed }) => elapsed.length));
  return format([
    [`start to end, ${runs} runs`, 'least', 'median', 'p90', 'CPU, mean'],
    ...Object.entries(times).map(([name, { elapsed, cpu }]) => [
      name,
      ...[0, 0.5, 0.9].map((part) => milliseconds(quantile(elapsed, part))),
      milliseconds(cpu / elapsed.length),
    ]),
  ]);
}

export function commandVerdicts(times: CommandTimes): Verdict[] {
  return JUDGED.map((name) => {
    const measured = median(times[name]?.elapsed ?? []);
    return {
      claim: `command: ${name}, median`,
      measured: milliseconds(measured),
      target: `at most ${TARGET_MILLISECONDS} ms`,
      reached: measured <= TARGET_MILLISECONDS,
    };
  });
}
