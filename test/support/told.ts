/** Searches for a secret text in objects of a cluster, and in the logs of its programs. */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect } from 'vitest';
import type { Cluster } from '../../hack/cluster/index.ts';

/** Kinds of objects with information about VMs and Images. Secrets are not among them. */
const KINDS = 'vms,vmconfigs,images,isos,imagecacheentries,pods,jobs,events,nodes,leases';

/**
 * Expects that no object of these kinds contains the text. The same holds for the logs of the cluster's programs, including the operator
 * and agents.
 */
export async function expectUntold(cluster: Cluster, text: string): Promise<void> {
  const { stdout } = await cluster.kubectl(['get', KINDS, '-A', '-o', 'json']);
  expect(stdout.includes(text), 'an object has it').toBe(false);
  const logs = readdirSync(cluster.directory).filter((name) => name.endsWith('.log'));
  const telling = logs.filter((name) => readFileSync(join(cluster.directory, name), 'utf8').includes(text));
  expect(logs.length).toBeGreaterThan(2);
  expect(telling).toEqual([]);
}
