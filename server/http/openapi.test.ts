import { pino } from 'pino';
import { afterAll, beforeAll, expect, it } from 'vitest';
import * as z from 'zod';
import { loadConfig } from '../config.ts';
import { assemble } from '../server.ts';
import { createApp } from './app.ts';
import { addDocument } from './openapi.ts';

interface Parameter {
  readonly name: string;
  readonly in: string;
  readonly description?: string;
  readonly example?: string;
}

/** What the page shows before its operations. */
interface Guide {
  readonly info: { readonly description: string };
  readonly tags: readonly { readonly name: string; readonly description?: string }[];
}

interface Operation {
  readonly operationId: string;
  readonly summary?: string;
  readonly description?: string;
  readonly tags: readonly string[];
  readonly parameters?: readonly Parameter[];
  readonly responses: Readonly<Record<string, { readonly description?: string; readonly $ref?: string }>>;
  readonly requestBody?: {
    readonly content: Readonly<
      Record<string, { readonly example?: object; readonly schema: { readonly properties?: object } }>
    >;
  };
}

let server: Awaited<ReturnType<typeof assemble>>;
let operations: Record<string, Operation>;
let text: string;
/** Names of the schemas that operations share. */
let schemas: string[];

beforeAll(async () => {
  server = await assemble({
    connection: { server: 'https://127.0.0.1' },
    config: loadConfig(undefined),
    logger: pino({ level: 'silent' }),
  });
  const document = server.app.swagger() as unknown as {
    paths: Record<string, Record<string, Operation>>;
    components: { schemas: object };
  };
  text = JSON.stringify(document);
  schemas = Object.keys(document.components.schemas);
  const all = Object.entries(document.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => [`${method} ${path}`, operation] as const),
  );
  operations = Object.fromEntries(all);
});

afterAll(async () => await server.close());

