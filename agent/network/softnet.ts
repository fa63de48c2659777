/**
 * The program `softnet`, which `tart` starts beside a guest to filter its packets. The guest then reaches public addresses and its gateway only,
 * and cannot take the address of another guest. The program needs the rights of root to connect the guest, and gives them up afterwards.
 */
import { stat } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { isMissing, undefinedIf } from '../../base/errors.ts';
import { ProgramError, run } from '../../base/exec.ts';

/** What guests reach beside public addresses and their gateway, and what they do not reach. The longest prefix of both lists counts. */
export interface GuestFilter {
  /** Networks of IPv4, for example `10.0.0.0/8`. */
  mayReach: readonly string[];
  mayNotReach: readonly string[];
}

/** Name by which the program knows the gateway. Without it, a blocked network around the gateway would cut off reserved ports. */
export const GATEWAY = '@host';
/** Earliest version that knows {@link GATEWAY}. */
const LEAST_VERSION = '0.19.0';
/** Time limit of a question to the program. It only prints its options. */
const QUESTION_MILLISECONDS = 10_000;
/** Bit of a file's mode by which a program has the rights of its owner. */
const SET_USER_ID = 0o4000;
const ROOT = 0;

/** Why the program cannot be used, and what to do. */
export interface SoftnetObstacle {
  readonly finding: string;
  readonly advice: string;
}

/** Returns the path of the program. `tart` finds it by its name, and Homebrew installs both in the same folder. */
export function softnetBeside(tart: string): string {
  return join(dirname(tart), 'softnet');
}

/** Returns why the program cannot be used. Undefined if it can. An upgrade by Homebrew takes its rights away. */
export async function softnetObstacle(program: string): Promise<SoftnetObstacle | undefined> {
  const file = await undefinedIf(isMissing, stat(program));
  if (file === undefined) {
    const advice = 'Install it with `brew install cirruslabs/cli/softnet`, or set network.driver to vmnet';
    return { finding: `There is no program ${program}`, advice };
  }
  const options = await answer(program, ['--help']);
  if (options?.includes(GATEWAY) !== true) {
    return {
      finding: `The program ${program} does not know ${GATEWAY}`,
      advice: `Install softnet ${LEAST_VERSION} or later with \`brew upgrade cirruslabs/cli/softnet\``,
    };
  }
  const isOfRoot = file.uid === ROOT && (file.mode & SET_USER_ID) !== 0;
  // Without the bit, the program runs itself again with sudo.
  if (isOfRoot || (await answer('sudo', ['-n', program, '--help'])) !== undefined) {
    return undefined;
  }
  return {
    finding: `The program ${program} does not get the rights of root`,
    advice: `Run: f=$(realpath ${program}); sudo chown root "$f" && sudo chmod u+s "$f"`,
  };
}

/** Returns what the program prints. Undefined if it fails, or is not there. */
async function answer(program: string, parameters: readonly string[]): Promise<string | undefined> {
  try {
    return await run(program, parameters, { timeoutMilliseconds: QUESTION_MILLISECONDS });
  } catch (error) {
    if (error instanceof ProgramError) {
      return undefined;
    }
    throw error;
  }
}
