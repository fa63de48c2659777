/**
 * Measures the operator's bundle, with 1,000 VMs on 600 simulated hosts and the floor beside it, and the agent, beside QEMU started by
 * hand. Prints tables for people and the same numbers as JSON.
 *
 *     node test/bench/main.ts [--vms 1000] [--hosts 600] [--starts 20]
 */
import { parseArgs } from 'node:util';
import { measureStarts } from './agent.ts';
import { measureFleet } from './fleet.ts';
import { fleetTable, startsTable } from './report.ts';

async function main(): Promise<void> {
  const { values } = parseArgs({
    options: {
      vms: { type: 'string', default: '1000' },
      hosts: { type: 'string', default: '600' },
      starts: { type: 'string', default: '20' },
    },
  });
  if (process.platform !== 'linux') throw new Error('the benchmark reads /proc: it runs on Linux only');
  const fleet = await measureFleet(Number(values.vms), Number(values.hosts));
  process.stdout.write(`${fleetTable(fleet)}\n\n`);
  const starts = await measureStarts(Number(values.starts));
  process.stdout.write(`${startsTable(starts)}\n\n${JSON.stringify({ ...fleet, starts })}\n`);
}

try {
  await main();
} catch (error) {
  process.stderr.write(`${error instanceof Error ? error.message : String(error)}\n`);
  process.exitCode = 1;
}
