/**
 * Finds the Pods that callers name. Refusals have the HTTP status 400, because kubectl shows the text of a response with this status
 * unchanged.
 */
import type { Cache } from '../../kube/cache.ts';
import type { Pod } from '../../kube/core.ts';
import { HttpError } from '../../kube/serving/httperror.ts';

/**
 * Returns the Pod with the key `namespace/name`, if the Pod is bound to this host. Otherwise returns undefined. @throws HttpError 400 while
 * the agent does not know the Pods of this host.
 */
export type PodOf = (key: string) => Readonly<Pod> | undefined;

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
