import { expect, it } from 'vitest';
import * as z from 'zod';
import { readDocument } from './manifests.ts';

it('names the place and the kind of a fault in one short line, in any document', () => {
  const schema = z.object({ annotations: z.record(z.string(), z.string()) });
  const key = `key\n\u001B[31m"${'x'.repeat(1_000_000)}`;
  const bytes = Buffer.from(JSON.stringify({ annotations: { [key]: 7 } }));
  let message = '';
  try {
    readDocument(schema, bytes, { bytes: 2_000_000, items: 10 }, 'The manifest');
  } catch (error) {
    message = String(error);
  }
  expect(message).toMatch(
    /^ReasonedError: The manifest is invalid at annotations\.key \[31m"x+: [\x20-\x7e]*string/,
  );
  expect(message.length).toBeLessThan(500);
});
