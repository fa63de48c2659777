/** Makes messages for users about the end of QEMU, from its exit status and the last lines of its log. */
import type { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { logTail } from '../../console/tail.ts';
import { describeExit as describe, startErrorOf, type StartReasons, withWords } from '../exits.ts';
import type { ExitStatus } from '../launch.ts';

/**
 * Limits of the log lines in a message: the number of bytes, and the number of lines. With these limits, the lines and other text fit into
 * the message of a Pod's container, which can have at most 4096 characters.
 */
const TAIL_BYTES = 2048;
const TAIL_LINES = 12;
/** Timestamp before each line of QEMU's log, for example `2026-11-21T12:00:00.000000Z `. */
const TIMESTAMP = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z /;

/** Returns the last lines of the hypervisor's output; empty if there is no output. Call this function when the hypervisor has ended. */
async function lastWords(folder: string): Promise<string> {
  const tail = await logTail(folder, 'hypervisor', TAIL_BYTES);
  return tail
    .split('\n')
    .map((line) => line.replace(TIMESTAMP, '').trimEnd())
    .filter((line) => line !== '')
    .slice(-TAIL_LINES)
    .join('\n');
}

/** Message about a hypervisor that reached its memory limit. The limit is the guest's memory plus the memory that QEMU itself needs. */
export const OUT_OF_MEMORY =
  'The hypervisor reached the memory limit of its machine, and the kernel of the host ended it';

export function describeExit(status: ExitStatus | undefined): string {
  return describe('The hypervisor', status);
}

const SIGNAL = /terminating on signal \d+/;

/** Returns whether the log of an ended hypervisor says that a signal ended it. */
export async function wasEndedBySignal(folder: string): Promise<boolean> {
  return SIGNAL.test(await lastWords(folder));
}

/** Returns the text `what`, followed by the last lines of the hypervisor's log. */
export async function exitMessage(folder: string, what: string): Promise<string> {
  return withWords(what, await lastWords(folder));
}

/** Patterns of QEMU's error messages, each with the reason of the failed start. They match the messages of QEMU 7.2 to 10. */
const REASONS: StartReasons = [
  [/Could not set up host forwarding rule|Address already in use/, 'PortTaken'],
  [/Cannot allocate memory|cannot set up guest memory/, 'OutOfMemory'],
  [
    /Image is not in qcow2 format|Could not open '|qcow2: |Could not read|Image is corrupt|Failed to get "write" lock/,
    'DiskInvalid',
  ],
];

/** Returns the error of a failed start, which {@link startErrorOf} makes from `what` and the last lines of the hypervisor's log. */
export async function startError(folder: string, what: string): Promise<ReasonedError> {
  return startErrorOf(what, await lastWords(folder), REASONS);
}
