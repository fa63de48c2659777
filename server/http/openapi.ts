/** Creates the OpenAPI document of all routes from their schemas. */
import swagger from '@fastify/swagger';
import type { FastifyContextConfig, FastifySchema, RouteOptions } from 'fastify';
import { jsonSchemaTransform, jsonSchemaTransformObject } from 'fastify-type-provider-zod';
import * as z from 'zod';
import { normalizeBody } from './bodies.ts';
import type { App } from './app.ts';
import { SAMPLE } from './samples.ts';

const MULTIPART = 'multipart/form-data';
/** Start of most paths. Operation IDs do not contain this part. */
const PREFIX = /^\/api\/v1\/(?:namespaces\/:namespace\/(?=.))?/;
/** Suffix in the names of schemas for requests. The names of schemas for answers do not have it. */
const INPUT = /Input$/;

type Described = ReturnType<typeof jsonSchemaTransformObject>;

declare module 'fastify' {
  interface FastifyContextConfig {
    /** Names of the fields of a multipart body in which the route receives files. */
    files?: readonly string[];
    /**
     * Schema of the texts that the route reads from the multipart body. All texts are optional. In the body, they come before the files.
     */
    texts?: z.ZodObject;
  }
}

/** Where a reader of the page gets a token of the cluster. */
const TOKEN_SOURCES =
  '`berth login` gets one from the identity provider. `POST …/serviceaccounts/{name}/token` makes one for a program, and so does `kubectl create token NAME`. `make demo` writes tokens into `.berth/demo/tokens/`.';

/** The first lines of the page. A newcomer follows them in their order. */
const GUIDE = `Deploy, use and delete VMs with the rights of your token.

1. Get a token of the Kubernetes cluster. ${TOKEN_SOURCES}
2. Press **Authorize** and paste the token, without the word \`Bearer\`. The page forgets it when it is closed or loaded again.
3. Open an operation, press **Try it out**, then **Execute**. The examples fit the demo (\`make demo\`): **VMs**, POST deploys the VM \`${SAMPLE.new}\`, GET lists it, and DELETE deletes it.

| answer | meaning |
| --- | --- |
| 401 | The token is missing, or has ended. |
| 403 | The user of the token has none of the roles that the operation names. |
| 404 | The object does not exist. |
| 409 | The state of the object does not allow the operation. |
| 400, 422 | A value is not allowed, or a field or parameter is unknown. The message then has the nearest known name. |
| 429, 503 | There is too much work, or no host has room. The header \`Retry-After\` says when to send the request again. |

An error is a \`Status\`: its \`message\` names the field, the value and what is allowed, and its \`requestID\` finds the request in the log of the server. The letter case of fields does not matter.`;

/** The groups of operations, in the order of the page: first those that a newcomer needs. */
const TAGS: Readonly<Record<string, string>> = {
  VMs: 'Deploy, list, stop, save and delete virtual machines.',
  'VM configs': 'Values that several VMs share. A deployment names them with `vmConfig`.',
  Images: 'Disks that VMs start from.',
  ISOs: 'Installation media that VMs start from.',
  'Image cache': 'Images that hosts keep, so that VMs start without a download.',
  Emulators: 'Android emulators beside VMs.',
  Nodes: 'Hosts of a namespace, with their free CPU and memory.',
  Namespaces: 'Places of teams, each with its own VMs, members and quota.',
  'Role bindings': 'Members of a namespace.',
  'Service accounts': 'Users that are programs, and their tokens.',
  'Registry credentials': 'Logins with which hosts pull private images.',
  Cluster: 'Address of the cluster, settings for signing in, and the certificate of this API.',
};

/**
 * Answer that every operation can give. The page finds it for each code, so that it calls no answer undocumented. It does not look for
 * answers of a range, as `4XX`.
 */
const FAILURE = {
  name: 'Failure',
  description:
    'The request is refused (4xx) or failed on the side of the server (5xx). The Status tells the reason and, for a mistake in the body, the field. The header Retry-After tells when to try again.',
} as const;

