import { expect, it } from 'vitest';
import type { Image } from '../../api/v1alpha1/image.ts';
import { resultOf } from './work.ts';

const [EARLY, LATE] = ['2026-11-23T12:00:00Z', '2026-11-23T13:00:00Z'];

function image(status: object): Image {
  const spec = { source: {}, commit: { vmName: 'mac', requestedAt: LATE }, push: { requestedAt: LATE } };
  return { metadata: { name: 'base' }, spec, status } as unknown as Image;
}

const condition = (type: string, status: string, message = '') => ({
  conditions: [{ type, status, reason: 'Word', message }],
});
const last = (requestedAt: string, result?: string) => ({ requestedAt, result, message: 'no room' });

it.each([
  ['save', {}, 'waiting'],
  ['save', condition('Ready', 'True'), 'done'],
  // The host tries again.
  ['save', { phase: 'Failed', ...condition('Ready', 'False') }, 'waiting'],
  ['save', condition('Stalled', 'True', 'the disk is lost'), { failure: 'the disk is lost' }],
  ['commit', condition('Ready', 'True'), 'waiting'],
  ['commit', { lastCommit: last(EARLY, 'Failed') }, 'waiting'],
  ['commit', { lastCommit: last(LATE, 'Succeeded') }, 'done'],
  ['push', { lastPush: last(LATE) }, 'waiting'],
  ['push', { lastPush: last(LATE, 'Failed') }, { failure: 'no room' }],
  ['push', condition('Stalled', 'True'), { failure: 'Word' }],
] as const)('a %s with status %j is %j', (work, status, result) => {
  expect(resultOf(image(status), work)).toEqual(result);
});
