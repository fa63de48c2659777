import { expect, it } from 'vitest';
import { NODE_MESSAGE_LENGTH } from '../../api/v1alpha1/imagecacheentry.ts';
import { parseConfig } from '../config/config.ts';
import { failedRow } from './attempt.ts';

it('a failure with a long message keeps its reason and its last words', () => {
  const context = { config: parseConfig({}, 'test'), now: 0 };
  const long = `ImageFetchFailed: ${'registry.example/team/image '.repeat(40)}answered 416`;
  const { message = '' } = failedRow(
    { node: 'mac1', state: 'Caching' },
    'Failed',
    { message: long },
    context,
  );
  expect(message).toHaveLength(NODE_MESSAGE_LENGTH);
  expect(message).toMatch(/^ImageFetchFailed: .*….*answered 416$/);
  expect(failedRow({ node: 'mac1', state: 'Caching' }, 'Failed', { message: 'short' }, context).message).toBe(
    'short',
  );
});

it.each([
  [undefined, 60],
  [1_000, 60],
  [1_800_000, 1_800],
  [86_400_000, 3_600],
])('after a failure whose server asks to wait %s ms, the next attempt is after %s s', (asked, seconds) => {
  const context = { config: parseConfig({ cacheRetrySeconds: 60 }, 'test'), now: 0 };
  const failure = { message: 'busy', retryAfterMilliseconds: asked };
  const { retryAt = '' } = failedRow({ node: 'mac1', state: 'Caching' }, 'Failed', failure, context);
  expect(Date.parse(retryAt)).toBe(seconds * 1000);
});
