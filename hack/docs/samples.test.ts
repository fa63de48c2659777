/** Samples of YAML, of values and of commands in the pages: the kinds, the chart and the command accept them. */
import { globSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import type { Command } from 'commander';
import { expect, test } from 'vitest';
import { parse, parseAllDocuments } from 'yaml';
import { DEFAULT_DISPLAY_DPI_MAXIMUM } from '../../api/v1alpha1/fields.ts';
import { kinds } from '../../api/v1alpha1/kinds.ts';
import { API_VERSION } from '../../api/v1alpha1/names.ts';
import { createProgram } from '../../cli/program.ts';
import { merged } from '../../test/fixtures/valuechanges.ts';
import { valuesSchema } from '../values/schema.ts';
import { makeTerminal } from '../../test/fixtures/terminals.ts';

const ROOT = join(import.meta.dirname, '..', '..');
const PAGES = globSync(['*.md', 'docs/**/*.md', 'charts/berth/*.md'], { cwd: ROOT });
/** Scripts and settings for CI systems. */
const CI_EXAMPLES = globSync('examples/ci/*/*', { cwd: ROOT });
const DEFAULTS: unknown = parse(readFileSync(join(ROOT, 'charts/berth/values.yaml'), 'utf8'));

/** Key in the place of `AAAA…`, which stands for the reader's own key. */
const KEY = 'AAAAC3NzaC1lZDI1NTE5AAAAIH/6AldVZMgKzdpN/7fKOWjZTQtS+96l9mSnKXwD+P14';
/** Source of an Image whose sample shows other fields. */
const SOURCE = { empty: { size: '1Gi' } };

interface Block {
  readonly page: string;
  readonly text: string;
}

/** Returns the blocks of all pages in the language, without their indentation. */
function blocks(language: string): Block[] {
  const pattern = new RegExp(`^( *)\`\`\`${language}\\b.*\\n([\\s\\S]*?)^ *\`\`\``, 'gm');
  return PAGES.flatMap((page) =>
    [...readFileSync(join(ROOT, page), 'utf8').matchAll(pattern)].map(([, indentation = '', text = '']) => ({
      page,
      text: text.replaceAll(new RegExp(`^${indentation}`, 'gm'), ''),
    })),
  );
}

interface Sample {
  readonly page: string;
  readonly object: Readonly<Record<string, unknown>>;
}

const SAMPLES: readonly Sample[] = blocks('yaml').flatMap(({ page, text }) =>
  parseAllDocuments(text.replaceAll('AAAA…', KEY)).map((document) => ({
    page,
    object: document.toJS() as Sample['object'],
  })),
);
const OBJECTS = SAMPLES.filter(({ object }) => object['apiVersion'] === API_VERSION);
/** Samples of the fields of a VM, a VMConfig, an Image or another kind. */
const FRAGMENTS = SAMPLES.filter(({ object }) => Object.keys(object).join() === 'spec');
/** Samples that have only keys of the chart. Files of the programs have other keys. */
const VALUES = SAMPLES.filter(({ object }) =>
  Object.keys(object).every((key) => Object.keys(DEFAULTS as object).includes(key)),
);
const SETTINGS = blocks('sh').flatMap(({ page, text }) =>
  [...text.matchAll(/--set(?:-string|-json)? '?"?((?:[^\s='"\\]|\\.)+)=/g)].map(([, path = '']) => ({
    page,
    path,
  })),
);

