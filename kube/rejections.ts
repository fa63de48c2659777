/** Keeps a program running after a rejected promise that no code handles. */
import type { Logger } from 'pino';

let unhandled = 0;

/** Returns the number of rejected promises since the start of this process that no code handled. */
export function unhandledRejections(): number {
  return unhandled;
}

/**
 * Logs rejected promises that no code handles, with their stacks, and lets the process continue. By default, Node.js ends the process after
 * such a rejection. A forgotten handler in the code for one connection would then end the agent of a host, or the operator, and the same
 * caller could repeat this. A rejection ends only its own chain of promises, so the other parts of the process are not damaged. An uncaught
 * exception ends the process, because it may have left shared data half changed.
 */
export function surviveRejections(logger: Logger): void {
  process.on('unhandledRejection', (reason) => {
    unhandled += 1;
    logger.error(
      { err: reason },
      'A promise was rejected and no code handled it. This is a fault of the program',
    );
  });
}
