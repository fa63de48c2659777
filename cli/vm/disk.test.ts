import { expect, it } from 'vitest';
import type { Image } from '../../api/v1alpha1/image.ts';
import type { KubeClient } from '../../kube/client.ts';
import type { Transport } from '../../kube/transport.ts';
import type { UserCluster } from '../cluster.ts';
import { resultOf, untilDone } from './disk.ts';
import { makeTerminal } from '../../test/fixtures/terminals.ts';

const [EARLY, LATE, LAST] = ['2026-11-23T12:00:00Z', '2026-11-23T13:00:00Z', '2026-11-23T14:00:00Z'];

function image(status: object, requestedAt: string | undefined = LATE): Image {
  const spec = { source: {}, commit: { vmName: 'mac', requestedAt }, push: { requestedAt } };
  return { metadata: { name: 'base' }, spec, status } as unknown as Image;
}

/** Waits for the commit in `asked`, while the Image has these later versions. */
async function waited(asked: Image, ...versions: Image[]): Promise<Image> {
  const events = versions.map((object) => Buffer.from(`${JSON.stringify({ type: 'MODIFIED', object })}\n`));
  const watches = { stream: () => Promise.resolve(events) } as unknown as Transport;
  const cluster = { client: {} as KubeClient, watches } as UserCluster;
  const from = { ...asked, metadata: { ...asked.metadata, resourceVersion: '1' } };
  return await untilDone(makeTerminal(), {
    cluster,
    image: from,
    work: 'commit',
    waiting: { timeout: 10_000 },
  });
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
  [
    'save',
    { finishedTime: EARLY, ...condition('Ready', 'False', 'VM mac was not found') },
    { failure: 'VM mac was not found' },
  ],
  [
    'push',
    { finishedTime: EARLY, ...condition('Ready', 'False', 'VM mac was not found') },
    { failure: 'VM mac was not found' },
  ],
  ['commit', { finishedTime: EARLY, ...condition('Ready', 'True') }, 'waiting'],
  ['commit', condition('Ready', 'True'), 'waiting'],
  ['commit', { lastCommit: last(EARLY, 'Failed') }, 'waiting'],
  ['commit', { lastCommit: last(LATE, 'Succeeded') }, 'done'],
  ['push', { lastPush: last(LATE) }, 'waiting'],
  ['push', { lastPush: last(LATE, 'Failed') }, { failure: 'no room' }],
  ['push', condition('Stalled', 'True'), { failure: 'Word' }],
] as const)('a %s with status %j is %j', (work, status, result) => {
  expect(resultOf(image(status), { work, requestedAt: LATE })).toEqual(result);
});

it.each([
  ['commit', { lastCommit: last(LATE, 'Succeeded') }, 'done'],
  ['push', { lastPush: last(LATE, 'Failed') }, { failure: 'no room' }],
  ['commit', { lastCommit: last(EARLY, 'Succeeded') }, { failure: expect.stringContaining(LAST) }],
  ['push', { lastPush: last(LAST, 'Succeeded') }, { failure: expect.stringContaining(LAST) }],
] as const)('a %s that another request replaced, with status %j, is %j', (work, status, result) => {
  expect(resultOf(image(status, LAST), { work, requestedAt: LATE })).toEqual(result);
});

it('the success of a later commit is not the success of this one', async () => {
  const others = image({ lastCommit: last(LAST, 'Succeeded') }, LAST);
  await expect(waited(image({}), image({}), others)).rejects.toThrow(
    `The commit of image base failed: another request replaced it (spec.commit.requestedAt is now ${LAST}, not ${LATE}), so its result is unknown`,
  );
  const own = image({ lastCommit: last(LATE, 'Succeeded') });
  expect(await waited(image({}), image({}), own, others)).toEqual(own);
});
