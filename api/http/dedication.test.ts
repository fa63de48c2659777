import { expect, it } from 'vitest';
import { dedicate } from './dedication.ts';
import type { HostPod } from './host.ts';

function machine(namespace: string, name: string, phase = 'Running'): HostPod {
  return { metadata: { namespace, name }, spec: { containers: [] }, status: { phase } };
}

/** Moves a host. `looks` has its machines at each look. Resolves with the result and the namespaces that were written. */
async function move(to: string | undefined, ...looks: HostPod[][]) {
  const written: (string | undefined)[] = [];
  const machines = async () => looks.shift() ?? [];
  const label = async (_from: string | undefined, next: string | undefined) => void written.push(next);
  return [await dedicate({ machines, label }, { host: 'host-1', from: 'platform-a', to }), written];
}

it('refuses to move a host with machines, and names some of them', async () => {
  const many = Array.from({ length: 7 }, (_, index) => machine('platform-a', `vm-${index}`));
  const [refusal, written] = await move('platform-b', many);
  expect(refusal).toMatch(
    /^Host host-1 still runs VMs or emulators: platform-a\/vm-0, .*platform-a\/vm-4 and 2 more$/,
  );
  expect(written).toEqual([]);
  expect(await move(undefined, [machine('platform-a', 'done', 'Succeeded')])).toEqual([
    undefined,
    [undefined],
  ]);
});

it('gives the host back when a machine of the former namespace came meanwhile', async () => {
  const [refusal, written] = await move('platform-b', [], [machine('platform-a', 'late')]);
  expect(refusal).toBe('Host host-1 still runs VMs or emulators: platform-a/late');
  expect(written).toEqual(['platform-b', 'platform-a']);
  expect(await move('platform-b', [], [machine('platform-b', 'first')])).toEqual([undefined, ['platform-b']]);
});

it('gives the host back when the machines cannot be read again, and reports that error', async () => {
  const written: (string | undefined)[] = [];
  const machines = async () => {
    if (written.length > 0) {
      throw new Error('unreachable');
    }
    return [];
  };
  const label = async (_from: string | undefined, next: string | undefined) => {
    written.push(next);
    if (written.length > 1) {
      throw new Error('the way back failed');
    }
  };
  const dedication = { host: 'host-1', from: undefined, to: 'platform-b' };
  await expect(dedicate({ machines, label }, dedication)).rejects.toThrow('unreachable');
  expect(written).toEqual(['platform-b', undefined]);
});

it('removes the label of a host that stays in the default namespace, also while machines run', async () => {
  const written: unknown[] = [];
  const machines = async () => [machine('platform-a', 'runs')];
  const label = async (...change: unknown[]) => void written.push(change);
  const move = async (namespace: string | undefined) =>
    await dedicate({ machines, label }, { host: 'host-1', from: namespace, to: namespace });
  expect([await move('platform-a'), written]).toEqual([undefined, []]);
  expect([await move(undefined), written]).toEqual([undefined, [[undefined, undefined]]]);
});
