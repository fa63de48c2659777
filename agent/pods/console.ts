/** `kubectl logs`: a VM's serial console, or what a task has said. */
import type { Pod } from '../../kube/core.ts';
import { LogRefusedError, type LogRequest, type LogSource } from '../kubelet/logs.ts';
import type { ConsoleLog } from '../machines/console.ts';
import type { TaskRunner } from '../tasks/runner.ts';
import type { Host } from './host.ts';
import type { Machines } from './machines.ts';

export interface ConsoleSources {
  host: Host;
  machines: Machines;
  tasks: TaskRunner;
  podOf: (key: string) => Readonly<Pod> | undefined;
}

export function consoleSource(sources: ConsoleSources): LogSource {
  return async (request, signal) => {
    const console = consoleOf(ownPod(request, sources.podOf), sources);
    const { follow, timestamps, tailLines, limitBytes, since } = request;
    return console.read({
      follow,
      timestamps,
      signal,
      ...(tailLines === undefined ? {} : { tailLines }),
      ...(limitBytes === undefined ? {} : { limitBytes }),
      ...(since === undefined ? {} : { sinceTime: since }),
    });
  };
}

function consoleOf(pod: Readonly<Pod>, { host, machines, tasks }: ConsoleSources): ConsoleLog {
  const { uid = '', name } = pod.metadata;
  const task = tasks.log(uid);
  if (task !== undefined) {
    return task;
  }
  const record = host.records.get(uid);
  if (record?.created !== true) {
    throw new LogRefusedError(`Pod ${name} has no console yet: it has not been started`);
  }
  return host.driver.console(machines.runtime(record).folder);
}

function ownPod(
  { namespace, pod: name, container, previous }: LogRequest,
  podOf: ConsoleSources['podOf'],
): Readonly<Pod> {
  const pod = podOf(`${namespace}/${name}`);
  if (pod === undefined) {
    throw new LogRefusedError(`Pod ${namespace}/${name} is not on this host`);
  }
  const containers = pod.spec.containers.map((one) => one.name);
  if (!containers.includes(container)) {
    throw new LogRefusedError(`Pod ${name} has no console "${container}", only "${containers.join('", "')}"`);
  }
  if (previous) {
    throw new LogRefusedError('there is one console over all runs: leave out --previous');
  }
  return pod;
}