/** Makes the OpenAPI document available as `app.swagger()`. `version` is the version of Berth. */
export async function addDocument(app: App, version: string): Promise<void> {
  app.addHook('onRoute', requireDescription);
  await app.register(swagger, {
    openapi: {
      openapi: '3.1.0',
      info: { title: 'Berth HTTP API', version, description: GUIDE },
      tags: Object.entries(TAGS).map(([name, description]) => ({ name, description })),
      servers: [{ url: '/', description: 'The server that serves this document.' }],
      components: {
        securitySchemes: {
          bearer: {
            type: 'http',
            scheme: 'bearer',
            description: `A token of the Kubernetes cluster. ${TOKEN_SOURCES}`,
          },
        },
      },
      security: [{ bearer: [] }],
    },
    transform: (document) => {
      const { route, schema, url } = document;
      const { roles, sample, ...known } = schema;
      const operationId = operationIdOf(String(route.method), url);
      const described = jsonSchemaTransform({
        ...document,
        schema: { ...known, description: describe(schema), operationId },
      });
      const { files, texts } = route.config ?? {};
      const body =
        files === undefined ? withExample(described.schema?.body, sample) : formOf(files, texts, sample);
      const form = files && { consumes: [MULTIPART] };
      return {
        ...described,
        schema: { ...described.schema, ...form, ...(body && { body }), 'x-berth-roles': roles },
      };
    },
    transformObject: (document) => withNamedAnswers(withoutNoise(jsonSchemaTransformObject(document))),
  });
}

/** @throws Error when a route of the document lacks a part that its readers need, or has a sample that its own schema refuses. */
function requireDescription({ method, url, schema, config }: RouteOptions): void {
  if (schema === undefined || schema.hide === true || method === 'HEAD') {
    return;
  }
  const missing: string[] = (['summary', 'description', 'roles'] as const).filter(
    (part) => schema[part] === undefined,
  );
  if (schema.tags?.every((tag) => tag in TAGS) !== true) {
    missing.push('tags of the page');
  }
  if (!fitsSample(schema, config)) {
    missing.push('sample');
  }
  if (missing.length > 0) {
    throw new Error(`The schema of the route ${String(method)} ${url} lacks: ${missing.join(', ')}`);
  }
}

function fitsSample({ body, sample }: FastifySchema, config: FastifyContextConfig = {}): boolean {
  const read = config.files === undefined ? body : (config.texts ?? z.object());
  if (!(read instanceof z.ZodType)) {
    return true;
  }
  try {
    return read.safeParse(normalizeBody(read, sample)).success;
  } catch {
    // The body has a field that the route refuses.
    return false;
  }
}

/** Returns the description of an operation, with the callers that are allowed to use it. */
function describe({ description, roles }: FastifySchema): string {
  return `${description} ${typeof roles === 'string' ? CALLERS[roles] : `Roles: ${roles?.join(', ')}.`}`;
}

const CALLERS = {
  'no token': 'The request needs no token.',
  'any token': 'Every caller with a valid token is allowed to send it.',
};

/** Returns the operation ID of a route, for example `getVmsByName` for `GET /api/v1/namespaces/:namespace/vms/:name`. */
function operationIdOf(method: string, url: string): string {
  const segments = url
    .replace(PREFIX, '')
    .split(/[^A-Za-z0-9:]+/)
    .map((word) => (word.startsWith(':') ? `By${capital(word.slice(1))}` : capital(word)));
  return method.toLowerCase() + segments.join('');
}

function capital(word: string): string {
  return word.slice(0, 1).toUpperCase() + word.slice(1);
}

/** Writes into the schema of a body that its objects have no other fields, because the server refuses unknown fields. */
function refuseUnknownFields(schema: unknown): void {
  if (typeof schema !== 'object' || schema === null) {
    return;
  }
  const object = schema as Record<string, unknown>;
  // A field can have the name `type`. Then the value is a schema and no text.
  if (object['type'] === 'object' && object['properties'] !== undefined) {
    object['additionalProperties'] ??= false;
  }
  for (const part of Object.values(object)) {
    refuseUnknownFields(part);
  }
}

