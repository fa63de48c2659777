import { expect, it, vi } from 'vitest';
import { Cluster } from './cluster.ts';
import { readRecord, startProcess, stopProcess } from './processes.ts';
import type { ClusterState } from './state.ts';
import { makeFolder } from '../../test/support/folder.ts';
import { writeContext } from '../../test/fixtures/kubeconfig.ts';

vi.mock('./controlplane.ts', () => ({ waitUntilReady: async () => {} }));

it('starts a program of the control plane again with the same plan', async () => {
  const directory = makeFolder();
  await writeContext(directory, 'https://127.0.0.1:1');
  const plan = {
    name: 'kube-scheduler',
    file: 'tail',
    arguments: ['-f', '/dev/null'],
    environment: { GOGC: '400' },
  };
  const first = await startProcess(directory, plan);
  const state = { name: 'a', provider: 'binaries', lasting: false, tools: {} } as unknown as ClusterState;
  const cluster = await Cluster.open(directory, state, async () => {});
  try {
    await cluster.component('kube-scheduler').restart();
    const second = readRecord(directory, 'kube-scheduler');
    expect(second).toMatchObject(plan);
    expect(second.pid).not.toBe(first.pid);
  } finally {
    await cluster.disconnect();
    await stopProcess(directory, readRecord(directory, 'kube-scheduler'), 'SIGKILL');
  }
});
