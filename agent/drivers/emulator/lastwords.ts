/** Makes messages for users about the end of an emulator, from its exit status and the last lines of its log. */
import type { ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import { logTail } from '../../console/tail.ts';
import { describeExit as describe, startErrorOf, type StartReasons, withWords } from '../exits.ts';
import type { ExitStatus } from '../launch.ts';

/**
 * Number of bytes at the end of the log in which the agent looks for errors. The number is large, because many lines of the guest's kernel
 * can follow an error.
 */
const TAIL_BYTES = 64 * 1024;
/**
 * Limits of the log lines in a message: the number of characters, and the number of lines. With these limits, the lines and other text fit
 * into the message of a Pod's container, which can have at most 4096 characters.
 */
const WORDS_CHARACTERS = 2048;
const WORDS_LINES = 12;
/** Largest number of log lines in a message if no line of the log names an error. */
const OTHER_LINES = 4;

/**
 * Largest number of characters of a line. The rest of a longer line is cut off, because the time to search for ADB keys grows with the
 * square of the line's length.
 */
const LINE_CHARACTERS = 4 * 1024;

/** Pattern of a log line in which the emulator or the guest's kernel reports an error. */
const PROBLEM = /^\s*(FATAL|ERROR|PANIC)\b|Kernel panic/;
/** Pattern of a line that might contain an ADB key. Messages contain no such line, because users show messages to other people. */
const KEY = /adb[\w.-]*key|PRIVATE KEY|QAAAA[A-Za-z0-9+/]{16}/i;
const UNPRINTABLE = /[^\x20-\x7e\u00a0-\uffff]/g;

/** Returns the lines of an emulator's output that explain best why the emulator ended. */
export function choose(output: string): string {
  const lines = output
    .split('\n')
    .map((line) => line.replaceAll(UNPRINTABLE, ' ').trim().slice(0, LINE_CHARACTERS))
    .filter((line) => line !== '' && !KEY.test(line));
  const problems = lines.filter((line) => PROBLEM.test(line)).slice(-WORDS_LINES);
  const words = problems.length > 0 ? problems : lines.slice(-OTHER_LINES);
  return words.join('\n').slice(-WORDS_CHARACTERS);
}

/**
 * Returns the lines that explain best why the emulator ended, from its output since its last start. `from` is the log position at which
 * this output begins. Call this function when the emulator has ended.
 */
async function lastWords(folder: string, from: number): Promise<string> {
  // The emulator writes to the log `serial`. The programs that start the emulator write to the log `hypervisor`.
  const [own, starter] = await Promise.all([
    logTail(folder, 'serial', TAIL_BYTES, from),
    logTail(folder, 'hypervisor', TAIL_BYTES),
  ]);
  return choose(`${starter}\n${own}`);
}

export const OUT_OF_MEMORY =
  'The emulator reached the memory limit of its machine, and the kernel of the host ended it';

export function describeExit(status: ExitStatus | undefined): string {
  return describe('The emulator', status);
}

/** Returns the text `what`, followed by the last lines of the emulator's log. */
export async function exitMessage(folder: string, from: number, what: string): Promise<string> {
  return withWords(what, await lastWords(folder, from));
}

const REASONS: StartReasons = [
  [
    /requires hardware acceleration|acceleration is not|KVM (is )?required|\/dev\/kvm/i,
    'AccelerationMissing',
  ],
  [/AVD system path|system image|kernel-ranchu|ramdisk\.img/i, 'SystemImageMissing'],
  [
    /too many emulator instances|address already in use|port.{0,40}(in use|taken|bound)|could not bind/i,
    'PortTaken',
  ],
  [/cannot allocate memory|cannot set up guest memory/i, 'OutOfMemory'],
];

/** Returns the error of a failed start, which {@link startErrorOf} makes from `what` and the last lines of the emulator's log. */
export async function startError(folder: string, from: number, what: string): Promise<ReasonedError> {
  return startErrorOf(what, await lastWords(folder, from), REASONS);
}
