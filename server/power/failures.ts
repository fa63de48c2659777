/** Counts the failed sign-ins of one source. All functions are pure. */

export interface LockoutRules {
  /** Number of failed sign-ins after which a source is locked out. */
  readonly failures: number;
  /** Time in seconds for which a source is locked out, and after which earlier failures are forgotten. */
  readonly seconds: number;
}

/** Failed sign-ins of one source. */
export interface Failures {
  readonly count: number;
  /** Time of the last one, in milliseconds since 1970. */
  readonly last: number;
}

/** Returns the failures that still count. After a quiet time none does. */
export function recent(
  failures: Failures | undefined,
  { seconds }: LockoutRules,
  now: number,
): Failures | undefined {
  return failures !== undefined && now - failures.last < seconds * 1000 ? failures : undefined;
}

/** Returns the failures after some more. The count stops at the limit. */
export function afterMore(
  failures: Failures | undefined,
  more: number,
  rules: LockoutRules,
  now: number,
): Failures {
  const before = recent(failures, rules, now)?.count ?? 0;
  return { count: Math.min(before + more, rules.failures), last: now };
}

/** Reports whether the source gets no answer. */
export function isLocked(failures: Failures | undefined, rules: LockoutRules, now: number): boolean {
  return (recent(failures, rules, now)?.count ?? 0) >= rules.failures;
}

/** Returns the failures with the greater count. */
export function greater(a: Failures | undefined, b: Failures | undefined): Failures | undefined {
  return (a?.count ?? 0) >= (b?.count ?? 0) ? a : b;
}
