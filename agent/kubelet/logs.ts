/** Serves `kubectl logs`, which shows the serial console of a VM or the log of a task (the work of a Job). */
import * as z from 'zod';
import type { Pod } from '../../kube/core.ts';
import { HttpError } from '../../kube/serving/httperror.ts';
import type { ConsoleLog } from '../console/store.ts';
import type { ConsoleReadOptions } from '../console/text.ts';
import { driverOf } from '../drivers/hostdrivers.ts';
import type { Host } from '../pods/host.ts';
import type { Runtimes } from '../pods/machine.ts';
import type { TaskRunner } from '../tasks/runner.ts';
import { ownPod, type PodOf } from './lookup.ts';

/** A request for a log, as the API server passes it on. */
export interface LogRequest {
  namespace: string;
  pod: string;
  container: string;
  /**
   * Whether the caller wants the log of the previous container. Such a request is refused, because a machine has one console for all its
   * runs.
   */
  previous: boolean;
  options: ConsoleReadOptions;
}

/** Function that returns the text of a console or of a task's log. @throws HttpError when there is no such log. */
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

/**
 * Parses the URL of a log request, `/containerLogs/NAMESPACE/POD/CONTAINER?…`. Names are used unchanged, because valid names need
 * no URL escapes.
 *
 * @throws HttpError 400 that names the parameter, when a parameter is wrong. kubectl shows the message unchanged to the user.
 */
export function parseLogRequest(url: URL, now: number): LogRequest {
  const [, , namespace = '', pod = '', container = ''] = url.pathname.split('/');
  const result = querySchema.safeParse(Object.fromEntries(url.searchParams));
  if (!result.success) {
    throw new HttpError(
      400,
      result.error.issues.map((issue) => `${issue.path.join('.')}: ${issue.message}`).join('; '),
    );
  }
  const { sinceSeconds, sinceTime, previous, ...options } = result.data;
  const since = sinceTime === undefined ? secondsAgo(sinceSeconds, now) : new Date(sinceTime);
  return { namespace, pod, container, previous, options: { ...options, sinceTime: since } };
}

function secondsAgo(seconds: number | undefined, now: number): Date | undefined {
  return seconds === undefined ? undefined : new Date(now - seconds * 1000);
}

export interface ConsoleSources {
  host: Host;
  machines: Runtimes;
  tasks: TaskRunner;
  podOf: PodOf;
}

export function consoleSource(sources: ConsoleSources): LogSource {
  return async (request, signal) => {
    const pod = ownPod(request, sources.podOf);
    if (request.previous) {
      throw new HttpError(400, `Pod ${request.pod} has one log for all its runs; leave out --previous`);
    }
    return consoleOf(pod, sources).read({ ...request.options, signal });
  };
}

function consoleOf(pod: Readonly<Pod>, { host, machines, tasks }: ConsoleSources): ConsoleLog {
  const { uid = '', name } = pod.metadata;
  const task = tasks.log(uid);
  if (task !== undefined) {
    return task;
  }
  const record = host.records.ofPod(uid);
  if (record?.created !== true) {
    throw new HttpError(400, `Pod ${name} has no console yet, because its machine has not been created`);
  }
  return driverOf(host, record).console(machines.runtime(record).folder);
}
