import { expect, it } from 'vitest';
import { checkArchitecture } from './pull.ts';

it('an image for another architecture is refused with a useful advice', () => {
  const refusal = (said: string) => () => checkArchitecture('images/desktop:1', said, 'amd64');
  expect(refusal('arm64')).toThrow(/use an image for amd64, or set the architecture to arm64$/);
  expect(refusal('s390x')).toThrow(
    /is an image for s390x, and the machine is amd64: use an image for amd64$/,
  );
  expect(refusal('amd64')).not.toThrow();
});
