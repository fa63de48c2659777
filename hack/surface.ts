/**
 * Prints all that a user can name or read in a checkout, a line each and sorted: fields of the kinds, paths and fields of the HTTP APIs,
 * commands and flags, metrics, reasons, settings and messages. The difference of two lists shows what a change adds or removes.
 *
 *   surface.ts [FOLDER]
 */
import { execFileSync } from 'node:child_process';
import { globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { parse } from 'yaml';
import { listMessages } from './messages.ts';

const root = process.argv[2] ?? join(import.meta.dirname, '..');
const read = (path: string): string => readFileSync(join(root, path), 'utf8');

interface Schema {
  readonly properties?: Readonly<Record<string, Schema>>;
  readonly items?: Schema;
  readonly additionalProperties?: Schema | boolean;
  readonly enum?: readonly string[];
}

/** Returns the paths of the fields of a schema, and their allowed words. */
function* fieldsOf(schema: Schema, path: string): Generator<string> {
  if (schema.enum !== undefined) {
    yield `${path}: ${schema.enum.join(' ')}`;
  }
  for (const [name, field] of Object.entries(schema.properties ?? {})) {
    yield `${path}.${name}`;
    yield* fieldsOf(field, `${path}.${name}`);
  }
  if (schema.items !== undefined) {
    yield* fieldsOf(schema.items, `${path}[]`);
  }
  if (typeof schema.additionalProperties === 'object') {
    yield* fieldsOf(schema.additionalProperties, `${path}{}`);
  }
}

interface Definition {
  readonly spec: {
    readonly scope: string;
    readonly names: { readonly kind: string; readonly shortNames?: readonly string[] };
    readonly versions: readonly {
      readonly schema: { readonly openAPIV3Schema: Schema };
      readonly additionalPrinterColumns?: readonly { readonly name: string }[];
    }[];
  };
}

function listKinds(): string[] {
  return globSync('crds/*.yaml', { cwd: root }).flatMap((file) => {
    const { spec } = parse(read(file)) as Definition;
    const { kind, shortNames = [] } = spec.names;
    return [
      `kind ${kind} (${spec.scope}) ${shortNames.join(' ')}`,
      ...spec.versions.flatMap((version) => [
        ...(version.additionalPrinterColumns ?? []).map(({ name }) => `column ${kind} ${name}`),
        ...[...fieldsOf(version.schema.openAPIV3Schema, kind)].map((field) => `field ${field}`),
      ]),
    ];
  });
}

interface Body {
  readonly content?: Readonly<Record<string, { readonly schema?: Schema }>>;
}

interface Operation {
  readonly parameters?: readonly { readonly in: string; readonly name: string }[];
  readonly requestBody?: Body;
  readonly responses?: Readonly<Record<string, Body>>;
}

function* bodyFields({ content = {} }: Body, path: string): Generator<string> {
  for (const { schema } of Object.values(content)) {
    yield* fieldsOf(schema ?? {}, path);
  }
}

function listPaths(): string[] {
  return globSync('docs/reference/*openapi.json', { cwd: root }).flatMap((file) => {
    const document = JSON.parse(read(file)) as {
      paths: Record<string, Record<string, Operation>>;
      components?: { schemas?: Record<string, Schema> };
    };
    const operations = Object.entries(document.paths).flatMap(([path, methods]) =>
      Object.entries(methods).flatMap(([method, { parameters = [], requestBody = {}, responses = {} }]) => [
        `path ${method.toUpperCase()} ${path}`,
        ...parameters.map((parameter) => `parameter ${method} ${path} ${parameter.in} ${parameter.name}`),
        ...bodyFields(requestBody, `body ${method} ${path} `),
        ...Object.entries(responses).flatMap(([code, body]) => [
          `answer ${method} ${path} ${code}`,
          ...bodyFields(body, `answer ${method} ${path} ${code} `),
        ]),
      ]),
    );
    const schemas = Object.entries(document.components?.schemas ?? {});
    return [...operations, ...schemas.flatMap(([name, schema]) => [...fieldsOf(schema, `body ${name}`)])];
  });
}

/** Returns the commands below one, with their flags, from their help. */
function* commandsBelow(parents: readonly string[]): Generator<string> {
  const help = execFileSync(process.execPath, ['cli/main.ts', ...parents, '--help'], {
    cwd: root,
    encoding: 'utf8',
    env: { ...process.env, COLUMNS: '200' },
  });
  const name = ['berth', ...parents].join(' ');
  yield `command ${/^Usage: .*$/m.exec(help)?.[0] ?? name}`;
  for (const [, flag] of help.matchAll(/^ {2}(-.*?)(?: {2}|$)/gm)) {
    yield `flag ${name} ${flag}`;
  }
  const commands = /\nCommands:\n([^]*?)(?:\n\n|$)/.exec(help)?.[1] ?? '';
  for (const [, command = ''] of commands.matchAll(/^ {2}([a-z][\w-]*)/gm)) {
    if (command !== 'help') {
      yield* commandsBelow([...parents, command]);
    }
  }
}

/** Returns the first cells of the tables of a page. */
function listRows(page: string): string[] {
  const rows = [...read(`docs/reference/${page}.md`).matchAll(/^\| (`[^|]*?) \|/gm)];
  return rows.map(([, cell]) => `${page} ${cell}`);
}

const lines = [
  ...listKinds(),
  ...listPaths(),
  ...commandsBelow([]),
  ...['configuration', 'metrics', 'reasons', 'values'].flatMap(listRows),
  ...listMessages(root).map((text) => `message ${text}`),
];
console.log([...new Set(lines.map((line) => line.replaceAll('\n', ' ')))].sort().join('\n'));
