/** Runs the host's own network programs, without a shell and with a deadline. */
import { ReasonedError } from '../../api/v1alpha1/reasons.ts';
import { isMissing } from '../../base/errors.ts';
import { ProgramError, run as runProgram } from '../../base/exec.ts';

/** All of these answer in milliseconds; a longer wait means a lock held by something broken. */
const COMMAND_TIMEOUT_MILLISECONDS = 10_000;
/** A ruleset with ten thousand rules of others is about 5 MB as JSON. */
const MAXIMUM_OUTPUT_BYTES = 64 * 1024 * 1024;

/** Its standard output. @throws ProgramError with the program's last words, ReasonedError `NetworkUnavailable` where it is not installed. */
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
      ? new ReasonedError('NetworkUnavailable', `the program ${program} is not installed`)
      : error;
  }
}

/** Runs `ip` once for all the commands, in order; stops at the first that fails. */
export async function ip(commands: readonly string[]): Promise<void> {
  if (commands.length === 0) {
    return;
  }
  await run('ip', ['-batch', '-'], `${commands.join('\n')}\n`);
}

/** An entry that ends while conntrack goes through the list makes it give up; the next pass does not meet it. */
const FORGET_PASSES = 5;

/** Forgets every tracked connection that matches; finding none is no error. */
export async function forgetConnections(filter: readonly string[]): Promise<void> {
  for (let pass = 1; ; pass++) {
    try {
      await run('conntrack', ['-D', ...filter]);
      return;
    } catch (error) {
      const words = error instanceof ProgramError ? error.words : '';
      if (words.includes('0 flow entries have been deleted')) {
        return;
      }
      if (pass === FORGET_PASSES || !words.includes("such conntrack doesn't exist")) {
        throw error;
      }
    }
  }
}
