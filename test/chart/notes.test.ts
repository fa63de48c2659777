/** Tests of the notes that Helm prints at the end of an install, about objects that the cluster already has. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Cluster } from '../../hack/cluster/index.ts';
import { NAMESPACES } from '../../kube/core.ts';
import { CHART, helm } from '../support/chart.ts';
import { sharedCluster } from '../support/cluster.ts';
import { join } from 'node:path';

const SYSTEM = 'berth-system';

let cluster: Cluster;

beforeAll(async () => {
  cluster = await sharedCluster();
});

/** Returns the notes that Helm prints at the end of an install into the present cluster. */
async function notes(prefix: string, ...profile: string[]): Promise<string> {
  const namespaces = { default: `${prefix}main`, prefix };
  const args = ['install', 'berth', CHART, '--namespace', SYSTEM, '--kubeconfig', cluster.kubeconfig];
  const over = ['--dry-run=server', '--take-ownership', '--force-conflicts', '--values', '-'];
  const { code, stdout, stderr } = await helm([...args, ...over, ...profile], JSON.stringify({ namespaces }));
  expect({ code, stderr }).toMatchObject({ code: 0 });
  return stdout.slice(stdout.indexOf('NOTES:'));
}

describe('namespaces that exist before the install', () => {
  const made: string[] = [];

  async function namespace(name: string, labels: Record<string, string> = {}): Promise<void> {
    await cluster.client().create(NAMESPACES, { metadata: { name, labels } });
    made.push(name);
  }

  afterAll(async () => {
    await Promise.all(made.map((name) => cluster.client().delete(NAMESPACES, { name })));
  });

  test('are named in the notes if their Pods would be refused; other namespaces are not named', async () => {
    await namespace('fleet-vms', { 'pod-security.kubernetes.io/enforce': 'privileged' });
    await namespace('fleet-apps', { 'berth.dev/custom-pods': 'true' });
    await namespace('other-fleet');
    expect(await notes('fleet-')).not.toContain('Berth serves these namespaces too');
    await namespace('fleet-monitoring');
    await namespace('fleet-logs', { 'pod-security.kubernetes.io/enforce': 'baseline' });
    const said = await notes('fleet-');
    expect(said).toContain('for VMs:\n  fleet-logs\n  fleet-monitoring\nNew Pods');
    expect(said).toContain('another namespaces.prefix than fleet-');
    expect(said).toContain('Users who sign in without a managed group are CLUSTER ADMINISTRATORS');
    const hardened = await notes('fleet-', '--values', join(CHART, 'hardened.yaml'));
    expect(hardened).toContain('Users who sign in without a managed group have no rights');
  });

  test('are named in the notes up to a number of twenty', async () => {
    for (let i = 10; i < 31; i += 1) {
      await namespace(`many-${i}`);
    }
    const said = await notes('many-');
    expect(said).toContain('for VMs:\n  many-10\n');
    expect(said).toContain('  many-29\n  and 1 more\nNew Pods');
  });
});

test('hosts that join without a certificate are to be marked, as the notes say', async () => {
  const set = ['enabled=true', 'nodeSelector.machines=yes', 'guestsMayReachCluster=true'];
  const args = [...set, 'join=ServiceAccount', 'namespace=notes-main'].flatMap((one) => [
    '--set',
    `agent.${one}`,
  ]);
  const said = await notes('notes-', ...args);
  expect(said).toContain('They serve only namespace notes-main, and can read all its Secrets.');
  expect(said).toContain('kubectl label node NAME berth.node-restriction.kubernetes.io/host=true');
});

test('workloads whose Pods tolerate hosts are named in the notes', async () => {
  const namespace = `others-${process.pid}`;
  await cluster.client().create(NAMESPACES, { metadata: { name: namespace } });
  const workload = (kind: string, name: string, pod: object): object => {
    const spec = { containers: [{ name: 'main', image: 'none' }], restartPolicy: 'Always', ...pod };
    const template = { metadata: { labels: { app: name } }, spec };
    const selector = { matchLabels: { app: name } };
    const own =
      kind === 'CronJob'
        ? { schedule: '0 0 1 1 *', jobTemplate: { spec: { template } } }
        : { selector, template };
    return {
      apiVersion: kind === 'CronJob' ? 'batch/v1' : 'apps/v1',
      kind,
      metadata: { name, namespace },
      spec: own,
    };
  };
  const tolerations = [{ operator: 'Exists', effect: 'NoSchedule' }];
  const nodeSelector = { 'kubernetes.io/os': 'linux' };
  const items = [
    workload('Deployment', 'everywhere', { tolerations }),
    workload('CronJob', 'nightly', { tolerations, restartPolicy: 'Never' }),
    workload('DaemonSet', 'linux', { tolerations, nodeSelector }),
    workload('StatefulSet', 'infra', { tolerations: [{ key: 'infra', operator: 'Exists' }] }),
  ];
  const input = JSON.stringify({ apiVersion: 'v1', kind: 'List', items });
  await cluster.kubectl(['create', '-f', '-'], { input });
  const named = `run them:\n  CronJob ${namespace}/nightly\n  Deployment ${namespace}/everywhere\n`;
  expect(await notes('fleet-')).toContain(`${named}New Pods get an affinity`);
  expect(await notes('fleet-', '--set', 'mutatingPolicies=none')).toContain(`${named}Berth deletes`);
  await cluster.kubectl(['delete', 'namespace', namespace, '--wait=false']);
});
