import { inject } from 'vitest';
import { type Cluster, connectCluster } from '../../hack/cluster/index.ts';

declare module 'vitest' {
  export interface ProvidedContext {
    /** Name of the cluster that all tests of the project share. */
    sharedCluster: string;
  }
}

/**
 * Returns the cluster that the project's set-up started, for tests that need only their own namespaces. The cluster has no
 * simulated hosts, and no operator unless a test starts one. Tests must not stop the cluster.
 */
export async function sharedCluster(): Promise<Cluster> {
  return await connectCluster(inject('sharedCluster'));
}
