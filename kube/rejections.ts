/** Keeps a program running after a rejected promise that no code handles. */
import type { Logger } from 'pino';

let unhandled = 0;

/** Returns the number of rejected promises that no code handled, since the start of this process. */
export function unhandledRejections(): number {
  return unhandled;
}

/**
 * Logs rejected promises that no code handles, with their stacks, and lets the process continue. By default, Node.js ends the process after
 * such a rejection. With this default, one missing handler in the code for connections would let a caller end the operator or an agent
 * again and again. A rejection ends only its own chain of promises, so the other parts of the process are not damaged. An uncaught
 * exception still ends the process, because it might have left shared data half changed.
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
