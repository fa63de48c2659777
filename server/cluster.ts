/** The cluster behind the HTTP API, and the certificate that the HTTP API shows to its clients. */
import multipart from '@fastify/multipart';
import type { FastifyRequest } from 'fastify';
import * as z from 'zod';
import { messageOf } from '../base/errors.ts';
import type { App } from './http/app.ts';
import { invalidField, StatusError } from './http/errors.ts';
import { FieldNames } from './http/bodies.ts';
import type { Services } from './services.ts';
import { PairError } from './own/certificate.ts';
import { type ClusterInfo, clusterInfoSchema } from '../api/http/cluster.ts';
import { VERSION } from '../api/v1alpha1/version.ts';
import type { Connection } from '../kube/credentials.ts';
import type { ServerConfig } from './config.ts';
import { OWNERS } from './own/rights.ts';

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
          description:
            'All replicas of the server use the new certificate within a minute. The certificate must fit the key, and must not be expired.',
          roles: OWNERS,
          sample: {},
          tags: ['Cluster'],
          response: {
            200: z.string().meta({ id: 'Confirmation', description: 'A sentence that confirms the upload.' }),
          },
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
  const parts = await partsOf(request);
  refuseOtherFields(parts.map(({ field }) => field));
  const files = new Map(parts.map(({ field, content }) => [field, content]));
  const missing = FIELDS.find((field) => !files.has(field));
  if (missing !== undefined) {
    throw invalidField(missing, 'is required');
  }
  const [certPath = '', keyPath = ''] = FIELDS.map((field) => files.get(field));
  return { certPath, keyPath };
}

/** @throws StatusError 422 when a field is neither the certificate nor the key, or is given more than once. */
function refuseOtherFields(fields: readonly string[]): void {
  const names = new FieldNames();
  for (const field of fields.filter((one) => !FIELDS.some((known) => known === one))) {
    names.unknown('', field, () => FIELDS);
  }
  names.refuse();
  const repeated = fields.find((field, index) => fields.indexOf(field) < index);
  if (repeated !== undefined) {
    throw invalidField(repeated, 'is given more than once');
  }
}

/** Returns the name and the content of each part. @throws StatusError 400 when the body is not multipart. */
async function partsOf(request: FastifyRequest): Promise<{ field: string; content: string }[]> {
  const contents = [];
  try {
    for await (const part of request.parts()) {
      const content = part.type === 'file' ? (await part.toBuffer()).toString('utf8') : String(part.value);
      contents.push({ field: part.fieldname, content });
    }
  } catch (error) {
    // The plugin's errors about exceeded limits have a status code. An error about a malformed body has none, so it becomes status 400.
    throw error instanceof Error && 'statusCode' in error
      ? error
      : new StatusError(400, `the body is not valid: ${messageOf(error)}`);
  }
  return contents;
}

const HTTPS_PORT = '443';
const CERTIFICATE = /-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----\n?/;

/** Returns the facts, which stay the same while the server runs. `connection` is the server's own connection to the Kubernetes API. */
export function clusterInfo(
  { cluster, namespaces }: Pick<ServerConfig, 'cluster' | 'namespaces'>,
  connection: Pick<Connection, 'server' | 'serverName' | 'certificateAuthority'>,
): ClusterInfo {
  const { apiEndpoint, issuer, clientID, scopes, deviceFlow } = cluster;
  const { hostname, port, pathname } = new URL(apiEndpoint ?? connection.server);
  const ownName = apiEndpoint === undefined ? connection.serverName : undefined;
  return {
    // The URL always contains the port, even the default port, because clients read the port from the URL. The path stays, because a proxy
    // can serve several clusters, each under its own path.
    apiEndpoint: `https://${hostname}:${port || HTTPS_PORT}${pathname.replace(/\/+$/, '')}`,
    apiDomain: ownName ?? hostname.replace(/^\[(.*)\]$/, '$1'),
    certData: firstCertificate(cluster.certificateAuthority ?? connection.certificateAuthority),
    appClientId: clientID,
    baseOauthEndpoint: issuer ?? '',
    gpuPassthroughEnabled: false,
    issuer,
    scopes,
    deviceFlow: issuer !== undefined && deviceFlow,
    version: VERSION,
    namespaceDefault: namespaces.default,
  };
}

/** Returns only the first certificate of a chain, because clients expect exactly one. The result is empty if there is none. */
function firstCertificate(pem = ''): string {
  return CERTIFICATE.exec(pem)?.[0] ?? '';
}

export function addClusterRoutes(app: App, { clusterInfo }: Pick<Services, 'clusterInfo'>): void {
  app.get(
    '/api/v1/cluster-info',
    {
      schema: {
        summary:
          'Get the address of the Kubernetes API and the settings for signing in. This request needs no token',
        description:
          'Clients read from it where to send requests for Kubernetes, and at which provider users sign in.',
        roles: 'no token',
        tags: ['Cluster'],
        security: [],
        response: { 200: clusterInfoSchema },
      },
    },
    () => clusterInfo,
  );
}
