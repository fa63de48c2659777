/** Reads the reason, the message and the code of an error. Callers need them for statuses, logs and decisions. */

/**
 * Returns the machine-readable reason of an error. Errors of drivers, images and networks have such a reason. The result is undefined for
 * other errors.
 */
export function reasonOf(error: unknown): string | undefined {
  return error instanceof Error && 'reason' in error && typeof error.reason === 'string'
    ? error.reason
    : undefined;
}

export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

/** A path with at least two parts. What follows a colon or a letter is no path, but part of an address or of a relative path. */
const PATH = /(?<![\w:/.~-])(?:\/[^\s/'":,;()<>]+)+\/([^\s/'":,;()<>]+)/g;

/** Returns the text with only the last part of each path of this host. */
export function withoutPaths(text: string): string {
  return text.replaceAll(PATH, '$1');
}

/**
 * Returns the message of an error for tenants. Errors of the system and of programs name files of the host, and only the last part of their
 * paths stays. The message of an error with a reason stays whole, unless one of its causes is such an error.
 */
export function messageWithoutPaths(error: unknown): string {
  const message = messageOf(error);
  return reasonOf(error) === undefined || comesFromHost(error) ? withoutPaths(message) : message;
}

/** Reports whether the error or one of its causes is an error of the system or of a program. */
function comesFromHost(error: unknown): boolean {
  return error instanceof Error && (isOfSystem(error) || 'exitCode' in error || comesFromHost(error.cause));
}

/** Returns the code of an error of the operating system or of a module of Node.js, for example `ENOENT` or `Z_DATA_ERROR`. */
export function codeOf(error: unknown): string | undefined {
  return error instanceof Error && 'code' in error && typeof error.code === 'string' ? error.code : undefined;
}

/** Reports whether the error comes from the operating system or from a module of Node.js. */
export function isOfSystem(error: unknown): boolean {
  return codeOf(error) !== undefined;
}

/** Returns a function that reports whether an error has one of these codes. */
export function hasCode(...codes: readonly string[]): (error: unknown) => boolean {
  return (error) => codes.includes(codeOf(error) ?? '');
}

/** Reports whether the error means that a file or folder does not exist. */
export function isMissing(error: unknown): boolean {
  return codeOf(error) === 'ENOENT';
}

/** Reports whether the error means that the file system is full, or that the quota of the user is used up. */
export function isDiskFull(error: unknown): boolean {
  const code = codeOf(error);
  return code === 'ENOSPC' || code === 'EDQUOT';
}

/**
 * Waits for `work` and returns its result. If `work` fails with an expected error, the result is undefined.
 *
 * @throws the error of `work` when the error is not expected.
 */
export async function undefinedIf<T>(
  isExpected: (error: unknown) => boolean,
  work: Promise<T>,
): Promise<T | undefined> {
  try {
    return await work;
  } catch (error) {
    if (isExpected(error)) {
      return undefined;
    }
    throw error;
  }
}

/** Does the same as {@link undefinedIf} for a synchronous function. */
export function undefinedIfSync<T>(isExpected: (error: unknown) => boolean, work: () => T): T | undefined {
  try {
    return work();
  } catch (error) {
    if (isExpected(error)) {
      return undefined;
    }
    throw error;
  }
}
