/** Facts that errors carry, for statuses, logs and decisions. */

/** Returns the machine-readable reason that errors of drivers, images and networks carry. The result is undefined for other errors. */
export function reasonOf(error: unknown): string | undefined {
  return error instanceof Error && 'reason' in error && typeof error.reason === 'string'
    ? error.reason
    : undefined;
}

export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

/** Returns the code of an error of the operating system or of a module of Node.js, for example `ENOENT` or `Z_DATA_ERROR`. */
export function codeOf(error: unknown): string | undefined {
  return error instanceof Error && 'code' in error && typeof error.code === 'string' ? error.code : undefined;
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
