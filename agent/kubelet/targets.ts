/**
 * Finds what callers name: the Pod, the machine of a stream, or the log of `kubectl logs`. That is the serial console of a VM, or the log of
 * a task (the work of a Job). Refusals have the HTTP status 400, because kubectl shows the text of a response with this status unchanged.
 */
import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import * as z from 'zod';
import { ADB_PORT, SCREEN_PORT, SCREENSHOT_COMMAND } from '../../api/v1alpha1/names.ts';
import { HttpError } from '../../kube/serving/httperror.ts';
import { StreamRefused } from '../drivers/driver.ts';
import { driverOf, driverOfVM } from '../drivers/hostdrivers.ts';
import { connectGuest, SharedForwards } from './streams/portforward.ts';
import type { StreamRequest } from './streams/streamrequest.ts';
import type { StreamTarget } from './streams/exec.ts';
import type { Cache } from '../../kube/cache.ts';
import type { Pod } from '../../kube/core.ts';
import type { ConsoleLog } from '../console/store.ts';
import type { ConsoleReadOptions } from '../console/records.ts';
import type { PodHost } from '../pods/host.ts';
import type { Runtimes } from '../pods/machine.ts';
import type { TaskRunner } from '../tasks/runner.ts';

/** Messages for streams that an emulator refuses. The key is the kind of stream. */
const EMULATOR_REFUSALS: Readonly<Record<string, string>> = {
  attach: 'An emulator has no console to attach to. Read its log with `kubectl logs`',
  exec: `An emulator has no guest agent that runs commands. To run a command, forward port ${ADB_PORT} with \`kubectl port-forward\`, and use \`adb shell\``,
};

/** Function that returns the machine of a request. @throws HttpError 400 when the machine does not run on this host. */
export type StreamTargets = (request: StreamRequest) => StreamTarget;

/**
 * Function that finds the task of a request. The result is another function, which passes a caller's connection to this task.
 *
 * @throws HttpError 400 when the Pod is not on this host. The returned function throws HttpError 400 when the task does not wait for a
 * connection.
 */
export type TransferSource = (request: StreamRequest) => (caller: Socket) => void;

/** Returns the functions that find the log, the streams or the task for a caller's request on this host. */
export function machineAccess(sources: ConsoleSources): {
  logs: LogSource;
  streams: StreamTargets;
  transfers: TransferSource;
} {
  return { logs: consoleSource(sources), streams: streamTargets(sources), transfers: transfers(sources) };
}

function transfers({ tasks, podOf }: ConsoleSources): TransferSource {
  return (request) => {
    const { name, uid = '' } = ownPod(request, podOf).metadata;
    return (caller) => {
      if (!tasks.connect(uid, caller)) {
        throw new HttpError(400, `Pod ${name} does not wait for a file`);
      }
    };
  };
}

/** Result of a command that the host ran itself, without its output. */
const SUCCEEDED = { exitCode: 0, stderr: [], truncated: false } as const;

function streamTargets({ host, machines, podOf }: ConsoleSources): StreamTargets {
  const forwards = new SharedForwards();
  return (request) => {
    const { name, uid = '' } = ownPod(request, podOf).metadata;
    const record = host.records.ofPod(uid);
    if (record === undefined) {
      throw new HttpError(
        400,
        `Pod ${name} is neither a VM nor an emulator, so it does not support ${request.kind}`,
      );
    }
    const isEmulator = record.emulator !== undefined;
    const refusal = isEmulator ? EMULATOR_REFUSALS[request.kind] : undefined;
    if (refusal !== undefined) {
      throw new HttpError(400, refusal);
    }
    const { state, folder } = machines.runtime(record);
    if (state.kind !== 'running') {
      throw new HttpError(400, `${isEmulator ? 'The emulator of Pod' : 'VM'} ${name} is not running`);
    }
    return {
      console: async (input) => await driverOfVM(host, record).connectConsole(folder, { input }),
      execute: async (command) =>
        command.path === SCREENSHOT_COMMAND
          ? { ...SUCCEEDED, stdout: [await driverOfVM(host, record).screenshot(folder, command.reserve)] }
          : await driverOfVM(host, record).execute(folder, command),
      port: async (port) => {
        if (isEmulator) {
          return await connectAdb(await host.network.address(uid), port);
        }
        const driver = driverOfVM(host, record);
        if (port === SCREEN_PORT) {
          return await driver.connectScreen(folder);
        }
        // The agent uses the address that the network assigned, because an address that the guest reports could belong to another machine.
        const address = await host.network.address(uid);
        return address === undefined
          ? await forwards.connect(`${uid}:${port}`, port, () => driver.forwardPort(folder, port))
          : await connectGuest(address, port, port);
      },
    };
  };
}

/**
 * Connects to the ADB port of an emulator. The emulator's network allows connections to no other port. @throws StreamRefused for other
 * ports.
 */
async function connectAdb(address: string | undefined, port: number): Promise<Duplex> {
  if (port !== ADB_PORT) {
    throw new StreamRefused(
      `Port ${port} of the emulator cannot be reached. Only port ${ADB_PORT}, for ADB, can be reached`,
    );
  }
  if (address === undefined) {
    throw new StreamRefused('The emulator has no address yet');
  }
  return await connectGuest(address, port, port);
}

/**
 * Returns the Pod with the key `namespace/name`, if the Pod is bound to this host. Otherwise returns undefined. @throws HttpError 400 while
 * the agent does not know the Pods of this host.
 */
type PodOf = (key: string) => Readonly<Pod> | undefined;

interface Pods {
  readonly cache: Pick<Cache<Pod>, 'get'>;
  readonly synced: Promise<void>;
}

/**
 * Returns a function that finds Pods in the cache of an informer. A starting agent first takes over its machines, and reads its Pods only
 * then. During this time, a Pod that is missing in the cache can nevertheless be on this host.
 */
export function podsIn({ cache, synced }: Pods): PodOf {
  let areKnown = false;
  synced.then(
    () => {
      areKnown = true;
    },
    () => undefined,
  );
  return (key) => {
    if (!areKnown) {
      throw new HttpError(
        400,
        'The agent of this host is starting and does not know its Pods yet; try again',
      );
    }
    return cache.get(key);
  };
}

/** Returns the named Pod. @throws HttpError 400 when the Pod is not on this host, or has no such container. */
export function ownPod(
  { namespace, pod: name, container }: { namespace: string; pod: string; container: string | undefined },
  podOf: PodOf,
): Readonly<Pod> {
  const pod = podOf(`${namespace}/${name}`);
  if (pod === undefined) {
    throw new HttpError(400, `Pod ${namespace}/${name} is not on this host`);
  }
  const containers = pod.spec.containers.map((one) => one.name);
  if (container !== undefined && !containers.includes(container)) {
    throw new HttpError(
      400,
      `Pod ${name} has no container "${container}"; use "${containers.join('" or "')}"`,
    );
  }
  return pod;
}

/** A request for a log, as the API server passes it on. */
interface LogRequest {
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

interface ConsoleSources {
  host: PodHost;
  machines: Runtimes;
  tasks: TaskRunner;
  podOf: PodOf;
}

function consoleSource(sources: ConsoleSources): LogSource {
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
