/** Objects of a cluster, as tests wait for them. */
import { isNotFound } from '../../kube/errors.ts';
import { type KubeObject, resource } from '../../kube/objects.ts';
import { waitFor, type WaitOptions } from '../../hack/wait.ts';

interface ClusterRole extends KubeObject {
  rules: { resources?: string[]; verbs: string[] }[];
}

export const CLUSTER_ROLES = resource<ClusterRole>({
  apiVersion: 'rbac.authorization.k8s.io/v1',
  kind: 'ClusterRole',
  plural: 'clusterroles',
  namespaced: false,
});

/** Whether what `get` asks for is not there any more; rejects for every other fault. */
export async function isGone(get: () => Promise<unknown>): Promise<boolean> {
  try {
    await get();
    return false;
  } catch (error) {
    if (isNotFound(error)) {
      return true;
    }
    throw error;
  }
}

/** As {@link waitFor}; in vain it tells the object's last status too. */
export async function waitForObject<T extends { status?: unknown }>(
  what: string,
  get: () => Promise<T>,
  matches: (object: T) => boolean,
  options?: WaitOptions,
): Promise<T> {
  let last: T | undefined;
  try {
    return await waitFor(
      what,
      async () => {
        last = await get();
        return matches(last) && last;
      },
      options,
    );
  } catch (error) {
    throw new Error(`${String(error)}; last seen: ${JSON.stringify(last?.status)}`, { cause: error });
  }
}
