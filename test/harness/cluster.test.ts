import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, describe, expect, test } from 'vitest';
import { NODES, PODS } from '../../kube/core.ts';
import { type Cluster, connectCluster, startCluster, stopCluster } from '../../hack/cluster/index.ts';
import { isAlive, listProcesses, signalProcess } from '../../hack/cluster/processes.ts';
import { mountTmpfs, whyNoTmpfs } from '../support/tmpfs.ts';
import { unless } from '../support/unless.ts';
import { waitFor } from '../../hack/wait.ts';

const started: Cluster[] = [];

async function start(name: string, hosts = 0): Promise<Cluster> {
  const cluster = await startCluster({ name: `${name}-${process.pid}`, hosts });
  started.push(cluster);
  return cluster;
}

afterEach(async () => {
  for (const cluster of started.splice(0)) {
    await stopCluster(cluster.name);
  }
});

describe('a cluster', () => {
  test('runs beside another cluster; its stop removes all of it and nothing of the other', async () => {
    const [one, two] = await Promise.all([start('one', 2), start('two', 1)]);
    expect(one.server).not.toBe(two.server);
    expect((await one.client().list(NODES)).items).toHaveLength(2);
    expect((await two.client().list(NODES)).items).toHaveLength(1);
    const processes = await listProcesses(one.directory);
    expect(processes.map(({ name }) => name).toSorted()).toEqual([
      'etcd',
      'kube-apiserver',
      'kube-controller-manager',
      'kube-scheduler',
      'kwok',
    ]);
    const others = await listProcesses(two.directory);
    expect(others).toHaveLength(processes.length);

    await one.stop();

    expect(await Promise.all(processes.map((record) => isAlive(record)))).not.toContain(true);
    expect(existsSync(one.directory)).toBe(false);
    expect(await Promise.all(others.map((record) => isAlive(record)))).not.toContain(false);
    expect((await two.client().list(NODES)).items).toHaveLength(1);
  });

  test('has kinds, policies and namespaces after its start, and a kubeconfig that needs no other file', async () => {
    const cluster = await start('kinds');
    const { stdout } = await cluster.kubectl(['api-resources', '--api-group=berth.dev', '-o', 'name']);
    expect(stdout.trim().split('\n').toSorted()).toEqual(
      [
        'emulators',
        'imagecacheentries',
        'images',
        'isos',
        'runnersets',
        'servers',
        'vmconfigs',
        'vmpools',
        'vms',
        'vmsnapshots',
      ].map((kind) => `${kind}.berth.dev`),
    );
    const policies = await cluster.kubectl(['get', 'validatingadmissionpolicies', '-o', 'name']);
    expect(policies.stdout).toContain('berth');
    const namespaces = await cluster.kubectl(['get', 'namespaces', '-o', 'name']);
    expect(namespaces.stdout.split('\n')).toEqual(
      expect.arrayContaining(['namespace/berth-system', 'namespace/platform-default']),
    );
    const text = readFileSync(cluster.kubeconfig, 'utf8');
    for (const field of ['certificate-authority-data', 'client-certificate-data', 'client-key-data']) {
      expect(text).toMatch(new RegExp(`^ +${field}: \\S+$`, 'm'));
    }
    expect(text).toContain(`    server: ${cluster.server}\n`);
  });

  test('serves the same data again after its API server was killed, is found by its name, and stops', async () => {
    const cluster = await start('again', 1);
    const before = cluster.component('kube-apiserver').pid;
    await cluster.component('kube-apiserver').restart('SIGKILL');
    expect(cluster.component('kube-apiserver').pid).not.toBe(before);
    const same = await connectCluster(cluster.name);
    expect((await same.client().list(NODES)).items).toHaveLength(1);
    await stopCluster(cluster.name);
    expect(existsSync(cluster.directory)).toBe(false);
    await expect(connectCluster(cluster.name)).rejects.toThrow(`no cluster "${cluster.name}"`);
  });

  test('is removed by the next start if its process died without cleaning up', async () => {
    const cluster = await start('left');
    const processes = await listProcesses(cluster.directory);
    expect(processes).not.toEqual([]);
    // The harness must not signal a process id that another process has got in the meantime.
    expect(await signalProcess({ pid: process.pid, startTime: '1' }, 'SIGKILL')).toBe(false);
    // The record looks as if another process, which has ended, had started the cluster.
    writeFileSync(
      join(cluster.directory, 'owner.json'),
      JSON.stringify({ pid: process.pid, startTime: '1' }),
    );
    await start('next');
    expect(await Promise.all(processes.map((record) => isAlive(record)))).not.toContain(true);
    expect(existsSync(cluster.directory)).toBe(false);
  });

  test(
    'is removed with a disk that a killed test left mounted in its folder',
    unless(whyNoTmpfs()),
    async () => {
      const cluster = await start('mounted');
      const disk = join(cluster.directory, 'disk');
      mkdirSync(disk);
      mountTmpfs(disk, 1);
      await cluster.stop();
      expect(existsSync(cluster.directory)).toBe(false);
    },
  );

  test.each(['', 'UPPER', '../x', 'a/b', '-x', 'x'.repeat(41)])('refuses the name %j', async (name) => {
    await expect(startCluster({ name })).rejects.toThrow('must match');
  });
});

describe('a simulated host', () => {
  test('runs a Pod, and ends a Pod with a finalizer as an agent does', async () => {
    const cluster = await start('pod', 1);
    await cluster.createNamespace('simulated');
    const ref = { namespace: 'simulated', name: 'held' };
    await cluster.client().create(PODS, {
      apiVersion: 'v1',
      kind: 'Pod',
      metadata: { ...ref, finalizers: ['example.com/held'] },
      spec: { nodeName: 'host-0', containers: [{ name: 'machine', image: 'registry.example/guest:1' }] },
    });
    const running = await waitFor('the Pod to run', async () => {
      const pod = await cluster.client().get(PODS, ref);
      return pod.status?.phase === 'Running' && pod;
    });
    expect(running.status?.containerStatuses?.[0]?.state).toHaveProperty('running');

    await cluster.client().delete(PODS, ref);
    const ended = await waitFor('the Pod to end', async () => {
      const pod = await cluster.client().get(PODS, ref);
      return pod.status?.phase === 'Failed' && pod;
    });
    expect(ended.status?.containerStatuses?.[0]?.state).toHaveProperty('terminated');

    await cluster.client().mergePatch(PODS, ref, { metadata: { finalizers: null } });
    await waitFor('the Pod to be gone', async () => {
      const pods = await cluster.client().list(PODS, { namespace: 'simulated' });
      return pods.items.length === 0;
    });
  });
});
