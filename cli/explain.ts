/**
 * Runs the command `explain`, which shows the fields of Berth's kinds. The descriptions come from the API server, so they match the release
 * that is installed in the cluster.
 */
import { GROUP } from '../api/v1alpha1/names.ts';
import { apiErrorFrom } from '../kube/errors.ts';
import { type UserCluster, withCluster } from './cluster.ts';
import { CommandError, EXIT } from './errors.ts';
import type { Globals } from './globals.ts';
import { print } from './output.ts';
import type { Terminal } from './terminal.ts';
import { printable } from './text.ts';

/** Path under which the API server gives the descriptions of all fields. Each signed-in user may read this path. */
const PATH = `/openapi/v3/apis/${GROUP}/v1alpha1`;

interface Schema {
  readonly type?: string;
  readonly description?: string;
  readonly enum?: readonly unknown[];
  readonly properties?: Readonly<Record<string, Schema>>;
  readonly required?: readonly string[];
  readonly items?: Schema;
  readonly additionalProperties?: Schema | boolean;
  readonly 'x-kubernetes-group-version-kind'?: readonly { readonly kind: string }[];
}

interface Field {
  readonly name: string;
  readonly type: string;
  readonly required: boolean;
  readonly description: string;
}

/** Writes the fields at a path, for example `vm.spec.disks`. @throws CommandError when the kind or the field does not exist; ApiError. */
export async function explain(terminal: Terminal, globals: Globals, path: string): Promise<void> {
  await withCluster(terminal, globals, async (cluster) => {
    const [word = '', ...names] = path.split('.');
    const kind = kindIn(await schemasOf(cluster, terminal.signal), word);
    const schema = names.reduce(
      (at, name, index) => fieldIn(at, name, [word, ...names.slice(0, index)]),
      kind,
    );
    const rows = fieldsOf(schema);
    if (globals.output !== 'table' && globals.output !== 'wide') {
      await print(terminal, globals.output, { rows, columns: [], itemOf: (row) => row });
      return;
    }
    const fields = rows.map(
      ({ name, type, required, description }) =>
        `\n  ${printable(name)} <${type}>${required ? ', required' : ''}\n    ${printable(description)}\n`,
    );
    terminal.out(`${path} <${typeOf(schema)}>\n${printable(schema.description ?? '')}\n${fields.join('')}`);
  });
}

async function schemasOf(
  { client }: UserCluster,
  signal: AbortSignal,
): Promise<Readonly<Record<string, Schema>>> {
  const { status, body } = await client.raw('GET', PATH, { signal });
  if (status >= 400) {
    throw apiErrorFrom(body, status);
  }
  return (body as { components?: { schemas?: Record<string, Schema> } }).components?.schemas ?? {};
}

/** Returns the schema of a kind. `word` is the singular or plural name of the kind. @throws CommandError when the kind does not exist. */
function kindIn(schemas: Readonly<Record<string, Schema>>, word: string): Schema {
  const kinds = Object.values(schemas).flatMap((schema) =>
    (schema['x-kubernetes-group-version-kind'] ?? [])
      .filter(({ kind }) => !kind.endsWith('List') && schema.properties?.['spec'] !== undefined)
      .map(({ kind }) => ({ name: kind.toLowerCase(), schema })),
  );
  const found = kinds.find(({ name }) =>
    [name, `${name}s`, name.replace(/y$/, 'ies')].includes(word.toLowerCase()),
  );
  if (found === undefined) {
    const names = kinds.map(({ name }) => name).join(', ');
    throw new CommandError(`There is no kind ${JSON.stringify(word)}. The kinds are ${names}`, EXIT.notFound);
  }
  return found.schema;
}

function fieldIn(schema: Schema, name: string, path: readonly string[]): Schema {
  const { properties = {} } = contentOf(schema);
  const field = Object.hasOwn(properties, name) ? properties[name] : undefined;
  if (field === undefined) {
    const names = Object.keys(properties).join(', ');
    const others = names === '' ? 'It has no fields' : `Its fields are ${names}`;
    throw new CommandError(
      `${path.join('.')} has no field ${JSON.stringify(name)}. ${others}`,
      EXIT.notFound,
    );
  }
  return field;
}

function fieldsOf(schema: Schema): Field[] {
  const { properties = {}, required = [] } = contentOf(schema);
  return Object.entries(properties).map(([name, field]) => ({
    name,
    type: typeOf(field),
    required: required.includes(name),
    description: field.description ?? '',
  }));
}

/** Returns the schema of the elements if the schema is for a list or a map. Otherwise returns the schema itself. */
function contentOf(schema: Schema): Schema {
  const { items, additionalProperties } = schema;
  return items ?? (typeof additionalProperties === 'object' ? additionalProperties : schema);
}

/** Returns the type as `kubectl explain` shows it. */
function typeOf(schema: Schema): string {
  const { type = 'Object', items, additionalProperties, enum: values } = schema;
  if (items !== undefined) {
    return `[]${typeOf(items)}`;
  }
  if (typeof additionalProperties === 'object') {
    return `map[string]${typeOf(additionalProperties)}`;
  }
  return values === undefined ? type.replace('object', 'Object') : values.join('|');
}
