/**
 * Mutants: small changes of the product that its tests must detect, in a YAML list for each wing in test/mutants. The place of a mutant is a
 * text that occurs exactly once in the product. A mutant has no file and line, so that it stays valid when code moves.
 */
import { execFileSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { basename, join, relative } from 'node:path';
import { parse } from 'yaml';
import * as z from 'zod';

const ROOT = join(import.meta.dirname, '..', '..');
const MUTANTS = join(ROOT, 'test', 'mutants');
/** Folders with product code. Other files are tests or tools, or are generated from these folders. */
const PRODUCT = [
  'base',
  'api',
  'kube',
  'actions',
  'operator',
  'agent',
  'runners',
  'server',
  'cli',
  'charts/berth',
];
const NOT_PRODUCT = /\.test\.ts$|^charts\/berth\/(files\/crds\/|tests\/|values\.schema\.json$)/;

const mutantSchema = z.strictObject({
  /** Name of the mutant, unique in its file. */
  id: z.string().min(1),
  /** Fault of the changed product, for people. */
  breaks: z.string().min(1),
  /** Original text: lines of one product file, with any indentation. */
  text: z.string().min(1),
  /** Text that replaces the original. */
  becomes: z.string(),
  /** Tests that must fail: a project, a file of tests, and optionally a part of the tests' names. */
  project: z.string().min(1),
  test: z.string().min(1),
  name: z.string().min(1).optional(),
});

const fileSchema = z.array(mutantSchema).superRefine((mutants, context) => {
  const ids = mutants.map(({ id }) => id);
  for (const id of ids.filter((one, index) => ids.indexOf(one) !== index)) {
    context.addIssue({ code: 'custom', message: `Two mutants have the id ${JSON.stringify(id)}` });
  }
});

/** A mutant whose id begins with the name of its file, as in `agent/pods/five-on-four`. */
export type Mutant = z.infer<typeof mutantSchema>;

/** Product file with its content. */
export interface SourceFile {
  readonly path: string;
  readonly text: string;
}

/** Product file with its content before and after the change. */
export interface Mutation extends SourceFile {
  readonly mutated: string;
}

/**
 * Reads the mutants of the files in `folder` whose id contains `part`, in the order of their ids.
 *
 * @throws Error that names the file and its mistake
 */
export function readMutants(part = '', folder: string = MUTANTS): Mutant[] {
  return readdirSync(folder)
    .filter((name) => name.endsWith('.yaml'))
    .flatMap((name) => readFile(join(folder, name)))
    .filter(({ id }) => id.includes(part))
    .sort((a, b) => (a.id < b.id ? -1 : 1));
}

function readFile(path: string): Mutant[] {
  const result = fileSchema.safeParse(parse(readFileSync(path, 'utf8')));
  if (!result.success) {
    throw new Error(`${relative(ROOT, path)}: ${z.prettifyError(result.error)}`);
  }
  return result.data.map((mutant) => ({ ...mutant, id: `${basename(path, '.yaml')}/${mutant.id}` }));
}

/** Returns the files of the work tree at `root`, including uncommitted files, without ignored files. */
export function workTree(root: string): string[] {
  const list = ['ls-files', '--cached', '--others', '--exclude-standard', '-z'];
  const output = execFileSync('git', list, { cwd: root, encoding: 'utf8', maxBuffer: 64 * 2 ** 20 });
  return [...new Set(output.split('\0'))].filter((path) => path !== '' && existsSync(join(root, path)));
}

/** Returns the product's files of the work tree at `root`. */
export function productFiles(root: string = ROOT): SourceFile[] {
  return workTree(root)
    .filter((path) => PRODUCT.some((folder) => path.startsWith(`${folder}/`)) && !NOT_PRODUCT.test(path))
    .map((path) => ({ path, text: readFileSync(join(root, path), 'utf8') }));
}

/**
 * Applies a mutant to the one place that it changes.
 *
 * @throws Error when its text occurs nowhere or more than once in the files, or when nothing would change
 */
export function mutate({ id, text, becomes }: Mutant, files: readonly SourceFile[]): Mutation {
  const pattern = parsePattern(text);
  const found = files.flatMap((file) => [...file.text.matchAll(pattern)].map((match) => ({ file, match })));
  const [only, ...others] = found;
  if (only === undefined) {
    throw new Error(`${id}: its text stands in no product file: ${firstLine(text)}`);
  }
  if (others.length > 0) {
    const places = found.map(({ file, match }) => `${file.path}:${lineNumberAt(file.text, match.index)}`);
    throw new Error(`${id}: its text stands ${found.length} times: ${places.join(', ')}`);
  }
  const { file, match } = only;
  const [before = ''] = /[^\n]*$/.exec(file.text.slice(0, match.index)) ?? [];
  const indent = before.replaceAll(/\S/g, ' ');
  const changed = becomes.trimEnd().replaceAll('\n', `\n${indent}`);
  const mutated = `${file.text.slice(0, match.index)}${changed}${file.text.slice(match.index + match[0].length)}`;
  if (mutated === file.text) {
    throw new Error(`${id}: becomes what it is: ${firstLine(text)}`);
  }
  return { ...file, mutated };
}

/** Returns a pattern for consecutive lines with any indentation. */
function parsePattern(text: string): RegExp {
  const lines = text.trim().split('\n');
  return new RegExp(lines.map((line) => literally(line.trim())).join(String.raw`[ \t]*\n[ \t]*`), 'g');
}

/** Returns the source of a regular expression that matches exactly this text. */
export function literally(text: string): string {
  return text.replaceAll(/[\\^$.*+?()[\]{}|]/g, String.raw`\$&`);
}

function firstLine(text: string): string {
  return JSON.stringify(text.trim().split('\n')[0]);
}

function lineNumberAt(text: string, offset: number): number {
  return text.slice(0, offset).split('\n').length;
}
