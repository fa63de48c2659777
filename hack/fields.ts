/**
 * `make verify` checks test/fields.yaml with this program. The file names a test for every field of every kind's spec, so that no field
 * is without effect. A proof is `FILE: TITLE` with the title as the file has it. One of these words may precede it:
 *
 *     refused       the test shows that the API server refuses the field
 *     condition     the test shows a condition that says that the field has no effect
 *
 * `open: WHY` names a field that nothing proves yet. The program counts these fields.
 *
 * It also compares the tables of fields on each surface (api/v1alpha1/fields.ts and imagefields.ts) with the OpenAPI document and the flags
 * of the command.
 */
import { globSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { parse } from 'yaml';
import * as z from 'zod';
import { DEFAULT_DISPLAY_DPI_MAXIMUM } from '../api/v1alpha1/fields.ts';
import { kinds } from '../api/v1alpha1/kinds.ts';
import { createProgram } from '../cli/program.ts';
import { customResourceDefinition } from './crd.ts';
import { runCommand } from './command.ts';
import { type SurfaceDocument, surfaceMistakes, type Surfaces } from './docs/surfaces.ts';
import { fieldsOf, type JsonSchema } from './docs/table.ts';

const ROOT = join(import.meta.dirname, '..');
const TABLE = 'test/fields.yaml';
const OPENAPI = 'docs/reference/openapi.json';
const TEST_FILES = '{base,api,kube,operator,agent,runners,server,cli,hack,test}/**/*.test.ts';
/** Call of `test`, of `it`, or of the function that `it.each(…)` returns, perhaps with type arguments. The last group is the title. */
const TITLE = /(?:\b(?:test|it)(?:\.\w+)*(?:<[^(]*>)?|\))\(\s*(['"`])((?:\\.|(?!\1)[^\\])*)\1/g;

const tableSchema = z.record(z.string(), z.record(z.string(), z.string()));
/** Proofs by kind and field. */
export type FieldTable = z.infer<typeof tableSchema>;

/** Returns the fields of the spec of each kind that have no fields themselves, for example `placement.tag`. */
export function specFields(): Map<string, string[]> {
  return new Map(
    kinds(DEFAULT_DISPLAY_DPI_MAXIMUM).map((kind) => {
      const { spec } = customResourceDefinition(kind) as unknown as {
        spec: { versions: { schema: { openAPIV3Schema: { properties: { spec: JsonSchema } } } }[] };
      };
      const paths = fieldsOf(spec.versions[0]?.schema.openAPIV3Schema.properties.spec ?? {}).map(
        ({ path }) => path,
      );
      const isLeaf = (path: string): boolean =>
        !paths.some((other) => other.startsWith(`${path}.`) || other.startsWith(`${path}[]`));
      return [kind.kind, paths.filter(isLeaf)];
    }),
  );
}

/** Returns the titles of the tests in a file, as the file has them between the quotes. */
export function titlesOf(text: string): Set<string> {
  return new Set([...text.matchAll(TITLE)].map((match) => match[2] ?? ''));
}

/** Returns one line for each mistake in the table. `titles` has the titles of the tests by file. */
export function mistakesOf(
  table: FieldTable,
  fields: ReadonlyMap<string, readonly string[]>,
  titles: ReadonlyMap<string, ReadonlySet<string>>,
): string[] {
  const named = Object.entries(table).flatMap(([kind, proofs]) =>
    Object.keys(proofs)
      .filter((field) => fields.get(kind)?.includes(field) !== true)
      .map((field) => `${kind}.${field} is no field of a spec`),
  );
  const unproven = [...fields].flatMap(([kind, paths]) =>
    paths.flatMap((path) => {
      const fault = faultOf(table[kind]?.[path], titles);
      return fault === undefined ? [] : [`${kind}.${path} ${fault}`];
    }),
  );
  return [...named, ...unproven];
}

function faultOf(
  proof: string | undefined,
  titles: ReadonlyMap<string, ReadonlySet<string>>,
): string | undefined {
  if (proof === undefined) {
    return 'has no entry: name the test that shows its effect';
  }
  if (proof.startsWith('open: ')) {
    return undefined;
  }
  const [, file = '', title = ''] = /^(?:(?:refused|condition) )?(\S+\.test\.ts): (.*)$/.exec(proof) ?? [];
  return titles.get(file)?.has(title) === true ? undefined : `names no test: ${proof}`;
}

/** Returns the surfaces of this checkout. */
export async function readSurfaces(): Promise<Surfaces> {
  const terminal = {
    name: 'berth',
    environment: {},
    out: () => undefined,
    err: () => undefined,
    isForPeople: false,
    signal: new AbortController().signal,
  };
  const program = await createProgram(terminal, () => true);
  const document = JSON.parse(await readFile(join(ROOT, OPENAPI), 'utf8')) as SurfaceDocument;
  return { document, program, fields: specFields() };
}

async function main(): Promise<number> {
  const table = tableSchema.parse(parse(await readFile(join(ROOT, TABLE), 'utf8')));
  const titles = new Map<string, Set<string>>();
  for (const file of globSync(TEST_FILES, { cwd: ROOT })) {
    titles.set(file, titlesOf(await readFile(join(ROOT, file), 'utf8')));
  }
  const mistakes = [
    ...mistakesOf(table, specFields(), titles).map((mistake) => `${TABLE}: ${mistake}`),
    ...surfaceMistakes(await readSurfaces()).map((mistake) => `fields on each surface: ${mistake}`),
  ];
  for (const mistake of mistakes) {
    console.error(mistake);
  }
  const open = Object.entries(table).flatMap(([kind, proofs]) =>
    Object.entries(proofs)
      .filter(([, proof]) => proof.startsWith('open: '))
      .map(([field]) => `${kind}.${field}`),
  );
  if (open.length > 0) {
    console.log(`${TABLE}: ${open.length} fields without proof: ${open.join(', ')}`);
  }
  return mistakes.length === 0 ? 0 : 1;
}

if (import.meta.main) {
  await runCommand(main);
}
