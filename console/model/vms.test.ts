import { expect, it } from 'vitest';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { vmFilter } from './filter.ts';
import { namespaceShares, ownerOf, phaseCounts, sortedVMs, toneOf, waitingVMs } from './vms.ts';

const CREATED_BY = 'berth.dev/created-by';

function vm(name: string, { phase, host, by, ...rest }: Record<string, string> = {}): VM {
  const { namespace = 'team', image = 'ubuntu', created = '2026-11-30T12:00:00Z', message } = rest;
  return {
    metadata: {
      name,
      namespace,
      creationTimestamp: created,
      labels: { job: name },
      annotations: by === undefined ? {} : { [CREATED_BY]: by },
    },
    spec: { image },
    status: {
      phase,
      nodeName: host,
      conditions:
        message === undefined
          ? []
          : [{ type: 'Scheduled', status: 'False', reason: 'Unschedulable', message }],
    },
  } as unknown as VM;
}

const names = (vms: readonly VM[]) => vms.map(({ metadata }) => metadata.name);

const FLEET = [
  vm('build-10', { phase: 'Running', host: 'mac-1', by: 'system:serviceaccount:team:ci' }),
  vm('build-2', { phase: 'Pending', created: '2026-11-30T11:00:00Z', message: 'No host is free' }),
  vm('shop', { phase: 'Failed', host: 'mac-1', namespace: 'shop', image: 'macos/sonoma', by: 'ann' }),
  vm('young', { phase: 'Pulling', host: 'mac-2', namespace: 'shop' }),
];

it.each([
  ['', ['build-10', 'build-2', 'shop', 'young']],
  ['phase:pending', ['build-2']],
  ['PHASE:Pending BUILD', ['build-2']],
  ['host:mac-1', ['build-10', 'shop']],
  ['image:sonoma', ['shop']],
  ['owner:team:ci', ['build-10']],
  ['label:job=young', ['young']],
  ['namespace:shop phase:failed', ['shop']],
  ['mac-2', ['young']],
  ['ann', ['shop']],
  ['nosuchkey:build', []],
  ['constructor:build', []],
  ['.*', []],
])('the filter %s fits %j', (text, expected) => {
  expect(names(FLEET.filter(vmFilter(text)))).toEqual(expected);
});

it('sorts as people count, by any column', () => {
  expect(names(sortedVMs(FLEET, 'name'))).toEqual(['build-2', 'build-10', 'shop', 'young']);
  expect(names(sortedVMs(FLEET, 'age'))[0]).toBe('build-2');
  expect(names(sortedVMs(FLEET, 'host'))).toEqual(['build-2', 'build-10', 'shop', 'young']);
});

it('explains the VMs that wait, the oldest first, and counts those that it does not explain', () => {
  const { total, first } = waitingVMs(FLEET, 1);
  expect([total, first.map(({ vm: one, sentence }) => [one.metadata.name, sentence])]).toEqual([
    2,
    [['build-2', 'No host is free']],
  ]);
});

it('counts phases, and the berths of namespaces without those of failed VMs', () => {
  expect(phaseCounts(FLEET)).toEqual([
    ['Failed', 1],
    ['Pending', 1],
    ['Pulling', 1],
    ['Running', 1],
  ]);
  expect(namespaceShares(FLEET)).toEqual([
    { namespace: 'shop', slots: 1, waiting: 0 },
    { namespace: 'team', slots: 1, waiting: 1 },
  ]);
});

it('shows a phase of a later release as one that changes, and prefers the owner who claimed', () => {
  expect([toneOf('Migrating'), toneOf('constructor')]).toEqual(['moves', 'moves']);
  const claimed = vm('a', { by: 'pool' });
  claimed.metadata.annotations = { ...claimed.metadata.annotations, 'berth.dev/claimed-by': 'bob' };
  expect(ownerOf(claimed)).toBe('bob');
});
