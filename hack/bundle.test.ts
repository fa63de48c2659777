import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { bundleInto } from './bundle.ts';
import { bundleCommand } from './cli/bundle.ts';

const ROOT = join(import.meta.dirname, '..');
/** A part of zod's messages in one of its forty languages. It must not be in the bundle. */
const GERMAN = /Ung(ü|\\xFC|\\u00FC)ltige Eingabe/i;

test.each(['operator', 'agent', 'server'])(
  'the bundle of the %s leaves out the languages of zod, and what it does not use of undici',
  async (program) => {
    const folder = await mkdtemp(join(tmpdir(), 'berth-bundle-'));
    try {
      const options = { sourcemap: false };
      await bundleInto(folder, { [program]: join(ROOT, program, 'main.ts') }, options);
      const text = await readFile(join(folder, `${program}.js`), 'utf8');
      expect(text).not.toMatch(GERMAN);
      expect(text).not.toContain('MockAgent');
    } finally {
      await rm(folder, { recursive: true, force: true });
    }
  },
);

test('the command has only the parts of large libraries that its start needs', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'berth-bundle-'));
  try {
    await bundleCommand(folder);
    const text = await readFile(join(folder, 'berth'), 'utf8');
    for (const library of ['tdigest', 'llhttp']) {
      expect(text).not.toContain(library);
    }
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
});
