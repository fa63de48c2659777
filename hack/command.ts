/** Ends the programs behind make's targets with an exit code and a message. */

/** Returns whether an error is a fault of this program. Its stack then helps more than its message. Node's own errors have a code. */
function isBug(error: unknown): error is Error {
  return (error instanceof TypeError || error instanceof ReferenceError) && !('code' in error);
}

/** Returns the last line that a program prints for an error. */
export function describeError(error: unknown): string {
  if (isBug(error)) {
    return error.stack ?? error.message;
  }
  return error instanceof Error ? error.message : String(error);
}

/**
 * Runs a program. Its exit code is the result of `main`, or 0 without a result. After an error that the user can fix, the program prints
 * one message and ends with 1.
 */
export async function runCommand(main: () => Promise<number | void>): Promise<void> {
  try {
    process.exitCode = (await main()) ?? process.exitCode ?? 0;
  } catch (error) {
    process.stderr.write(`${describeError(error)}\n`);
    process.exitCode = 1;
  }
}
