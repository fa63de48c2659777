/** What `kubectl logs` asks for, as the API server passes it on. */
import { z } from 'zod';

export interface LogRequest {
  namespace: string;
  pod: string;
  container: string;
  follow: boolean;
  timestamps: boolean;
  /** Machines keep one console over all their runs: there is no log of a previous container. */
  previous: boolean;
  tailLines: number | undefined;
  limitBytes: number | undefined;
  since: Date | undefined;
}

/** Shown to the person as it is, with status 400. */
export class LogRefusedError extends Error {
  override readonly name = 'LogRefusedError';
}

/** The lines of a machine's console, with line ends. Rejects with {@link LogRefusedError}. */
export type LogSource = (request: LogRequest, signal: AbortSignal) => Promise<AsyncIterable<string>>;

const flag = z
  .enum(['true', 'false', '1', '0', ''])
  .default('false')
  .transform((text) => text === 'true' || text === '1');
const count = z.coerce.number().int().min(0).optional();
const querySchema = z.object({
  follow: flag,
  timestamps: flag,
  previous: flag,
  tailLines: count,
  limitBytes: z.coerce.number().int().min(1).optional(),
  sinceSeconds: z.coerce.number().int().min(1).optional(),
  sinceTime: z.iso.datetime({ offset: true }).optional(),
});

/** Reads `/containerLogs/NAMESPACE/POD/CONTAINER?…`; names need no escapes, so none are read. Throws {@link LogRefusedError} naming the parameter that is wrong. */
export function parseLogRequest(url: URL, now: number): LogRequest {
  const [, , namespace = '', pod = '', container = ''] = url.pathname.split('/');
  const result = querySchema.safeParse(Object.fromEntries(url.searchParams));
  if (!result.success) {
    throw new LogRefusedError(
      result.error.issues.map((issue) => `${issue.path.join('.')}: ${issue.message}`).join('; '),
    );
  }
  const { sinceSeconds, sinceTime, tailLines, limitBytes, ...flags } = result.data;
  const since = sinceTime === undefined ? secondsAgo(sinceSeconds, now) : new Date(sinceTime);
  return { namespace, pod, container, ...flags, tailLines, limitBytes, since };
}

function secondsAgo(seconds: number | undefined, now: number): Date | undefined {
  return seconds === undefined ? undefined : new Date(now - seconds * 1000);
}
