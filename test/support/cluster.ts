import { inject } from 'vitest';
import { type Cluster, connectCluster } from '../../hack/cluster/index.ts';

declare module 'vitest' {
  export interface ProvidedContext {
    /** Name of the cluster that all tests of the project share. */
    sharedCluster: string;
  }
}

/**
 * The cluster that the project's set-up started, for tests that get along in namespaces of their own. No operator runs
 * in it unless a test starts one, and no simulated hosts are there. It is not the test's to stop.
 */
export async function sharedCluster(): Promise<Cluster> {
  return await connectCluster(inject('sharedCluster'));
}
