/** Route to upload the certificate that the server shows to its clients. */
import multipart from '@fastify/multipart';
import type { FastifyRequest } from 'fastify';
import * as z from 'zod';
import { messageOf } from '../../base/errors.ts';
import type { App } from '../http/app.ts';
import { invalidField, StatusError } from '../http/errors.ts';
import type { Services } from '../services.ts';
import { PairError } from '../certificate/pair.ts';

/** Limits of an upload, with sizes in bytes. A chain of ten certificates with large keys has only 32 KiB. */
const LIMITS = { fileSize: 64 * 1024, fieldSize: 64 * 1024, files: 2, fields: 2, parts: 4, headerPairs: 32 };
const FIELDS = ['certPath', 'keyPath'] as const;

export function addCertificateRoutes(app: App, { own }: Services): void {
  // The plugin for multipart bodies is registered in this scope only, because no other route here needs it.
  void app.register(async (scope: App) => {
    await scope.register(multipart, { limits: LIMITS });
    scope.post(
      '/api/v1/upload/cert',
      {
        schema: {
          summary:
            'Upload the certificate of this API. The files in certPath and keyPath must be in PEM form',
          tags: ['Cluster'],
          response: { 200: z.string() },
        },
        config: { files: FIELDS },
      },
      async (request, reply) => {
        await own.rights.require(request.headers, { verb: 'update', resource: 'certificates' });
        const { certPath, keyPath } = await filesOf(request);
        try {
          await own.certificate.store({ certificate: certPath, key: keyPath });
        } catch (error) {
          throw error instanceof PairError ? invalidField(error.field, error.message) : error;
        }
        // Clients expect a JSON text. Without `JSON.stringify`, the framework would send the text without quotation marks.
        return await reply
          .type('application/json; charset=utf-8')
          .send(JSON.stringify('The certificate was uploaded'));
      },
    );
  });
}

async function filesOf(request: FastifyRequest): Promise<Record<(typeof FIELDS)[number], string>> {
  if (!request.isMultipart()) {
    throw new StatusError(415, 'the body must be multipart/form-data');
  }
  const files = await partsOf(request);
  const missing = FIELDS.find((field) => !files.has(field));
  if (missing !== undefined) {
    throw invalidField(missing, 'is required');
  }
  const [certPath = '', keyPath = ''] = FIELDS.map((field) => files.get(field));
  return { certPath, keyPath };
}

/** Returns the content of each part by the name of its field. @throws StatusError 400 when the body is not multipart. */
async function partsOf(request: FastifyRequest): Promise<Map<string, string>> {
  const contents = new Map<string, string>();
  try {
    for await (const part of request.parts()) {
      const content = part.type === 'file' ? (await part.toBuffer()).toString('utf8') : String(part.value);
      contents.set(part.fieldname, content);
    }
  } catch (error) {
    // The plugin's errors about exceeded limits have a status code. An error about a malformed body has none, so it becomes status 400.
    throw error instanceof Error && 'statusCode' in error
      ? error
      : new StatusError(400, `the body is not valid: ${messageOf(error)}`);
  }
  return contents;
}
