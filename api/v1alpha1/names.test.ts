import { expect, it } from 'vitest';
import { isServedNamespace } from './names.ts';

const NAMESPACES = { system: 'platform-system', default: 'shared', prefix: 'platform-' };

it.each([
  ['shared', true],
  ['platform-ci', true],
  ['kube-system', false],
  ['platform-system', false],
])('namespace %s: served is %s', (name, expected) => {
  expect(isServedNamespace(name, NAMESPACES)).toBe(expected);
});
