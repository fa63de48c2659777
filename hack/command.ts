/** How the programs behind make's targets end. */

/** A mistake of ours: of such an error its stack tells more than its message. Node's own errors have a code. */
function isBug(error: unknown): error is Error {
  return (error instanceof TypeError || error instanceof ReferenceError) && !('code' in error);
}

/** What a program says of an error on its last line. */
export function describeError(error: unknown): string {
  if (isBug(error)) {
    return error.stack ?? error.message;
  }
  return error instanceof Error ? error.message : String(error);
}

/**
 * Runs a program: its exit code is what `main` gives, 0 when that is nothing. What a person at the keyboard can mend is told in
 * one message, and ends it with 1.
 */
export async function runCommand(main: () => Promise<number | void>): Promise<void> {
  try {
    process.exitCode = (await main()) ?? process.exitCode ?? 0;
  } catch (error) {
    process.stderr.write(`${describeError(error)}\n`);
    process.exitCode = 1;
  }
}
