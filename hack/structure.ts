/**
 * Prints counts of the structure of a checkout: files and lines for each wing, files with one importer, imports that go up, folders in
 * circles, copies, names that several exported types share, and the files that name a word.
 *
 *   structure.ts [FOLDER] [--word=WORD]...
 */
import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { dirname, join, normalize } from 'node:path';
import { parseArgs } from 'node:util';
import { findArrowUp, WINGS } from './lint/layers.ts';
import { table } from './docs/table.ts';

/** Lines that two places must share to count as copies. */
const COPY_LINES = 6;
const IMPORT = /(?:\bfrom |\bimport\(|^import )'(\.[^']+)'/gm;
const EXPORTED_TYPE = /^export (?:abstract )?(?:class|interface|type) (\w+)/gm;
/** Lines that say too little to be a copy: blank lines, comments, imports and punctuation. */
const THIN = /^(?:$|\/\/|\/?\*|import\b|export \{|\} from|[\]{}(),;:.<>|&?=\s]*$)/;

interface Source {
  readonly path: string;
  readonly text: string;
  /** Files that this file imports. */
  readonly imports: readonly string[];
}

/** Returns the production files of a checkout: TypeScript in a wing, also with elements of pages (`.tsx`), without tests. */
function readSources(root: string): Source[] {
  const paths = execFileSync('git', ['ls-files', '-z', '*.ts', '*.tsx'], {
    cwd: root,
    encoding: 'utf8',
  }).split('\0');
  // Git also lists a file that was deleted since the last commit.
  const wanted = paths
    .filter((path) => {
      const [wing = ''] = path.split('/');
      return wing !== 'test' && WINGS[wing] !== undefined && !/\.test\.tsx?$/.test(path);
    })
    .filter((path) => existsSync(join(root, path)));
  const known = new Set(wanted);
  return wanted.map((path) => {
    const text = readFileSync(join(root, path), 'utf8');
    const targets = [...text.matchAll(IMPORT)].map(([, to = '']) => normalize(join(dirname(path), to)));
    return { path, text, imports: [...new Set(targets)].filter((to) => known.has(to) && to !== path) };
  });
}

const wingOf = (path: string): string => path.split('/')[0] ?? '';
const countLines = (text: string): number => text.split('\n').length - 1;

/** Returns the table of the wings. */
function describeWings(sources: readonly Source[]): string {
  const importers = new Map<string, number>();
  for (const to of sources.flatMap(({ imports }) => imports)) {
    importers.set(to, (importers.get(to) ?? 0) + 1);
  }
  const row = (name: string, files: readonly Source[]): string[] => [
    name,
    String(files.length),
    String(files.reduce((total, { text }) => total + countLines(text), 0)),
    String(files.filter(({ path }) => importers.get(path) === 1).length),
  ];
  const wings = Object.keys(WINGS).map((wing): readonly [string, Source[]] => [
    wing,
    sources.filter(({ path }) => wingOf(path) === wing),
  ]);
  const rows = wings.filter(([, files]) => files.length > 0).map(([wing, files]) => row(wing, files));
  const programs = sources.filter(({ path }) => wingOf(path) !== 'hack');
  return table(
    ['wing', 'files', 'lines', 'files with one importer'],
    [...rows, row('all', sources), row('all without hack', programs)],
  );
}

/** Returns the imports that go up, by the layers of this project. */
function findArrowsUp(sources: readonly Source[]): string[] {
  return sources.flatMap(({ path, imports }) =>
    imports.filter((to) => findArrowUp(path, to) !== undefined).map((to) => `${path} -> ${to}`),
  );
}

/** Returns the folders that import one another in a circle, with the folder that contains them. */
function findCircles(sources: readonly Source[]): string[] {
  const folders = new Set(
    sources.flatMap(({ path }) => path.split('/').map((_, index, parts) => parts.slice(0, index).join('/'))),
  );
  return [...folders].flatMap((folder) => circlesIn(folder, sources));
}

