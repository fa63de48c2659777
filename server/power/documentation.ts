/** The documentation of the power API: its OpenAPI document and its page. */
import { createReadStream } from 'node:fs';
import type { ServerResponse } from 'node:http';
import { pipeline } from 'node:stream/promises';
import * as z from 'zod';
import { HttpError } from '../../kube/serving/httperror.ts';
import { reply } from '../../kube/serving/httpserver.ts';
import {
  FileDownloads,
  FILES,
  HEADERS,
  KEEP_SECONDS,
  pageHTML,
  pageScript,
  pathOf,
  START,
} from '../documentation.ts';
import { POWER_PATH } from './path.ts';
import { POWER_ACTIONS } from '../../api/v1alpha1/server.ts';
import { VERSION } from '../../api/v1alpha1/version.ts';
import { listedServerSchema, serverRecordSchema } from './inventory.ts';

const PAGE = {
  title: 'Berth power API',
  path: `${POWER_PATH}/docs`,
  document: `${POWER_PATH}/openapi.json`,
};

export class PowerDocumentation {
  readonly #downloads = new FileDownloads();
  readonly #texts: Readonly<Record<string, { readonly text: string; readonly type: string }>> = {
    [PAGE.document]: { text: JSON.stringify(powerDocument()), type: 'application/json' },
    [PAGE.path]: { text: pageHTML(PAGE), type: 'text/html; charset=utf-8' },
    [`${PAGE.path}/${START.name}`]: { text: pageScript(PAGE), type: START.type },
  };

  /**
   * Answers a request for the document, the page or a file of it. Returns false if the path is another one.
   *
   * @throws HttpError 503 when too many clients load the page.
   */
  async answer(parts: readonly string[], response: ServerResponse): Promise<boolean> {
    const path = `/${parts.join('/')}`;
    const known = this.#texts[path];
    if (known !== undefined) {
      this.#downloads.begin(response);
      setHeaders(response);
      reply(response, 200, known.text, known.type);
      return true;
    }
    const file = path.startsWith(`${PAGE.path}/`) ? path.slice(PAGE.path.length + 1) : '';
    const type = FILES[file];
    if (type === undefined) {
      if (path.startsWith(`${PAGE.path}/`)) {
        throw new HttpError(404, `The page has no such file. The page is ${PAGE.path}`);
      }
      return false;
    }
    this.#downloads.begin(response);
    setHeaders(response);
    // The file is large and the same for all. Everything else of this API is new with each request.
    response.writeHead(200, { 'content-type': type, 'cache-control': `max-age=${KEEP_SECONDS}` });
    // A client that goes away ends the reading.
    await pipeline(createReadStream(pathOf(file)), response).catch(() => response.destroy());
    return true;
  }
}

function setHeaders(response: ServerResponse): void {
  for (const [name, value] of Object.entries(HEADERS)) {
    response.setHeader(name, value);
  }
}

type Listed = z.infer<typeof listedServerSchema>;

const LISTED: Listed = {
  id: 'rack1-u7',
  name: 'Rack 1, unit 7',
  ip: '192.0.2.7',
  type: 'Mac mini M4',
  location: 'Dublin, room 2',
  status: 'In use',
  creation_date: '2026-03-01T09:00:00Z',
  cancel_date: null,
};
const { ip: _ip, id, name, ...facts } = LISTED;
const RECORD: z.infer<typeof serverRecordSchema> = { id, name, power: 'On', ...facts };

/** Errors with their status codes: when they occur, and a real text. */
const ERRORS: Readonly<Record<number, readonly [description: string, example: string]>> = {
  400: ['There is no such action', 'The action must be On, Off, Reboot, in any letter case'],
  401: [
    'The credentials are missing or wrong. After 20 requests with wrong credentials, the source address gets no answer for 5 minutes',
    'Unauthorized',
  ],
  403: [
    'The caller lacks the right, or a program sent the request in advance (prefetch)',
    'User system:serviceaccount:ci:runner has no right to create servers/power of the group berth.dev',
  ],
  404: ['There is no such server', 'No server has this id or IP address'],
  409: [
    'VMs run on the server, or another action has not ended',
    'The server is busy: Off has not ended yet. Try again later',
  ],
  502: [
    'The controller of the server does not answer, or has refused the action',
    'The controller of server rack1-u7 has not accepted On within 15 s. Berth goes on with the action',
  ],
  503: [
    'Too much is under way, or the API server of the cluster does not answer. The header Retry-After says when to try again',
    'The Kubernetes API server does not answer. Try again later',
  ],
};

const READING = [401, 403, 404, 503];
const ACTING = [400, 401, 403, 404, 409, 502, 503];

function text(description: string, example: string): object {
  return { description, content: { 'text/plain': { schema: { type: 'string' }, example } } };
}

function json(description: string, schema: z.ZodType, example: unknown): object {
  const { $schema: _schema, ...content } = z.toJSONSchema(schema) as Record<string, unknown>;
  return { description, content: { 'application/json': { schema: content, example } } };
}

function operation(operationId: string, summary: string, ok: object, errors: readonly number[]): object {
  const refusals = errors.map((code) => [code, text(...(ERRORS[code] ?? ['', '']))]);
  return { operationId, summary, responses: { 200: ok, ...Object.fromEntries(refusals) } };
}

const ID = {
  name: 'id',
  in: 'path',
  required: true,
  description: 'Id of the server, or one of its IP addresses in any notation',
  schema: { type: 'string' },
  examples: { id: { value: 'rack1-u7' }, IPv4: { value: '192.0.2.7' }, IPv6: { value: '2001:db8::7' } },
};
const ACTION = {
  name: 'action',
  in: 'path',
  required: true,
  description: 'The action, in any letter case',
  schema: { type: 'string', enum: POWER_ACTIONS },
};

/** Returns the document. */
export function powerDocument(): object {
  return {
    openapi: '3.1.0',
    info: {
      title: 'Berth power API',
      version: VERSION,
      description:
        'Lists servers, tells their power, and switches them on and off. All requests are GET, have no body, and get JSON or one line of text. A GET with an action acts.',
    },
    components: {
      securitySchemes: {
        basic: { type: 'http', scheme: 'basic' },
        bearer: { type: 'http', scheme: 'bearer' },
      },
    },
    security: [{ basic: [] }, { bearer: [] }],
    paths: {
      [`${POWER_PATH}/servers`]: {
        get: operation(
          'listServers',
          'List all servers. A server with several addresses is there once for each',
          json('The servers', z.array(listedServerSchema), [LISTED, { ...LISTED, ip: '2001:db8::7' }]),
          [401, 403, 503],
        ),
      },
      [`${POWER_PATH}/servers/{id}`]: {
        parameters: [ID],
        get: operation(
          'getServer',
          'Read a server and its power',
          json('The server', serverRecordSchema, RECORD),
          READING,
        ),
      },
      [`${POWER_PATH}/servers/{id}/{action}`]: {
        parameters: [ID, ACTION],
        get: operation(
          'actOnServer',
          'Switch a server on or off, or reboot it. The answer comes when the controller has accepted the action, at most 15 s later',
          text('The four letters True: the controller has accepted the action', 'True'),
          ACTING,
        ),
      },
    },
  };
}
