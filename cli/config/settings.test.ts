import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { change } from './settings.ts';

let folder: string;

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-settings-'));
});

afterEach(async () => await rm(folder, { recursive: true }));

/** Returns the text that the command writes to the error stream. */
async function warning(apiURL: string, isForPeople: boolean): Promise<string> {
  let text = '';
  const { signal } = new AbortController();
  const err = (more: string) => void (text += more);
  const out = () => undefined;
  await change(
    { name: 'berth', environment: { HOME: folder }, out, err, isForPeople, signal },
    { output: 'table' },
    apiURL,
  );
  return text;
}

it('warns a person whose token would go through the network without TLS', async () => {
  expect(await warning('http://berth.example', true)).toContain('could read your token');
  expect(await warning('https://berth.example', true)).toBe('');
  expect(await warning('http://berth.example', false)).toBe('');
});
