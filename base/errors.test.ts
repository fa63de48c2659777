import { readFileSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { expect, it } from 'vitest';
import { isMissing, undefinedIf, undefinedIfSync } from './errors.ts';

it('an expected error is no result, and any other error is thrown', async () => {
  expect(await undefinedIf(isMissing, readFile('/none'))).toBeUndefined();
  expect(undefinedIfSync(isMissing, () => readFileSync('/none'))).toBeUndefined();
  await expect(undefinedIf(isMissing, readFile('/'))).rejects.toThrow('EISDIR');
  expect(() => undefinedIfSync(isMissing, () => readFileSync('/'))).toThrow('EISDIR');
});
