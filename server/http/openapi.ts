/** Creates the OpenAPI document of all routes from their schemas. */
import swagger from '@fastify/swagger';
import type { FastifySchema } from 'fastify';
import { jsonSchemaTransform, jsonSchemaTransformObject } from 'fastify-type-provider-zod';
import * as z from 'zod';
import { statusSchema } from '../../api/http/status.ts';
import type { App } from './app.ts';

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

/** Makes the OpenAPI document available as `app.swagger()`. `version` is the version of Berth. */
export async function addDocument(app: App, version: string): Promise<void> {
  await app.register(swagger, {
    openapi: {
      openapi: '3.1.0',
      info: { title: 'Berth', version },
      components: { securitySchemes: { bearer: { type: 'http', scheme: 'bearer' } } },
      security: [{ bearer: [] }],
    },
    transform: (document) => {
      const { route, schema, url } = document;
      // The default response describes errors, because the body of every error is a Status.
      const response = { ...(schema.response as object | undefined), default: statusSchema };
      const operationId = operationIdOf(String(route.method), url);
      const described = jsonSchemaTransform({
        ...document,
        schema: { ...schema, response, operationId },
      });
      refuseUnknownFields(described.schema?.body);
      const { files, texts } = route.config ?? {};
      return files === undefined
        ? described
        : { ...described, schema: withForm(described.schema, files, texts) };
    },
    transformObject: (document) => withoutNoise(jsonSchemaTransformObject(document)),
  });
}

/** Returns the operation ID of a route, for example `getVmsByName` for `GET /api/v1/namespaces/:namespace/vms/:name`. */
function operationIdOf(method: string, url: string): string {
  const words = url
    .replace(PREFIX, '')
    .split(/[^A-Za-z0-9:]+/)
    .map((word) => (word.startsWith(':') ? `By${capital(word.slice(1))}` : capital(word)));
  return method.toLowerCase() + words.join('');
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

function withForm(
  schema: FastifySchema,
  files: readonly string[],
  texts: z.ZodObject = z.object(),
): FastifySchema {
  const file = { type: 'string', format: 'binary' };
  // The properties of the texts come before those of the files. Clients send the fields in this order, and the server needs the texts
  // first.
  const properties = {
    ...z.toJSONSchema(texts).properties,
    ...Object.fromEntries(files.map((name) => [name, file])),
  };
  return {
    ...schema,
    consumes: [MULTIPART],
    body: { type: 'object', properties, required: files, additionalProperties: false },
  };
}

/**
 * Removes minimums and maximums that are only the bounds of JavaScript's safe integers. Also removes the schemas for requests if nothing in
 * the document refers to them.
 */
function withoutNoise(document: Described): Described {
  const text = JSON.stringify(document, (key, value: unknown) =>
    (key === 'minimum' || key === 'maximum') && Math.abs(Number(value)) === Number.MAX_SAFE_INTEGER
      ? undefined
      : value,
  );
  const clean = JSON.parse(text) as Described & { components: { schemas: Record<string, object> } };
  const { schemas } = clean.components;
  const isUsed = ([name]: [string, object]) =>
    !INPUT.test(name) || text.includes(`"#/components/schemas/${name}"`);
  clean.components.schemas = Object.fromEntries(Object.entries(schemas).filter(isUsed));
  return clean;
}
