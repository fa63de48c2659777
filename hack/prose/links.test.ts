/** Checks that links of the docs, and names of docs in the programs, lead to a target. */
import { existsSync, globSync, readFileSync } from 'node:fs';
import { dirname, join, normalize } from 'node:path';
import { expect, test } from 'vitest';
import { anchorOf, readPage } from './rules.ts';

const ROOT = join(import.meta.dirname, '..', '..');
const PAGES = globSync(['*.md', 'docs/**/*.md'], { cwd: ROOT });
const SOURCES = globSync(
  ['{base,api,kube,operator,agent,runners,server,cli,hack,test,charts}/**/*.{ts,yaml,txt,tpl}', 'Makefile'],
  {
    cwd: ROOT,
  },
);

function read(file: string): string {
  return readFileSync(join(ROOT, file), 'utf8');
}

function anchorsOf(file: string): string[] {
  return read(file)
    .split('\n')
    .filter((line) => /^#+ /.test(line))
    .map((line) => anchorOf(line.replace(/^#+ /, '')));
}

test.each(PAGES)('every link of %s leads to a file and a heading', (page) => {
  const broken = readPage(read(page)).links.filter(({ target }) => {
    const [path = '', anchor] = target.split('#');
    const file = path === '' ? page : normalize(join(dirname(page), path));
    const isHere = existsSync(join(ROOT, file)) && (anchor === undefined || anchorsOf(file).includes(anchor));
    return !/^https?:/.test(target) && !isHere;
  });
  expect(broken).toEqual([]);
});

test('pages of docs that programs, tests and the chart name exist', () => {
  const named = SOURCES.flatMap((file) =>
    [...read(file).matchAll(/(?<![\w/.])docs\/[\w/-]+\.md/g)].map(([page]) => ({ file, page })),
  );
  expect(named.length).toBeGreaterThan(5);
  expect(named.filter(({ page }) => !existsSync(join(ROOT, page)))).toEqual([]);
});

test.each([
  ['page of docs', 'docs/**/*.md'],
  ['example', 'examples/*.yaml'],
])('README.md links to each %s', (_subject, pattern) => {
  const linked = new Set(readPage(read('README.md')).links.map(({ target }) => target));
  const files = globSync(pattern, { cwd: ROOT });
  expect(files.length).toBeGreaterThan(5);
  expect(files.filter((file) => !linked.has(file))).toEqual([]);
});

test('files and folders of the source that pages name exist', () => {
  const named = PAGES.flatMap((page) =>
    [
      ...read(page).matchAll(
        /`((?:base|api|kube|operator|agent|runners|server|cli|hack|test|charts|docs|crds|examples)\/[\w./-]*(?:\.\w+|\/))`/g,
      ),
    ].map(([, path = '']) => ({ page, path })),
  );
  expect(named.length).toBeGreaterThan(20);
  expect(named.filter(({ path }) => !existsSync(join(ROOT, path)))).toEqual([]);
});
