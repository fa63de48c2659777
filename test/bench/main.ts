/**
 * Measures VMs on simulated hosts, compared with an operator on Go's usual framework; counts what one VM costs the cluster; starts by the agent, compared with QEMU by hand;
 * starts of emulators, compared with their program by hand; streams, compared with reserved ports; pulls, compared with skopeo and the
 * limits of the machine; clones; copies of a shared file, compared with cp; one image for many simulated hosts; readers of logs; the HTTP API, compared with the API server; deployments
 * over HTTP that wait; a day of power by demand; starts of the command `berth`, compared with kubectl; starts from the memory of an image,
 * compared with boots and resumes; hand-outs of VMs from pools; frames and memory of the console in Chromium. It prints tables for people, a verdict for each target, and
 * everything as JSON. The exit code is 1 if a target is missed.
 *
 *     node test/bench/main.ts [--only fleet,counts,starts,emulators,pulls,clones,copies,fanout,logs,deploys,workers,streams,http,command,power,warm,pool,console]
 *         [--vms 1000] [--hosts 600] [--rounds 3] [--starts 20] [--pulls 5] [--minutes 2] [--folder /var/tmp] [--charts docs/develop/charts]
 */
import { parseArgs } from 'node:util';
import { POOL_REPLICAS_MAXIMUM } from '../../api/v1alpha1/poolmembers.ts';
import { measureStarts } from './agent.ts';
import { roomFor } from './claims.ts';
import { measureClones } from './clones.ts';
import { countsTable, measureCounts } from './counts.ts';
import { commandTable, commandVerdicts, measureCommand } from './command.ts';
import { consoleTable, consoleVerdicts, measureConsole } from './console.ts';
import { deploysTable, deploysVerdicts, measureDeploys } from './deploys.ts';
import { emulatorsTable, emulatorsVerdicts, measureEmulators } from './emulators.ts';
import { measureFanOut } from './fanout.ts';
import { measureFleet } from './fleet.ts';
import { fleetTable, fleetVerdicts } from './fleetreport.ts';
import { measureHTTP } from './http.ts';
import { httpTable, httpVerdicts } from './httpreport.ts';
import {
  clonesTable,
  clonesVerdicts,
  fanOutTable,
  fanOutVerdicts,
  pullsTable,
  pullsVerdicts,
  sharedCopiesTable,
  sharedCopiesVerdicts,
} from './imagereport.ts';
import { logReadsTable, logReadsVerdicts, measureLogReads } from './logs.ts';
import { writeCharts } from './plot.ts';
import { measurePool, poolTable, poolVerdicts } from './poolreport.ts';
import { measurePower, powerTable, powerVerdicts } from './power.ts';
import { measurePulls } from './pulls.ts';
import { measureSharedCopies } from './sharedcopies.ts';
import { startsTable, startsVerdicts } from './startsreport.ts';
import { measureStreams, streamsTable, streamsVerdicts } from './streams.ts';
import { type Verdict, verdictsTable } from './verdicts.ts';
import { measureWarm } from './warm.ts';
import { warmTable, warmVerdicts } from './warmreport.ts';
import { measureWorkers, workersTable } from './workers.ts';
import { runCommand } from '../../hack/command.ts';

const CLONES = 20;
const FAN_OUT_HOSTS = 50;
/** As many readers as a user starts with a loop in a shell. */
const LOG_READERS = 200;
const ENDING_SIGNALS = [
  ['SIGHUP', 129],
  ['SIGINT', 130],
  ['SIGTERM', 143],
] as const;

/** Defaults of the settings. */
const DEFAULTS = { vms: 1000, hosts: 600, rounds: 3, starts: 20, pulls: 5, minutes: 2 } as const;

type Settings = Record<keyof typeof DEFAULTS, number> & {
  /** Folder on a disk, because `/tmp` is memory on some machines. */
  folder: string;
};

/** Result of one part, with its table and verdicts. */
interface Outcome {
  result: object;
  table: string;
  verdicts: readonly Verdict[];
}

interface Part {
  name: string;
  run: (settings: Settings) => Promise<Outcome>;
}

function part<T extends object>(
  name: string,
  measure: (settings: Settings) => Promise<T>,
  { table, verdicts }: { table: (result: T) => string; verdicts: (result: T) => readonly Verdict[] },
): Part {
  return {
    name,
    run: async (settings) => {
      const result = await measure(settings);
      return { result, table: table(result), verdicts: verdicts(result) };
    },
  };
}

