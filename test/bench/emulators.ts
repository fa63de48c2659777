/**
 * Measures the time that network and driver add to a start of an emulator, compared with the same program by hand. Both run the stand-in
 * for the Android emulator, which boots without a guest.
 */
import { execFile } from 'node:child_process';
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { makeSdk, makeSdkFolder } from '../standins/emulator/sdk.ts';
import { NatWorld, whyNotHere } from '../worlds/nat.ts';
import type { EmulatorErrand, EmulatorStarts } from './emulatorprocess.ts';
import { withFolder } from './folder.ts';
import { format, milliseconds, quantile } from './report.ts';
import type { Verdict } from './verdicts.ts';

const TARGET_MILLISECONDS = 300;
const PROGRAM = join(import.meta.dirname, 'emulatorprocess.ts');
/** Time limit of all runs. A start takes a second on a busy machine. */
const LIMIT_MILLISECONDS = 300_000;

/** Measures in a process within a network namespace, which plays the agent's host. Measures nothing if this machine cannot make one. */
export async function measureEmulators(parent: string, runs: number): Promise<EmulatorStarts> {
  if (whyNotHere() !== undefined) {
    return { byAgent: [], network: [], byHand: [] };
  }
  return await withFolder(parent, async (folder) => {
    const architecture = process.arch === 'arm64' ? 'arm64' : 'amd64';
    await using parts = new AsyncDisposableStack();
    const sdkFolder = parts.adopt(await makeSdkFolder(), (one) => rm(one, { recursive: true }));
    const sdk = await makeSdk(sdkFolder, { architecture, mode: 'sleeping' });
    const net = parts.use(await NatWorld.make('bench'));
    const errand: EmulatorErrand = {
      folder,
      sdk: sdk.root,
      program: sdk.program,
      nat: net.natOptions(),
      runs,
    };
    const program = [process.execPath, PROGRAM, JSON.stringify(errand)];
    const inHost = [`--net=/run/netns/${net.host}`, ...program];
    const { stdout } = await promisify(execFile)('nsenter', inHost, { timeout: LIMIT_MILLISECONDS });
    return JSON.parse(stdout) as EmulatorStarts;
  });
}

export function emulatorsTable(starts: EmulatorStarts): string {
  const { byAgent, network, byHand } = starts;
  const row = (label: string, values: readonly number[]): string[] => [
    label,
    ...[0, 0.5, 0.9].map((part) => milliseconds(quantile(values, part))),
  ];
  return format([
    [`start of the stand-in emulator, ${byAgent.length} runs`, 'least', 'median', 'p90'],
    row('driver to booted', byDriver(starts)),
    row('program by hand to booted', byHand),
    ['added by the driver', '', milliseconds(added(byDriver(starts), starts)), ''],
    row('network namespace', network),
    ['added by network and driver', '', milliseconds(added(byAgent, starts)), ''],
  ]);
}

export function emulatorsVerdicts(starts: EmulatorStarts): Verdict[] {
  const verdict = (by: string, values: readonly number[]): Verdict => {
    const measured = added(values, starts);
    const why = whyNotHere();
    const target = `at most ${TARGET_MILLISECONDS} ms`;
    return {
      claim: `emulators: added by ${by} to a start of the stand-in, median`,
      measured: milliseconds(measured),
      target: why === undefined ? target : `${target}; ${why}`,
      reached: why === undefined ? measured <= TARGET_MILLISECONDS : undefined,
    };
  };
  return [verdict('the driver', byDriver(starts)), verdict('network and driver', starts.byAgent)];
}

function byDriver({ byAgent, network }: EmulatorStarts): number[] {
  return byAgent.map((whole, run) => whole - (network[run] ?? 0));
}

function added(values: readonly number[], { byHand }: EmulatorStarts): number {
  return quantile(values, 0.5) - quantile(byHand, 0.5);
}
