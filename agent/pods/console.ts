/** `kubectl logs` of a VM: its serial console. */
import type { Pod } from '../../kube/core.ts';
import { MACHINE_CONTAINER } from '../../api/v1alpha1/names.ts';
import { LogRefusedError, type LogRequest, type LogSource } from '../kubelet/logs.ts';
import type { Host } from './host.ts';
import type { Machines } from './machines.ts';

export function consoleSource(
  host: Host,
  machines: Machines,
  podOf: (key: string) => Readonly<Pod> | undefined,
): LogSource {
  return async (request, signal) => {
    const record = host.records.get(machinePod(request, podOf).metadata.uid ?? '');
    const folder = record === undefined ? undefined : machines.runtime(record).folder;
    if (record?.created !== true || folder === undefined) {
      throw new LogRefusedError(`machine ${request.pod} has no console yet: it has not been started`);
    }
    const { follow, timestamps, tailLines, limitBytes, since } = request;
    return host.driver.console(folder).read({
      follow,
      timestamps,
      signal,
      ...(tailLines === undefined ? {} : { tailLines }),
      ...(limitBytes === undefined ? {} : { limitBytes }),
      ...(since === undefined ? {} : { sinceTime: since }),
    });
  };
}

function machinePod(
  { namespace, pod: name, container, previous }: LogRequest,
  podOf: (key: string) => Readonly<Pod> | undefined,
): Readonly<Pod> {
  const pod = podOf(`${namespace}/${name}`);
  if (pod === undefined) {
    throw new LogRefusedError(`Pod ${namespace}/${name} is not on this host`);
  }
  if (container !== MACHINE_CONTAINER) {
    throw new LogRefusedError(`Pod ${name} has no console "${container}", only "${MACHINE_CONTAINER}"`);
  }
  if (previous) {
    throw new LogRefusedError('a machine has one console over all its runs: leave out --previous');
  }
  return pod;
}