it('tells a reader of the page all that a request needs', () => {
  const all = Object.entries(operations);
  const withoutExample = ([, { requestBody }]: (typeof all)[number]) =>
    requestBody?.content['application/json']?.example === undefined;
  const json = all.filter(([, { requestBody }]) => requestBody?.content['application/json'] !== undefined);
  expect(json.length).toBeGreaterThan(20);
  expect(json.filter(withoutExample).map(([name]) => name)).toEqual([]);
  expect(all.filter(([, { summary, description }]) => !summary || !description)).toEqual([]);
  const parameters = all.flatMap(([, { parameters = [] }]) => parameters);
  expect(parameters.filter(({ description }) => !description)).toEqual([]);
  const answers = all.flatMap(([name, { responses }]) =>
    Object.entries(responses).map(([code, { description, $ref }]) => [name, code, description ?? $ref]),
  );
  expect(answers.filter(([, , said]) => said === undefined || said === 'Default Response')).toEqual([]);
  expect(text).toMatch(/"securitySchemes":{"bearer":{[^}]*"description":"A token/);
  expect(text).toContain('"servers":[{"url":"/"');
});

it('begins with a guide for newcomers, and tells what each group of operations is for', () => {
  const { info, tags } = JSON.parse(text) as Guide;
  expect(info.description).toContain('Press **Authorize**');
  expect(info.description).toContain('`make demo` writes tokens into `.berth/demo/tokens/`');
  expect(tags.filter(({ description }) => !description)).toEqual([]);
  const used = new Set(Object.values(operations).flatMap((operation) => operation.tags));
  expect(tags.map(({ name }) => name).toSorted()).toEqual([...used].toSorted());
});

/** Names in the README of what the demo has, and a name that a server chooses. */
const OF_THE_DEMO = [
  'platform-default',
  'hello',
  'demo-guest',
  'demo-host',
  'berth-role-dev',
  'vm-push-1',
  'ci',
];

it('names in its examples what the demo has or another example makes, and deletes only the latter', () => {
  const all = Object.entries(operations);
  const isMade = (kind: string, example: string) => {
    const maker = new RegExp(`^post .*/(${kind}(/{name})?|upload/${kind.slice(0, -1)})$`);
    return JSON.stringify(all.filter(([name]) => maker.test(name))).includes(`"${example}"`);
  };
  const wrong = all.filter(([name, { parameters = [] }]) => {
    const { name: last, example } = parameters.findLast((one) => one.in === 'path' && one.example) ?? {};
    const [, kind = ''] = new RegExp(`([^/]*)/{${last}}`).exec(name) ?? [];
    const isOfDemo = OF_THE_DEMO.includes(example ?? '') && !/^delete .*}$/.test(name);
    return example !== undefined && !isOfDemo && !isMade(kind, example);
  });
  expect(wrong.map(([name]) => name)).toEqual([]);
});

it('has the parameters of the path first, as callers write them', () => {
  const lists = Object.values(operations).map(({ parameters = [] }) => parameters.map((one) => one.in));
  expect(lists.some((places) => places.includes('path') && places.includes('query'))).toBe(true);
  for (const places of lists) {
    expect(places.slice(0, places.lastIndexOf('path') + 1)).not.toContain('query');
  }
});

it.each([
  [{ description: undefined }, 'description'],
  [{ roles: undefined }, 'roles'],
  [{ tags: ['Sizes'] }, 'tags of the page'],
  [{ sample: { size: 'large' } }, 'sample'],
  [{ sample: { size: 1, colour: 'red' } }, 'sample'],
  [{ sample: undefined }, 'sample'],
])('a route with %j does not start', async (change, missing) => {
  const app = createApp({ logger: pino({ level: 'silent' }), tls: false });
  await addDocument(app, '1');
  const schema = {
    summary: 'Resize',
    description: 'It grows.',
    roles: 'any token',
    tags: ['VMs'],
    sample: { size: 1 },
    body: z.object({ size: z.int() }),
  } as const;
  const add = (more: object) => app.post('/resize', { schema: { ...schema, ...more } }, () => '');
  expect(() => add(change)).toThrow(`The schema of the route POST /resize lacks: ${missing}`);
  expect(() => add({})).not.toThrow();
  await app.close();
});

it('gives each operation its own ID and the Status of its errors', () => {
  const ids = Object.values(operations).map(({ operationId }) => operationId);
  expect(new Set(ids).size).toBe(ids.length);
  expect(operations['delete /api/v1/namespaces/{namespace}/vms/{name}']?.operationId).toBe('deleteVmsByName');
  for (const { responses } of Object.values(operations)) {
    expect(responses).toMatchObject({ default: { $ref: '#/components/responses/Failure' } });
  }
});

/** Returns the names of the properties of each object in the schema. */
function propertyNames(schema: unknown): string[][] {
  if (typeof schema !== 'object' || schema === null) {
    return [];
  }
  const { type, properties } = schema as { type?: unknown; properties?: object };
  const own = type === 'object' && properties !== undefined ? [Object.keys(properties)] : [];
  return [...own, ...Object.values(schema).flatMap(propertyNames)];
}

/** Returns a name as generators of clients in Go and Python compare it: `vm_metadata` and `vmMetadata` become one identifier. */
function identifier(name: string): string {
  return name.replaceAll(/[^A-Za-z0-9]/g, '').toLowerCase();
}

it('gives generators of clients no two names that become one identifier', () => {
  const lists = [
    ...propertyNames(JSON.parse(text)),
    schemas,
    Object.values(operations).map(({ operationId }) => operationId),
    ...Object.values(operations).map(({ parameters = [] }) => parameters.map(({ name }) => name)),
  ];
  expect(lists.flat()).toContain('vmMetadata');
  // A generator names a schema without a name after its operation.
  const ids = Object.values(operations).map(({ operationId }) => operationId);
  const made = ids.flatMap((id) => ['Body', 'Params', 'Response'].map((end) => identifier(`${id}${end}`)));
  expect(schemas.filter((name) => made.includes(identifier(name)))).toEqual([]);
  expect([...ids, ...schemas].filter((name) => !/^[A-Za-z][A-Za-z0-9]*$/.test(name))).toEqual([]);
  const doubled = lists.filter((names) => new Set(names.map(identifier)).size < names.length);
  expect(doubled).toEqual([]);
});

/** Returns the schemas of objects in the schema, for which it does not say whether they have other fields. */
function openObjects(schema: unknown): unknown[] {
  if (typeof schema !== 'object' || schema === null) {
    return [];
  }
  const { type, additionalProperties } = schema as { type?: unknown; additionalProperties?: unknown };
  const inner = Object.values(schema).flatMap(openObjects);
  return type === 'object' && additionalProperties === undefined ? [schema, ...inner] : inner;
}

it('says of each body that it has no other fields', () => {
  const bodies = Object.values(operations).map(({ requestBody }) => requestBody);
  expect(bodies.filter((body) => body !== undefined).length).toBeGreaterThan(20);
  expect(openObjects(bodies)).toEqual([]);
});

it('has the files and texts of an upload, and neither unused schemas nor bounds that nobody wrote', () => {
  expect(operations['post /api/v1/upload/cert']?.requestBody?.content).toMatchObject({
    'multipart/form-data': { schema: { required: ['certPath', 'keyPath'] } },
  });
  const image = operations['post /api/v1/namespaces/{namespace}/upload/image']?.requestBody?.content;
  const fields = image?.['multipart/form-data']?.schema.properties ?? {};
  expect(Object.keys(fields)).toEqual(['imageName', 'description', 'type', 'sha256', 'file']);
  expect(text).not.toContain(String(Number.MAX_SAFE_INTEGER));
  expect(text).not.toMatch(/"[A-Za-z]+Input":/);
  expect(schemas).toContain('Status');
  expect(schemas.filter((name) => !text.includes(`"#/components/schemas/${name}"`))).toEqual([]);
});
