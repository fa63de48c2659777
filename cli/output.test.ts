import { expect, it } from 'vitest';
import { type Format, print } from './output.ts';
import { makeTerminal } from '../test/fixtures/terminals.ts';

/** Returns the rows with these names in the format. */
async function printed(format: Format, ...names: string[]): Promise<string> {
  let text = '';
  const out = (more: string) => void (text += more);
  await print(makeTerminal({ out, err: out }), format, {
    rows: names,
    columns: [],
    itemOf: (name) => ({ name }),
  });
  return text;
}

it('quotes texts in YAML that programs with YAML 1.1 would read as other values', async () => {
  expect(await printed('yaml', 'no', '1_000', '2026-01-02')).toBe(
    '- name: "no"\n- name: "1_000"\n- name: "2026-01-02"\n',
  );
});

it('writes one line for each name, even if a server sends a name with a line break', async () => {
  expect(await printed('name', 'a\n--all\u001b[2J')).toBe('a --all [2J\n');
});