function circlesIn(folder: string, sources: readonly Source[]): string[] {
  const prefix = folder === '' ? '' : `${folder}/`;
  // A file of the folder itself is a place of its own.
  const child = (path: string): string => path.slice(prefix.length).split('/')[0] ?? '';
  const arrows = new Map<string, Set<string>>();
  for (const { path, imports } of sources.filter((source) => source.path.startsWith(prefix))) {
    for (const to of imports.filter((each) => each.startsWith(prefix) && child(each) !== child(path))) {
      arrows.set(child(path), (arrows.get(child(path)) ?? new Set()).add(child(to)));
    }
  }
  const reachable = (from: string): Set<string> => {
    const seen = new Set<string>();
    const left = [...(arrows.get(from) ?? [])];
    for (let next = left.pop(); next !== undefined; next = left.pop()) {
      if (!seen.has(next)) {
        seen.add(next);
        left.push(...(arrows.get(next) ?? []));
      }
    }
    return seen;
  };
  const inCircle = [...arrows.keys()].filter((name) => reachable(name).has(name)).sort();
  return inCircle.length === 0 ? [] : [`${folder || '/'}: ${inCircle.join(' ')}`];
}

/** Returns how many pairs of places share at least six lines, and the lines that the second places have. */
function countCopies(sources: readonly Source[]): { pairs: number; lines: number } {
  const seen = new Map<string, string>();
  let pairs = 0;
  let lines = 0;
  for (const { path, text } of sources) {
    const telling = text.split('\n').map((line) => line.trim());
    const kept = telling.filter((line) => !THIN.test(line));
    let run = 0;
    for (let index = 0; index + COPY_LINES <= kept.length; index += 1) {
      const window = kept.slice(index, index + COPY_LINES).join('\n');
      const isCopy = seen.has(window);
      seen.set(window, path);
      pairs += isCopy && run === 0 ? 1 : 0;
      lines += isCopy ? (run === 0 ? COPY_LINES : 1) : 0;
      run = isCopy ? run + 1 : 0;
    }
  }
  return { pairs, lines };
}

/** Returns the names that exported types of several files share, with the files. Such a name does not say which type is meant. */
function findSharedTypes(sources: readonly Source[]): string[] {
  const types = sources.flatMap(({ path, text }) =>
    [...text.matchAll(EXPORTED_TYPE)].map(([, name = '']) => ({ name, path })),
  );
  const shared = [...Map.groupBy(types, ({ name }) => name)].filter(([, { length }]) => length > 1);
  return shared.map(([name, places]) => `${name}: ${places.map(({ path }) => path).join(' ')}`);
}

/** Returns the files of a checkout that contain a word, production files first. */
function findWord(root: string, word: string): string {
  const files = execFileSync('git', ['grep', '-lwF', word], { cwd: root, encoding: 'utf8' })
    .trim()
    .split('\n');
  const isProduction = (path: string): boolean =>
    wingOf(path) !== 'test' && WINGS[wingOf(path)] !== undefined && /(?<!\.test)\.ts$/.test(path);
  const production = files.filter(isProduction);
  return `${word}: ${files.length} files, ${production.length} of them production: ${production.join(' ')}`;
}

const { values, positionals } = parseArgs({
  options: { word: { type: 'string', multiple: true, default: [] } },
  allowPositionals: true,
});
const root = positionals[0] ?? join(import.meta.dirname, '..');
const sources = readSources(root);
const list = (title: string, lines: readonly string[]): void =>
  console.log(`${title}: ${lines.length}${lines.map((line) => `\n  ${line}`).join('')}`);
const copies = countCopies(sources);
console.log(describeWings(sources));
console.log('');
list('imports that go up', findArrowsUp(sources));
list('folders with circles inside', findCircles(sources));
list('names of several exported types', findSharedTypes(sources));
console.log(`copies of ${COPY_LINES} lines or more: ${copies.pairs}, ${copies.lines} lines`);
for (const word of values.word) {
  console.log(findWord(root, word));
}
