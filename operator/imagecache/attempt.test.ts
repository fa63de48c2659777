import { expect, it } from 'vitest';
import { NODE_MESSAGE_LENGTH } from '../../api/v1alpha1/imagecacheentry.ts';
import { parseConfig } from '../config/config.ts';
import { failedRow } from './attempt.ts';

it('a failure with a long message keeps its reason and its last words', () => {
  const context = { config: parseConfig({}, 'test'), now: 0 };
  const long = `ImageFetchFailed: ${'registry.example/team/image '.repeat(40)}answered 416`;
  const { message = '' } = failedRow({ node: 'mac1', state: 'Caching' }, 'Failed', long, context);
  expect(message).toHaveLength(NODE_MESSAGE_LENGTH);
  expect(message).toMatch(/^ImageFetchFailed: .*….*answered 416$/);
  expect(failedRow({ node: 'mac1', state: 'Caching' }, 'Failed', 'short', context).message).toBe('short');
});
