/** Makes messages for users from the last lines of QEMU's log and the way in which QEMU ended. */
import { open } from 'node:fs/promises';
import { join } from 'node:path';
import { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { isMissing, undefinedIf } from '../../../base/errors.ts';
import { appendedLog, listSegments, logsWritten } from '../../console/logwriter.ts';
import { type StartReason } from '../driver.ts';
import type { ExitStatus } from '../launch.ts';

/** Limits of the log lines in a message. They fit, beside other text, into a Pod's container message of at most 4096 characters. */
const TAIL_BYTES = 2048;
const TAIL_LINES = 12;
/** Timestamp before each line of QEMU's log, for example `2026-11-21T12:00:00.000000Z `. */
const TIMESTAMP = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z /;

/** Returns the last lines of the hypervisor's output; empty if there is no output. Call it when the hypervisor has ended. */
async function lastWords(folder: string): Promise<string> {
  await logsWritten(folder);
  let tail = '';
  for (const path of logFiles(folder)) {
    tail = (tail + (await tailOf(path))).slice(-TAIL_BYTES);
  }
  return tail
    .split('\n')
    .map((line) => line.replace(TIMESTAMP, '').trimEnd())
    .filter((line) => line !== '')
    .slice(-TAIL_LINES)
    .join('\n');
}

function logFiles(folder: string): string[] {
  const segments = listSegments(folder, 'hypervisor');
  return segments.length > 0 ? segments.map(({ path }) => path) : [join(folder, appendedLog('hypervisor'))];
}

async function tailOf(path: string): Promise<string> {
  const handle = await undefinedIf(isMissing, open(path, 'r'));
  if (handle === undefined) {
    return '';
  }
  try {
    const { size } = await handle.stat();
    const start = Math.max(0, size - TAIL_BYTES);
    const { buffer, bytesRead } = await handle.read(Buffer.alloc(size - start), 0, size - start, start);
    return buffer.toString('utf8', 0, bytesRead);
  } finally {
    await handle.close();
  }
}

/** Message about a hypervisor that used more memory than its limit: the guest's memory and the overhead together. */
export const OUT_OF_MEMORY =
  'The hypervisor reached the memory limit of its machine, and the kernel of the host ended it';

export function describeExit(status: ExitStatus | undefined): string {
  if (status?.signal) {
    return `The hypervisor was ended by ${status.signal}`;
  }
  if (typeof status?.code === 'number') {
    return `The hypervisor ended with code ${status.code}`;
  }
  return 'The hypervisor ended';
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

function withWords(what: string, words: string): string {
  return words === '' ? what : `${what}: ${words}`;
}

/** Reasons of a failed start that the operator distinguishes, with messages of QEMU 7.2 to 10 that show the reason. */
const REASONS: [RegExp, StartReason][] = [
  [/Could not set up host forwarding rule|Address already in use/, 'PortTaken'],
  [/Cannot allocate memory|cannot set up guest memory/, 'OutOfMemory'],
  [
    /Image is not in qcow2 format|Could not open '|qcow2: |Could not read|Image is corrupt|Failed to get "write" lock/,
    'DiskInvalid',
  ],
];

/**
 * Returns the error of a failed start, with the hypervisor's last words and the reason that they show. `what` shows no reason, because
 * it may be an answer of QEMU to a command, whose failure passes.
 */
export async function startError(folder: string, what: string): Promise<ReasonedError> {
  const words = await lastWords(folder);
  const reason = REASONS.find(([pattern]) => pattern.test(words))?.[1] ?? 'StartFailed';
  return new ReasonedError(reason, withWords(what, words));
}
