import { execFileSync } from 'node:child_process';
import { mkdir, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { expect, test } from 'vitest';
import { makeFolder } from '../test/support/folder.ts';

const ROOT = join(import.meta.dirname, '..');

function structure(...parameters: string[]): string {
  return execFileSync(process.execPath, ['hack/structure.ts', ...parameters], {
    cwd: ROOT,
    encoding: 'utf8',
  });
}

const SHARED_LINES = Array.from({ length: 6 }, (_, index) => `  keep(${index}, 'text');`).join('\n');
const FILES = {
  'base/time.ts': `import { VM } from '../api/vm.ts';\nexport type Clock = VM;\n${SHARED_LINES}\n`,
  'api/vm.ts': `import { Clock } from '../base/time.ts';\nexport interface VM {}\n${SHARED_LINES}\n`,
  'cli/main.ts': "import { VM } from '../api/vm.ts';\nexport class Clock {}\n",
  'cli/main.test.ts': "import '../base/time.ts';\nexport type VM = undefined;\n",
};

test('the counts of a checkout', async () => {
  const folder = makeFolder();
  for (const [path, text] of Object.entries(FILES)) {
    await mkdir(join(folder, dirname(path)), { recursive: true });
    await writeFile(join(folder, path), text);
  }
  execFileSync('git', ['init', '--quiet'], { cwd: folder });
  execFileSync('git', ['add', '.'], { cwd: folder });
  const lines = structure(folder, '--word=Clock').split('\n');
  expect(lines).toEqual(
    expect.arrayContaining([
      '| base | 1 | 8 | 1 |',
      '| api | 1 | 8 | 0 |',
      '| cli | 1 | 2 | 0 |',
      '| all | 3 | 18 | 1 |',
      'imports that go up: 1',
      '  base/time.ts -> api/vm.ts',
      'folders with circles inside: 1',
      '  /: api base',
      'names of several exported types: 1',
      '  Clock: base/time.ts cli/main.ts',
      'copies of 6 lines or more: 1, 6 lines',
      'Clock: 3 files, 3 of them production: api/vm.ts base/time.ts cli/main.ts',
    ]),
  );
});

test('in this checkout no import goes up, and no two exported types have one name', () => {
  const lines = structure().split('\n');
  expect(lines).toContain('imports that go up: 0');
  expect(lines).toContain('names of several exported types: 0');
});