/** Calls of the command `berth`, each as its words. */
const CALLS = [
  ...blocks('sh').flatMap(({ page, text }) => callsIn(page, text, /^ *(?:dist\/)?berth ([^#|&>\n]+)/gm)),
  ...PAGES.flatMap((page) => callsIn(page, readFileSync(join(ROOT, page), 'utf8'), /`berth ([^`\n]+)`/g)),
  ...CI_EXAMPLES.flatMap((file) => callsOfExample(file)),
];

/** Returns the calls in a script or in settings. Settings have the words as a list. */
function callsOfExample(file: string): { page: string; call: string }[] {
  const text = readFileSync(join(ROOT, file), 'utf8')
    .replaceAll(/^ *(#|\/\/).*$/gm, '')
    .replaceAll('\\\n', ' ');
  const lists = [...text.matchAll(/\[(?:"berth", )?("?(?:vm|gitlab)"?, [^\]]*)\]/g)];
  return [
    ...callsIn(file, text, /(?<![\w/.-])berth ((?:vm|pool|secret) [^#|&>\n]+)/g),
    ...lists.map(([, list = '']) => ({ page: file, call: list.replaceAll('"', '').replaceAll(/, */g, ' ') })),
  ];
}

function callsIn(page: string, text: string, pattern: RegExp): { page: string; call: string }[] {
  return [...text.matchAll(pattern)].map(([, call = '']) => ({ page, call: call.trim() }));
}

/** Returns the command of the program that the words call, and the words that follow its name. */
function commandOf(program: Command, args: readonly string[]): { command: Command; rest: readonly string[] } {
  const [first = ''] = args;
  const next = program.commands.find((one) => one.name() === first || one.aliases().includes(first));
  return next === undefined ? { command: program, rest: args } : commandOf(next, args.slice(1));
}

test('the pages have samples of each sort', () => {
  for (const { length } of [OBJECTS, FRAGMENTS, VALUES, SETTINGS, CALLS]) {
    expect(length).toBeGreaterThan(5);
  }
});

test.each(OBJECTS)(
  'a sample of a kind in $page has only fields of the kind, with allowed values',
  ({ object }) => {
    const kind = kinds(DEFAULT_DISPLAY_DPI_MAXIMUM).find((each) => each.kind === object['kind']);
    const { data, error } =
      kind?.spec.safeParse(object['spec']) ?? expect.fail(`no kind ${String(object['kind'])}`);
    expect(error?.issues).toBeUndefined();
    // The schema leaves out unknown fields, which the API server refuses.
    expect(data).toMatchObject(object['spec'] as object);
  },
);

test.each(FRAGMENTS)('the sample $object in $page has only fields of one kind', ({ object: { spec } }) => {
  const parsed = kinds(DEFAULT_DISPLAY_DPI_MAXIMUM).flatMap((kind) =>
    [spec, { source: SOURCE, ...(spec as object) }].map((one) => kind.spec.safeParse(one).data),
  );
  expect(parsed).toContainEqual(expect.objectContaining(spec as object));
});

test.each(VALUES)('a sample of values in $page has only values of the chart', ({ object }) => {
  expect(valuesSchema.safeParse(merged(DEFAULTS, object)).error?.issues).toBeUndefined();
});

test.each(SETTINGS)('$page sets $path, which the chart has', ({ path }) => {
  // An element of a list has no name.
  const [before = ''] = path.split('[');
  const keys = before.split(/(?<!\\)\./).map((key) => key.replaceAll('\\', ''));
  const values = keys.reduceRight<unknown>((inner, key) => ({ [key]: inner }), undefined);
  const issues = valuesSchema.safeParse(merged(DEFAULTS, values)).error?.issues ?? [];
  expect(issues.filter(({ code }) => code === 'unrecognized_keys')).toEqual([]);
});

test('there are calls in the examples for most CI systems', () => {
  const systems = new Set(CI_EXAMPLES.filter((file) => callsOfExample(file).length > 0).map(dirname));
  expect(systems.size).toBeGreaterThan(6);
});

test('the command has each verb and flag of the pages and examples', async () => {
  const program = await createProgram(makeTerminal(), () => true);
  const wrong = CALLS.filter(({ call }) => {
    const { command, rest } = commandOf(program, call.split(' -- ')[0]?.split(/\s+/) ?? []);
    const flags = rest.filter((word) => /^-+[a-z]/.test(word)).map((word) => word.split('=')[0]);
    const known = [...command.options, ...program.options].flatMap(({ long, short }) => [
      long,
      short,
      '--help',
    ]);
    const isUnknown = command.commands.length > 0 && !/^(--help|help|NOUN|$)/.test(rest[0] ?? '');
    return isUnknown || flags.some((flag) => !known.includes(flag));
  });
  expect(wrong).toEqual([]);
});
