/** What errors say of themselves, for statuses and logs. */

/** The machine-readable reason that the errors of drivers, images and networks carry. */
export function reasonOf(error: unknown): string | undefined {
  return error instanceof Error && 'reason' in error && typeof error.reason === 'string'
    ? error.reason
    : undefined;
}

export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
