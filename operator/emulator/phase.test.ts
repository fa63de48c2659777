import { Registry } from 'prom-client';
import { expect, it } from 'vitest';
import type { Emulator } from '../../api/v1alpha1/emulator.ts';
import { exportEmulatorMetrics } from './phase.ts';

function emulator(namespace: string, phase?: string): Emulator {
  return { metadata: { name: 'any', namespace }, status: { phase } } as unknown as Emulator;
}

async function reported(isLeader: boolean, emulators: Emulator[]): Promise<string[]> {
  const registry = new Registry();
  exportEmulatorMetrics(registry, {
    isLeader: () => isLeader,
    emulators: () => emulators,
    namespaces: () => ['a', 'b'],
  });
  return (await registry.metrics()).split('\n').filter((line) => line.startsWith('berth_emulators{'));
}

it('every phase of every namespace has a number, 0 where there is none', async () => {
  const lines = await reported(true, [emulator('a', 'Running'), emulator('a', 'Running'), emulator('b')]);
  expect(lines).toHaveLength(14);
  expect(lines.filter((line) => !line.endsWith(' 0'))).toEqual([
    'berth_emulators{phase="Running",vm_namespace="a"} 2',
    'berth_emulators{phase="Pending",vm_namespace="b"} 1',
  ]);
});

it('only the leader counts', async () => {
  expect(await reported(false, [emulator('a', 'Running')])).toEqual([]);
});
