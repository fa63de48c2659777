/**
 * Measures the operator's bundle, with 1,000 VMs on 600 simulated hosts and the floor beside it; the agent's starts, beside QEMU
 * started by hand; pulls, beside skopeo and what the machine gives at most; clones; an image onto many simulated hosts; readers of
 * logs. Prints
 * tables for people and the same numbers as JSON.
 *
 *     node test/bench/main.ts [--only fleet,starts,pulls,clones,fanout,logs] [--vms 1000] [--hosts 600] [--starts 20] [--pulls 2]
 *         [--folder /var/tmp]
 */
import { parseArgs } from 'node:util';
import { measureStarts } from './agent.ts';
import { measureClones } from './clones.ts';
import { measureFanOut } from './fanout.ts';
import { measureFleet } from './fleet.ts';
import { clonesTable, fanOutTable, pullsTable } from './imagereport.ts';
import { logReadsTable, measureLogReads } from './logs.ts';
import { measurePulls } from './pulls.ts';
import { fleetTable, startsTable } from './report.ts';

const CLONES = 20;
const FAN_OUT_HOSTS = 50;
/** As many as somebody with a loop in a shell starts. */
const LOG_READERS = 200;
const ENDING_SIGNALS = [
  ['SIGHUP', 129],
  ['SIGINT', 130],
  ['SIGTERM', 143],
] as const;

interface Settings {
  vms: number;
  hosts: number;
  starts: number;
  pulls: number;
  /** On a disk: `/tmp` is memory on some machines. */
  folder: string;
}

interface Part {
  name: string;
  /** What it measured, and as a table. */
  run: (settings: Settings) => Promise<{ result: object; table: string }>;
}

function part<T extends object>(
  name: string,
  measure: (settings: Settings) => Promise<T>,
  table: (result: T) => string,
): Part {
  return {
    name,
    run: async (settings) => {
      const result = await measure(settings);
      return { result, table: table(result) };
    },
  };
}

/** What needs most of the machine first. */
const PARTS: readonly Part[] = [
  part('pulls', ({ folder, pulls }) => measurePulls(folder, pulls), pullsTable),
  part('clones', ({ folder }) => measureClones(folder, CLONES), clonesTable),
  part('fanout', () => measureFanOut(FAN_OUT_HOSTS), fanOutTable),
  part('logs', ({ folder }) => measureLogReads(folder, LOG_READERS), logReadsTable),
  part('fleet', ({ vms, hosts }) => measureFleet(vms, hosts), fleetTable),
  part('starts', ({ starts }) => measureStarts(starts), startsTable),
];

async function main(): Promise<void> {
  const { values } = parseArgs({
    options: {
      only: { type: 'string', default: PARTS.map(({ name }) => name).join() },
      vms: { type: 'string', default: '1000' },
      hosts: { type: 'string', default: '600' },
      starts: { type: 'string', default: '20' },
      pulls: { type: 'string', default: '2' },
      folder: { type: 'string', default: '/var/tmp' },
    },
  });
  if (process.platform !== 'linux') throw new Error('the benchmark reads /proc: it runs on Linux only');
  const [vms, hosts] = [Number(values.vms), Number(values.hosts)];
  const [starts, pulls, folder] = [Number(values.starts), Number(values.pulls), values.folder];
  const only = values.only.split(',');
  const unknown = only.filter((name) => PARTS.every((known) => known.name !== name));
  if (unknown.length > 0) throw new Error(`there is nothing to measure called ${unknown.join()}`);
  const results: Record<string, object> = {};
  for (const { name, run } of PARTS.filter((one) => only.includes(one.name))) {
    const { result, table } = await run({ vms, hosts, starts, pulls, folder });
    process.stdout.write(`${table}\n\n`);
    results[name] = result;
  }
  process.stdout.write(`${JSON.stringify(results)}\n`);
}

// What was begun for the measurement is ended and removed at exit.
for (const [signal, code] of ENDING_SIGNALS) process.once(signal, () => process.exit(code));
try {
  await main();
} catch (error) {
  process.stderr.write(`${error instanceof Error ? error.message : String(error)}\n`);
  process.exitCode = 1;
}
