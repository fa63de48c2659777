/** The record of used rights, with which a whole run compares the rights of the chart. */
import { expect, onTestFinished, test, vi } from 'vitest';
import { startCluster } from '../../hack/cluster/index.ts';
import { USED_RIGHTS_FOLDER, usedRights } from '../../hack/cluster/usedrights.ts';
import { makeFolder } from '../support/folder.ts';

test('contains the rights that a program used itself, and no others', async () => {
  const folder = makeFolder();
  vi.stubEnv(USED_RIGHTS_FOLDER, folder);
  onTestFinished(async () => {
    vi.unstubAllEnvs();
  });
  const cluster = await startCluster({ name: `used-rights-${process.pid}`, operator: true });
  // The right of the operator to delete Pods, used by another program.
  const as = '--as=system:serviceaccount:berth-system:berth-operator';
  await cluster.kubectl(['delete', 'pod', 'none', '--ignore-not-found', as]);
  const own = `--kubeconfig=${cluster.operatorKubeconfig}`;
  await cluster.kubectl(['get', 'leases', '-n', 'berth-system', own]);
  await cluster.kubectl(['get', 'secrets', own], { allowFailure: true });
  await cluster.stop();

  const used = (usedRights() ?? []).filter(({ account }) => account === 'berth-operator');
  const right = { account: 'berth-operator', name: '', namespace: '' };
  expect(used).toContainEqual({ ...right, verb: 'watch', resource: 'vms.berth.dev' });
  const lease = { ...right, namespace: 'berth-system', resource: 'leases.coordination.k8s.io' };
  expect(used).toContainEqual({ ...lease, verb: 'update', name: 'berth-operator' });
  const others = used.filter(
    ({ verb, resource }) => verb === 'delete' || verb === 'list' || resource === 'secrets',
  );
  expect(others).toEqual([]);
});
