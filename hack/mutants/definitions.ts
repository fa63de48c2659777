/**
 * Mutants: small changes that the product must not survive, one YAML file each in test/mutants. A mutant is known by a
 * text that stands exactly once in the product, not by file and line, so that it survives moves of the code.
 */
import { execFileSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join, relative } from 'node:path';
import { parse } from 'yaml';
import * as z from 'zod';

const ROOT = join(import.meta.dirname, '..', '..');
const MUTANTS = join(ROOT, 'test', 'mutants');
/** Where product code is looked for. The rest is tests, tools, or made from these. */
const PRODUCT = ['base', 'api', 'kube', 'operator', 'agent', 'charts/berth'];
const NOT_PRODUCT = /\.test\.ts$|^charts\/berth\/(files\/crds\/|tests\/|values\.schema\.json$)/;

const mutantSchema = z.strictObject({
  /** What the changed product does wrong, for people. */
  breaks: z.string().min(1),
  /** As it is: lines of one product file, indented as deep as one likes. */
  text: z.string().min(1),
  /** As it must not be. */
  becomes: z.string(),
  /** What must turn red: a project and a file of tests, and a part of the names of tests in it. */
  project: z.string().min(1),
  test: z.string().min(1),
  name: z.string().min(1).optional(),
});

export type Mutant = z.infer<typeof mutantSchema> & {
  /** Its path below test/mutants, without `.yaml`. */
  readonly id: string;
};

/** A product file and its content. */
export interface SourceFile {
  readonly path: string;
  readonly text: string;
}

/** A product file, and its text as a mutant makes it. */
export interface Mutation extends SourceFile {
  readonly mutated: string;
}

/**
 * The mutants below `folder` in the order of their names, those whose id has `part` in it.
 * @throws Error that names the file and its mistake
 */
export function readMutants(part = '', folder: string = MUTANTS): Mutant[] {
  return readdirSync(folder, { recursive: true, encoding: 'utf8' })
    .filter((path) => path.endsWith('.yaml'))
    .sort()
    .map((path) => readMutant(join(folder, path), path.slice(0, -'.yaml'.length)))
    .filter(({ id }) => id.includes(part));
}

function readMutant(path: string, id: string): Mutant {
  const result = mutantSchema.safeParse(parse(readFileSync(path, 'utf8')));
  if (!result.success) {
    throw new Error(`${relative(ROOT, path)}: ${z.prettifyError(result.error)}`);
  }
  return { ...result.data, id };
}

/** The files of the work tree at `root` that belong to it, with those that are not committed yet. */
export function workTree(root: string): string[] {
  const list = ['ls-files', '--cached', '--others', '--exclude-standard', '-z'];
  const output = execFileSync('git', list, { cwd: root, encoding: 'utf8', maxBuffer: 64 * 2 ** 20 });
  return [...new Set(output.split('\0'))].filter((path) => path !== '' && existsSync(join(root, path)));
}

/** The product's files of the work tree at `root`. */
export function productFiles(root: string = ROOT): SourceFile[] {
  return workTree(root)
    .filter((path) => PRODUCT.some((folder) => path.startsWith(`${folder}/`)) && !NOT_PRODUCT.test(path))
    .map((path) => ({ path, text: readFileSync(join(root, path), 'utf8') }));
}

/**
 * The one place that a mutant changes, changed.
 * @throws Error when its text stands nowhere in the files, or more than once, or nothing would change
 */
export function mutate({ id, text, becomes }: Mutant, files: readonly SourceFile[]): Mutation {
  const pattern = patternOf(text);
  const found = files.flatMap((file) => [...file.text.matchAll(pattern)].map((match) => ({ file, match })));
  const [only, ...others] = found;
  if (only === undefined) {
    throw new Error(`${id}: its text stands in no product file: ${firstLine(text)}`);
  }
  if (others.length > 0) {
    const places = found.map(({ file, match }) => `${file.path}:${lineOf(file.text, match.index)}`);
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

/** The lines of a text one below the other, whatever their indentation. */
function patternOf(text: string): RegExp {
  const lines = text.trim().split('\n');
  return new RegExp(lines.map((line) => literally(line.trim())).join(String.raw`[ \t]*\n[ \t]*`), 'g');
}

/** The source of a regular expression that matches this text. */
export function literally(text: string): string {
  return text.replaceAll(/[\\^$.*+?()[\]{}|]/g, String.raw`\$&`);
}

function firstLine(text: string): string {
  return JSON.stringify(text.trim().split('\n')[0]);
}

function lineOf(text: string, offset: number): number {
  return text.slice(0, offset).split('\n').length;
}
