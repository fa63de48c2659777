/**
 * Finds the Pods that callers name. Refusals have the HTTP status 400, because kubectl shows the text of a response with this status
 * unchanged.
 */
import type { Pod } from '../../kube/core.ts';
import { HttpError } from '../../kube/serving/httpserver.ts';

/** Returns the Pod with the key `namespace/name`, if the Pod is bound to this host. Otherwise returns undefined. */
export type PodOf = (key: string) => Readonly<Pod> | undefined;

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
