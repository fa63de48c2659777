import { existsSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { beforeEach, describe, expect, it } from 'vitest';
import { type Mutant, mutate, productFiles, readMutants } from './definitions.ts';
import { makeFolder } from '../../test/support/folder.ts';

const ROOT = join(import.meta.dirname, '..', '..');
const FILE = { path: 'a.ts', text: 'function f() {\n  if (ready(x)) {\n    start();\n  }\n}\n' };
const MUTANT: Mutant = {
  id: 'early',
  breaks: 'It starts before it is ready.',
  text: 'if (ready(x)) {\n  start();\n}',
  becomes: 'start();\nstart();',
  project: 'unit',
  test: 'a.test.ts',
};

describe('a mutant', () => {
  it('changes the one place of its text, with any indentation', () => {
    const { path, mutated } = mutate(MUTANT, [{ path: 'b.ts', text: 'start();\n' }, FILE]);
    expect(path).toBe('a.ts');
    expect(mutated).toBe('function f() {\n  start();\n  start();\n}\n');
  });

  it('whose text is not found fails and says so', () => {
    const moved = { ...FILE, text: FILE.text.replace('ready', 'isReady') };
    expect(() => mutate(MUTANT, [moved])).toThrow(
      'early: its text stands in no product file: "if (ready(x)) {"',
    );
  });

  it('whose text is found twice fails with both places', () => {
    expect(() => mutate(MUTANT, [FILE, { ...FILE, path: 'b.ts' }])).toThrow(
      'early: its text stands 2 times: a.ts:2, b.ts:2',
    );
  });

  it('that changes nothing fails', () => {
    expect(() => mutate({ ...MUTANT, text: 'start();', becomes: 'start();' }, [FILE])).toThrow(
      'early: becomes what it is',
    );
  });

  describe('in a file', () => {
    let folder: string;
    beforeEach(() => {
      folder = makeFolder();
    });

    const entry = (id: string): string =>
      `- {id: ${id}, breaks: All., text: a, becomes: b, project: unit, test: a.test.ts}\n`;

    it('has the name of the file before its own, and is chosen by a part of both', async () => {
      await writeFile(join(folder, 'part.yaml'), `${entry('two')}${entry('one')}`);
      await writeFile(join(folder, 'other.yaml'), entry('two'));
      expect(readMutants('', folder).map(({ id }) => id)).toEqual(['other/two', 'part/one', 'part/two']);
      expect(readMutants('part/', folder).map(({ id }) => id)).toEqual(['part/one', 'part/two']);
    });

    it('that lacks a key, or has an unknown key, is refused with the name of its file', async () => {
      await writeFile(join(folder, 'one.yaml'), '- {id: a, breaks: All., text: a, tesd: a.test.ts}\n');
      expect(() => readMutants('', folder)).toThrow(/one\.yaml: [^]*tesd[^]*becomes/);
    });

    it('that has the id of another is refused', async () => {
      await writeFile(join(folder, 'one.yaml'), `${entry('two')}${entry('two')}`);
      expect(() => readMutants('', folder)).toThrow(/one\.yaml: [^]*Two mutants have the id "two"/);
    });
  });
});

describe('each mutant of test/mutants', () => {
  const files = productFiles();

  it.each(readMutants().map((mutant) => [mutant.id, mutant] as const))('applies: %s', (_, mutant) => {
    expect(() => mutate(mutant, files)).not.toThrow();
    expect(existsSync(join(ROOT, mutant.test)), `${mutant.test} is there`).toBe(true);
  });
});
