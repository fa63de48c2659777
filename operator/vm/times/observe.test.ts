import { expect, it } from 'vitest';
import type { VM } from '../../../api/v1alpha1/vm.ts';
import { timesIn } from './observe.ts';

const NOW = Date.parse('2026-11-30T12:10:00Z');
const CREATED = '2026-11-30T12:00:00Z';
const RAN = '2026-11-30T12:00:30Z';

function vm({ status = {}, ...metadata }: { status?: object; [field: string]: unknown }): VM {
  return {
    metadata: { name: 'a', creationTimestamp: CREATED, ...metadata },
    spec: {},
    status,
  } as unknown as VM;
}

const stalled = { conditions: [{ type: 'Stalled', status: 'True' }], firstRunningTime: RAN };

it.each([
  ['first runs', vm({}), vm({ status: { firstRunningTime: RAN } }), [{ measure: 'waited', seconds: 30 }]],
  ['goes on', vm({ status: { firstRunningTime: RAN } }), vm({ status: { firstRunningTime: RAN } }), []],
  ['never ran', vm({}), vm({ deletionTimestamp: CREATED }), []],
  [
    'is deleted',
    vm({ status: { firstRunningTime: RAN } }),
    vm({ status: { firstRunningTime: RAN }, deletionTimestamp: CREATED }),
    [{ measure: 'ran', seconds: 570 }],
  ],
  [
    'has failed',
    vm({ status: { firstRunningTime: RAN } }),
    vm({ status: stalled }),
    [{ measure: 'ran', seconds: 570 }],
  ],
  ['has failed before', vm({ status: stalled }), vm({ status: stalled, deletionTimestamp: CREATED }), []],
  [
    'is of a pool',
    vm({}),
    vm({ status: { firstRunningTime: RAN }, labels: { 'berth.dev/claimed-from': 'fresh' } }),
    [],
  ],
])('measures a VM that %s', (_, previous, object, times) => {
  expect(timesIn({ type: 'updated', object, previous }, NOW)).toEqual(times);
});

it('measures a VM that is gone at once, and none that it sees for the first time', () => {
  const object = vm({ status: { firstRunningTime: RAN } });
  expect(timesIn({ type: 'deleted', object, previous: object }, NOW)).toEqual([
    { measure: 'ran', seconds: 570 },
  ]);
  expect(timesIn({ type: 'added', object }, NOW)).toEqual([]);
});
