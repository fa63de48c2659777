/** Runs the host's own network programs, without a shell and with a deadline. */
import { type ExecFileException, execFile } from 'node:child_process';
import { NetworkSetupError } from './network.ts';

/** All of these answer in milliseconds; a longer wait means a lock held by something broken. */
const COMMAND_TIMEOUT_MILLISECONDS = 10_000;
/** A ruleset with ten thousand rules of others is about 5 MB as JSON. */
const MAXIMUM_OUTPUT_BYTES = 64 * 1024 * 1024;

export class CommandError extends Error {
  override readonly name = 'CommandError';
  readonly stderr: string;

  constructor(command: string, stderr: string, cause: Error) {
    super(`${command}: ${stderr.trim() || cause.message}`, { cause });
    this.stderr = stderr;
  }
}

/** Standard output. @throws CommandError with the program's last words, {@link NetworkSetupError} where it is not installed. */
export function run(file: string, args: readonly string[], input?: string): Promise<string> {
  return new Promise((resolve, reject) => {
    const finished = (error: ExecFileException | null, stdout: string, stderr: string) => {
      if (!error) {
        resolve(stdout);
      } else if (error.code === 'ENOENT') {
        reject(new NetworkSetupError(`the program ${file} is not installed`));
      } else {
        reject(new CommandError([file, ...args].join(' '), stderr, error));
      }
    };
    const child = execFile(
      file,
      args,
      { timeout: COMMAND_TIMEOUT_MILLISECONDS, maxBuffer: MAXIMUM_OUTPUT_BYTES, killSignal: 'SIGKILL' },
      finished,
    );
    // A program that ends before it has read everything says why on stderr; the broken pipe itself says nothing.
    child.stdin?.on('error', () => undefined);
    child.stdin?.end(input);
  });
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
      const words = error instanceof CommandError ? error.stderr : '';
      if (words.includes('0 flow entries have been deleted')) {
        return;
      }
      if (pass === FORGET_PASSES || !words.includes("such conntrack doesn't exist")) {
        throw error;
      }
    }
  }
}