/** Returns the schema of a body with its example. */
function withExample(body: unknown, sample: object | undefined): object | undefined {
  refuseUnknownFields(body);
  return typeof body === 'object' && body !== null ? { ...body, examples: [sample] } : undefined;
}

/** Returns the schema of a multipart body. */
function formOf(
  files: readonly string[],
  texts: z.ZodObject = z.object(),
  sample: Readonly<Record<string, unknown>> = {},
): object {
  const file = { type: 'string', format: 'binary', description: 'The file.' };
  const fields = Object.entries(z.toJSONSchema(texts).properties ?? {}).map(([name, field]) => [
    name,
    { ...(field as object), ...(name in sample && { examples: [sample[name]] }) },
  ]);
  // The properties of the texts come before those of the files. Clients send the fields in this order, and the server needs the texts
  // first.
  const properties = {
    ...(Object.fromEntries(fields) as object),
    ...Object.fromEntries(files.map((name) => [name, file])),
  };
  return { type: 'object', properties, required: files, additionalProperties: false };
}

/** Names the answers of each operation: successful ones after their schema, and failures by the answer that all operations share. */
function withNamedAnswers(document: Described): Described {
  const { paths, components } = document as unknown as Parts;
  for (const { responses, parameters } of Object.values(paths).flatMap((methods) => Object.values(methods))) {
    // A reader fills in the path first, and generated clients take its parts as their first arguments.
    parameters?.sort((one, other) => Number(other.in === 'path') - Number(one.in === 'path'));
    for (const answer of Object.values(responses)) {
      const reference = answer.content?.['application/json']?.schema.$ref ?? '';
      const schema = components.schemas[reference.replace(SCHEMAS, '')];
      answer.description = schema?.description ?? answer.description;
    }
    responses['default'] = { $ref: `#/components/responses/${FAILURE.name}` };
  }
  const content = { 'application/json': { schema: { $ref: '#/components/schemas/Status' } } };
  components.responses = { [FAILURE.name]: { description: FAILURE.description, content } };
  return document;
}

/** Start of a reference to a schema. */
const SCHEMAS = '#/components/schemas/';

/** The parts of a document that {@link withNamedAnswers} changes. */
interface Parts {
  readonly paths: Readonly<Record<string, Readonly<Record<string, Operation>>>>;
  readonly components: {
    readonly schemas: Readonly<Record<string, { readonly description?: string }>>;
    responses?: object;
  };
}
interface Operation {
  readonly parameters?: { readonly in: string }[];
  readonly responses: Answers;
}
type Answers = Record<string, { $ref?: string; description?: string | undefined; content?: Content }>;
type Content = Readonly<Record<string, { readonly schema: { readonly $ref?: string } }>>;

/**
 * Removes minimums and maximums that are only the bounds of JavaScript's safe integers, and what only CustomResourceDefinitions need. Also removes the schemas for requests if nothing in
 * the document refers to them.
 */
function withoutNoise(document: Described): Described {
  const text = JSON.stringify(document, (key, value: unknown) =>
    key.startsWith('x-kubernetes-') ||
    ((key === 'minimum' || key === 'maximum') && Math.abs(Number(value)) === Number.MAX_SAFE_INTEGER)
      ? undefined
      : value,
  );
  const clean = JSON.parse(text) as Described & { components: { schemas: Record<string, object> } };
  const { schemas } = clean.components;
  const answers = Object.entries(schemas).filter(([name]) => !INPUT.test(name));
  const used = JSON.stringify([clean.paths, answers]);
  const isUsed = ([name]: [string, object]) =>
    !INPUT.test(name) || used.includes(`"#/components/schemas/${name}"`);
  clean.components.schemas = Object.fromEntries(Object.entries(schemas).filter(isUsed));
  return clean;
}
