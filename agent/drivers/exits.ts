/**
 * Makes messages and errors about the end of a program that runs a machine. The parameter `words` contains the last lines of the program's
 * log.
 */
import { type Reason, ReasonedError } from '../../api/v1alpha1/reasons.ts';
import type { ExitStatus } from './launch.ts';

/** Reasons that the error of a failed start can have. The error's message can contain the last lines of the hypervisor's log. */
type StartReason = Extract<
  Reason,
  'StartFailed' | 'OutOfMemory' | 'PortTaken' | 'DiskInvalid' | 'SystemImageMissing' | 'AccelerationMissing'
>;

/** Reasons of a failed start, each with a pattern. The first pattern that matches the last lines of the log determines the reason. */
export type StartReasons = readonly (readonly [RegExp, StartReason])[];

export function describeExit(program: string, status: ExitStatus | undefined): string {
  if (status?.signal) {
    return `${program} was ended by ${status.signal}`;
  }
  if (typeof status?.code === 'number') {
    return `${program} ended with code ${status.code}`;
  }
  return `${program} ended`;
}

export function withWords(what: string, words: string): string {
  return words === '' ? what : `${what}: ${words}`;
}

/**
 * Returns the error of a failed start. The error's message is `what` and the last lines of the log. Only these lines determine the error's
 * reason. `what` does not determine the reason, because `what` can be the program's answer to a command that failed only temporarily.
 */
export function startErrorOf(what: string, words: string, reasons: StartReasons): ReasonedError {
  const reason = reasons.find(([pattern]) => pattern.test(words))?.[1] ?? 'StartFailed';
  return new ReasonedError(reason, withWords(what, words));
}
