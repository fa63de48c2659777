import { expect, it } from 'vitest';
import type { Image } from '../v1alpha1/image.ts';
import { imageItem, isPush, pushItem } from './imageitem.ts';

const REQUESTED = '2026-11-23T12:00:00.000Z';
const SPEC = {
  source: { fromVM: { name: 'mac' } },
  push: { reference: 'registry.example/a:1', requestedAt: REQUESTED },
};

function push(status: object, spec: object = SPEC): Image {
  return { metadata: { name: 'vm-push-abcde', namespace: 'platform-default' }, spec, status } as Image;
}

it.each([
  [{}, { status: 'Pending' }],
  [
    { phase: 'Pending', conditions: [{ type: 'Ready', status: 'False', message: 'no image storage' }] },
    { status: 'Pending', message: 'no image storage' },
  ],
  [
    { phase: 'Updating', progressPercent: 42 },
    { status: 'Running', progressPercent: 42 },
  ],
  [{ phase: 'Ready' }, { status: 'Running' }],
  [
    {
      phase: 'Pending',
      finishedTime: REQUESTED,
      conditions: [{ type: 'Ready', status: 'False', message: 'VM mac was not found' }],
    },
    { status: 'Failed', message: 'VM mac was not found' },
  ],
  // The operator copies the disk again.
  [
    { phase: 'Failed', conditions: [{ type: 'Ready', status: 'False', message: 'interrupted' }] },
    { status: 'Pending', message: 'interrupted' },
  ],
  [
    {
      phase: 'Failed',
      finishedTime: REQUESTED,
      conditions: [{ type: 'Ready', status: 'False', message: 'no image storage' }],
    },
    { status: 'Failed', message: 'no image storage' },
  ],
  [{ phase: 'Ready', lastPush: { requestedAt: REQUESTED, result: 'Succeeded' } }, { status: 'Succeeded' }],
  [
    {
      phase: 'Ready',
      lastPush: { requestedAt: REQUESTED, result: 'Failed', message: 'ImageAccessDenied: no' },
    },
    { status: 'Failed', message: 'ImageAccessDenied: no' },
  ],
  [{ phase: 'Ready', lastPush: { requestedAt: 'earlier', result: 'Failed' } }, { status: 'Running' }],
])('shows %j as %j', (status, item) => {
  const { jobName, image, ...rest } = pushItem(push(status));
  expect([jobName, image]).toEqual(['vm-push-abcde', 'registry.example/a:1']);
  expect(rest).toEqual({ progressPercent: undefined, message: undefined, ...item });
});

it('takes no other Image for a push', () => {
  expect(isPush(push({}))).toBe(true);
  expect(isPush(push({}, { source: { fromVM: { name: 'mac' } } }))).toBe(false);
  expect(isPush({ ...push({}), metadata: { name: 'mine' } })).toBe(false);
});

it('shows the size of the memory of an Image that has memory', () => {
  const shown = (status: Image['status']) =>
    imageItem({ metadata: { name: 'warm' }, spec: { source: {} }, status } as Image).memorySize;
  const memory = { size: '1Gi', cpu: 2, key: 'a'.repeat(64), savedAt: REQUESTED };
  expect([shown({ memory }), shown({})]).toEqual(['1Gi', undefined]);
});