/** Parts that need most of the machine come first. */
const PARTS: readonly Part[] = [
  part('pulls', ({ folder, pulls }) => measurePulls(folder, pulls), {
    table: pullsTable,
    verdicts: pullsVerdicts,
  }),
  part('clones', ({ folder }) => measureClones(folder, CLONES), {
    table: clonesTable,
    verdicts: clonesVerdicts,
  }),
  part('copies', ({ folder, rounds }) => measureSharedCopies(folder, rounds), {
    table: sharedCopiesTable,
    verdicts: sharedCopiesVerdicts,
  }),
  part('fanout', () => measureFanOut(FAN_OUT_HOSTS), { table: fanOutTable, verdicts: fanOutVerdicts }),
  part('logs', ({ folder }) => measureLogReads(folder, LOG_READERS), {
    table: logReadsTable,
    verdicts: logReadsVerdicts,
  }),
  part('fleet', (settings) => measureFleet(settings), { table: fleetTable, verdicts: fleetVerdicts }),
  part('counts', () => measureCounts(), { table: countsTable, verdicts: () => [] }),
  part('http', (settings) => measureHTTP(settings), { table: httpTable, verdicts: httpVerdicts }),
  part('deploys', () => measureDeploys(), { table: deploysTable, verdicts: deploysVerdicts }),
  part('workers', () => measureWorkers(), { table: workersTable, verdicts: () => [] }),
  part('power', () => measurePower(), { table: powerTable, verdicts: powerVerdicts }),
  part('streams', ({ rounds }) => measureStreams(rounds), { table: streamsTable, verdicts: streamsVerdicts }),
  part('emulators', ({ folder, starts }) => measureEmulators(folder, starts), {
    table: emulatorsTable,
    verdicts: emulatorsVerdicts,
  }),
  part('command', ({ folder, starts }) => measureCommand(folder, starts), {
    table: commandTable,
    verdicts: commandVerdicts,
  }),
  // Half as many starts, because a boot takes seconds and there are four groups of them.
  part('warm', ({ folder, starts }) => measureWarm(folder, Math.ceil(starts / 2)), {
    table: warmTable,
    verdicts: warmVerdicts,
  }),
  // As many claims as a pool can have VMs, or as the hosts have room for, with the VMs that replace them.
  part(
    'pool',
    ({ starts, hosts }) =>
      measurePool(Math.ceil(starts / 4), {
        hosts,
        claims: Math.min(POOL_REPLICAS_MAXIMUM, roomFor(hosts)),
      }),
    { table: poolTable, verdicts: poolVerdicts },
  ),
  part('console', ({ minutes }) => measureConsole(minutes), {
    table: consoleTable,
    verdicts: consoleVerdicts,
  }),
  part('starts', ({ starts }) => measureStarts(starts), { table: startsTable, verdicts: startsVerdicts }),
];

/**
 * Reads the command line. @throws Error that names the option, its value and the allowed values
 */
function readSettings(): { settings: Settings; only: readonly string[]; charts: string | undefined } {
  const names = PARTS.map(({ name }) => name);
  const { values } = parseArgs({
    options: {
      only: { type: 'string', default: names.join() },
      folder: { type: 'string', default: '/var/tmp' },
      charts: { type: 'string' },
      ...Object.fromEntries(
        Object.entries(DEFAULTS).map(([name, value]) => [name, { type: 'string', default: String(value) }]),
      ),
    } as const,
  });
  const only = values.only.split(',');
  const unknown = only.filter((name) => !names.includes(name));
  if (unknown.length > 0) {
    throw new Error(`--only: there is no part ${unknown.join()}, but ${names.join(', ')}`);
  }
  const numbers = Object.keys(DEFAULTS).map((name) => {
    const text = String((values as Record<string, unknown>)[name]);
    if (!/^[1-9]\d*$/.test(text)) {
      throw new Error(`--${name}: "${text}" is no number from 1 on`);
    }
    return [name, Number(text)];
  });
  const settings = { ...(Object.fromEntries(numbers) as Settings), folder: values.folder };
  return { settings, only, charts: values.charts };
}

async function main(): Promise<void> {
  if (process.platform !== 'linux') {
    throw new Error('the benchmark reads /proc: it runs on Linux only');
  }
  const { settings, only, charts } = readSettings();
  const results: Record<string, object> = {};
  const verdicts: Verdict[] = [];
  for (const { name, run } of PARTS.filter((one) => only.includes(one.name))) {
    const outcome = await run(settings);
    process.stdout.write(`${outcome.table}\n\n`);
    results[name] = outcome.result;
    verdicts.push(...outcome.verdicts);
  }
  if (charts !== undefined) {
    writeCharts(charts, results);
  }
  process.stdout.write(`${verdictsTable(verdicts)}\n\n${JSON.stringify({ ...results, verdicts })}\n`);
  if (verdicts.some(({ reached }) => reached === false)) {
    process.exitCode = 1;
  }
}

// Folders and processes of the measurement are removed at exit.
for (const [signal, code] of ENDING_SIGNALS) {
  process.once(signal, () => process.exit(code));
}
await runCommand(main);
