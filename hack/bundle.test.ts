import { readFile } from 'node:fs/promises';
import { gzipSync } from 'node:zlib';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { bundleConsole, bundleInto } from './bundle.ts';
import { bundleCommand } from './cli/executable.ts';
import { makeFolder } from '../test/support/folder.ts';

const ROOT = join(import.meta.dirname, '..');
/** A part of zod's messages in one of its forty languages. It must not be in the bundle. */
const GERMAN = /Ung(ü|\\xFC|\\u00FC)ltige Eingabe/i;

test.each(['operator', 'agent', 'server', 'runners'])(
  'the bundle of the %s leaves out the languages of zod, and what it does not use of undici',
  async (program) => {
    const folder = makeFolder();
    const options = { sourcemap: false };
    await bundleInto(folder, { [program]: join(ROOT, program, 'main.ts') }, options);
    const text = await readFile(join(folder, `${program}.js`), 'utf8');
    expect(text).not.toMatch(GERMAN);
    expect(text).not.toContain('MockAgent');
  },
);

test('the command has only the parts of large libraries that its start needs', async () => {
  const folder = makeFolder();
  await bundleCommand(folder);
  const text = await readFile(join(folder, 'berth'), 'utf8');
  for (const library of ['tdigest', 'llhttp']) {
    expect(text).not.toContain(library);
  }
});

/** Limit of the console in bytes, compressed. People open it over slow connections, too. */
const CONSOLE_BYTES = 150_000;

test('the console is small, and has no part that only servers need', async () => {
  const folder = makeFolder();
  await bundleConsole(folder);
  const files = ['console.js', 'style.css'].map(async (file) => await readFile(join(folder, file), 'utf8'));
  const texts = await Promise.all(files);
  expect(gzipSync(texts.join('')).length).toBeLessThan(CONSOLE_BYTES);
  expect(texts.join('')).not.toMatch(/ZodError|["']node:/);
  // noVNC is a file of its own, with its notice and its licence.
  expect(texts.join('')).not.toContain('RFB');
  expect(await readFile(join(folder, 'novnc.js'), 'utf8')).toMatch(
    /^\/\*! noVNC [\d.]+, Mozilla Public License 2\.0/,
  );
  expect(await readFile(join(folder, 'novnc.LICENSE.txt'), 'utf8')).toContain('MPL 2.0');
});
