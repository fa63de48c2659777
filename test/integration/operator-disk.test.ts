/** Disk that VMs request from hosts, as the scheduler and quotas count it. Simulated hosts have 1Ti each. */
import { afterAll, beforeAll, expect, it } from 'vitest';
import { type Cluster, startCluster } from '../../hack/cluster/index.ts';
import { VMs } from '../fixtures/vms.ts';
import { createQuota } from '../support/quota.ts';
import { waitFor } from '../../hack/wait.ts';

const COUNTED = 'platform-counted';
const REQUESTED = 'ephemeral-storage';

let cluster: Cluster;
let vms: VMs;

beforeAll(async () => {
  cluster = await startCluster({ name: `operator-disk-${process.pid}`, hosts: 1 });
  await cluster.startOperator();
  vms = new VMs(cluster);
});

afterAll(async () => {
  await cluster?.stop();
});

async function requestOf(name: string, of = vms): Promise<string | undefined> {
  const { spec } = await of.pod(name);
  return spec.containers[0]?.resources?.requests?.[REQUESTED];
}

it('a VM whose disk fits on no host stays Pending with a reason until there is room', async () => {
  await vms.create('large', { diskSize: '4Ti' });
  await vms.waitForPhase('large', 'Running');
  await vms.create('larger', { diskSize: '3Ti' });
  const condition = { status: 'False', reason: 'Unschedulable' } as const;
  const { message } = await vms.waitForCondition('larger', 'Scheduled', condition);
  expect((await vms.get('larger')).status?.phase).toBe('Pending');
  expect(message).toContain('No host is free: 1 short of disk (ephemeral-storage)');
  await vms.delete('large');
  await vms.waitForPhase('larger', 'Running');
});

it('a VM of unknown size requests a share of the default size, and runs beside a large VM if that fits', async () => {
  await vms.create('plain');
  await vms.waitForPhase('plain', 'Running');
  expect(await requestOf('plain')).toBe('2Gi');
});

it('a larger disk is counted from the next Pod on', async () => {
  await vms.patch('plain', { diskSize: '100Gi' });
  await vms.waitForVM('plain', 'its new size', ({ status }) => status?.resources?.diskSize === '100Gi');
  expect(await requestOf('plain')).toBe('2Gi');
  await vms.create('unbound', { placement: { node: 'nowhere' } });
  await vms.waitForCondition('unbound', 'Scheduled', { status: 'False', reason: 'Unschedulable' });
  await vms.patch('unbound', { diskSize: '100Gi' });
  await vms.waitForVM('unbound', 'its new size', ({ status }) => status?.resources?.diskSize === '100Gi');
  expect(await requestOf('unbound')).toBe('2Gi');
  const first = (await vms.pod('unbound')).metadata.uid;
  await vms.deletePod('unbound');
  await waitFor('the next Pod', async () => (await vms.pod('unbound')).metadata.uid !== first);
  expect(await requestOf('unbound')).toBe('20Gi');
});

it('a quota counts the disk', async () => {
  await cluster.createNamespace(COUNTED);
  await createQuota(cluster, { namespace: COUNTED, name: 'disk' }, `requests.${REQUESTED}=10Gi`);
  const counted = new VMs(cluster, COUNTED);
  await counted.create('large', { diskSize: '100Gi' });
  const { message } = await counted.waitForCondition('large', 'Scheduled', { reason: 'PodRefused' });
  expect(message).toContain(`requested: requests.${REQUESTED}=20Gi`);
});
