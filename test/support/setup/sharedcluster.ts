/** Set-up of the project `integration`: one cluster for all its files. */
import type { TestProject } from 'vitest/node';
import { startCluster } from '../../../hack/cluster/index.ts';
import '../cluster.ts';

export async function setup(project: TestProject): Promise<() => Promise<void>> {
  const cluster = await startCluster({ name: `integration-${process.pid}` });
  project.provide('sharedCluster', cluster.name);
  return () => cluster.stop();
}
