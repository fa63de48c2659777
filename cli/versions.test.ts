import { expect, it } from 'vitest';
import { warningOf } from './versions.ts';

it.each([
  [['0.3.1', '0.3.9'], undefined],
  [['0.3.0', 'unknown'], undefined],
  [['0.3.0', '0.4.0'], /release 0\.3, and operator has 0\.4\./],
  [['1.3.0'], /has 1\.3\./],
  [['1.\u001b[2J.0'], /has 1\. \[2J\./],
])('compares the minor releases %j', (versions, expected) => {
  const warning = warningOf(
    versions.map((version) => ({ name: 'operator', version })),
    '0.3.2',
  );
  expect(warning ?? '').toMatch(expected ?? /^$/);
});
