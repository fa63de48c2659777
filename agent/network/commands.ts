/** Runs the host's network programs, without a shell and with a time limit. */
import { ReasonedError } from '../../api/v1alpha1/reasons.ts';
import { isMissing } from '../../base/errors.ts';
import { ProgramError, run as runProgram } from '../../base/exec.ts';

/**
 * Time limit of a network program. These programs normally end within milliseconds. A program that reaches the limit probably waits for a
 * lock that a broken process holds.
 */
const COMMAND_TIMEOUT_MILLISECONDS = 10_000;
/** Limit of a program's output. An nftables ruleset with ten thousand rules of other programs is about 5 MB as JSON. */
const MAXIMUM_OUTPUT_BYTES = 64 * 1024 * 1024;

/**
 * Runs a program and returns its output. @throws ProgramError when the program fails; ReasonedError `NetworkUnavailable` when the program
 * is missing.
 */
export async function run(program: string, parameters: readonly string[], input?: string): Promise<string> {
  try {
    return await runProgram(program, parameters, {
      name: [program, ...parameters].join(' '),
      timeoutMilliseconds: COMMAND_TIMEOUT_MILLISECONDS,
      outputLimitBytes: MAXIMUM_OUTPUT_BYTES,
      input,
    });
  } catch (error) {
    throw isMissing(error)
      ? new ReasonedError('NetworkUnavailable', `The program ${program} is not installed on this host`)
      : error;
  }
}

/** Runs all commands in order, with a single call of `ip`. The call stops at the first command that fails. */
export async function ip(commands: readonly string[]): Promise<void> {
  if (commands.length === 0) {
    return;
  }
  await run('ip', ['-batch', '-'], `${commands.join('\n')}\n`);
}

/**
 * Largest number of times that the program conntrack is run to delete the connections of one filter. If another program or the kernel
 * removes one of these connections during a run, conntrack fails. The next run no longer finds this connection, so it can succeed.
 */
const FORGET_PASSES = 5;

/**
 * Deletes every tracked connection that matches the filter. The filter consists of options of `conntrack -D`. If no connection matches the
 * filter, the function succeeds.
 */
export async function forgetConnections(filter: readonly string[]): Promise<void> {
  for (let pass = 1; ; pass++) {
    try {
      await run('conntrack', ['-D', ...filter]);
      return;
    } catch (error) {
      const lastOutput = error instanceof ProgramError ? error.lastOutput : '';
      if (lastOutput.includes('0 flow entries have been deleted')) {
        return;
      }
      if (pass === FORGET_PASSES || !lastOutput.includes("such conntrack doesn't exist")) {
        throw error;
      }
    }
  }
}
