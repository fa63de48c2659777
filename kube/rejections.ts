/** Keeps a program alive after a rejected promise that nobody handles. */
import type { Logger } from 'pino';

let unhandled = 0;

/** Returns the number of rejected promises that nobody has handled since the start of this process. */
export function unhandledRejections(): number {
  return unhandled;
}

/**
 * Logs rejected promises that nobody handles, with their stacks, and goes on. By default, Node.js ends the process for each of them. A
 * forgotten handler in the code for one connection would then end the agent of all machines of a host, or the operator of all VMs, and
 * the same caller could repeat it. A rejection has ended only its own chain of promises, so the rest of the process is sound. An uncaught
 * exception still ends the process, because it may have left shared data half changed.
 */
export function surviveRejections(logger: Logger): void {
  process.on('unhandledRejection', (reason) => {
    unhandled += 1;
    logger.error(
      { err: reason },
      'A promise was rejected and nobody handled it; this is a fault of the program',
    );
  });
}
