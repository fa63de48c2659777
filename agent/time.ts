/** RFC 3339 with whole seconds, the only precision that the API server keeps: anything finer would differ from what it returns. */
export function timestamp(milliseconds: number): string {
  return `${new Date(milliseconds).toISOString().slice(0, 19)}Z`;
}
