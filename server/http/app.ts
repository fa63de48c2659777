/** The web application with the rules that hold for every route. */
import type { IncomingMessage, Server, ServerResponse } from 'node:http';
import type { Server as HttpsServer } from 'node:https';
import fastify, {
  type FastifyBaseLogger,
  type FastifyInstance,
  type FastifyRequest,
  LogController,
} from 'fastify';
import { serializerCompiler, validatorCompiler, type ZodTypeProvider } from 'fastify-type-provider-zod';
import type { Logger } from 'pino';
import * as z from 'zod';
import { createServer, type Handler } from '../../kube/serving/httpserver.ts';
import { UnreadAnswers } from './answers.ts';
import { normalizeBody } from './bodies.ts';
import { BODY_BYTES, BodyReader } from './bodyreader.ts';
import { refuseMalformed, sendError, StatusError } from './errors.ts';

/** Limit of connections. Each deployment that waits has one, and at most 1,350 of them wait. */
const CONNECTIONS = 2_048;
/** Longest parameter of a path: an image reference with each character encoded. */
const PARAMETER_LENGTH = 2_048;

export type App = FastifyInstance<
  Server | HttpsServer,
  IncomingMessage,
  ServerResponse,
  FastifyBaseLogger,
  ZodTypeProvider
>;

export interface AppOptions {
  readonly logger: Logger;
  /** Whether the server uses TLS. */
  readonly tls: boolean;
}

/** Creates the application without routes. Its `server` does not listen yet, and it is an HTTPS server only with `tls`. */
export function createApp({ logger, tls }: AppOptions): App {
  // With pino's own type here, the type of the application would not be App.
  const loggerInstance: FastifyBaseLogger = logger;
  const app: App = fastify({
    serverFactory: (handler) => {
      const answer: Handler = (request, response) => handler(request, response);
      return tls ? createServer(answer, { logger, tls: {} }) : createServer(answer, { logger });
    },
    loggerInstance,
    // Requests are not logged, because the audit log of the API server says more about them.
    logController: new LogController({ disableRequestLogging: true }),
    bodyLimit: BODY_BYTES,
    // Clients append paths to their configured address, so a slash may be doubled or at the end.
    routerOptions: {
      ignoreTrailingSlash: true,
      ignoreDuplicateSlashes: true,
      maxParamLength: PARAMETER_LENGTH,
    },
    frameworkErrors: sendError,
    clientErrorHandler: refuseMalformed,
  }).withTypeProvider<ZodTypeProvider>();
  app.setValidatorCompiler(validatorCompiler);
  app.setSerializerCompiler(serializerCompiler);
  app.setErrorHandler(sendError);
  app.setNotFoundHandler((request, reply) =>
    sendError(
      new StatusError(404, `${request.method} ${request.url.split('?')[0]} not found`),
      request,
      reply,
    ),
  );
  app.server.maxConnections = CONNECTIONS;
  readBodies(app);
  const unread = new UnreadAnswers();
  app.addHook('onSend', async (_request, reply, payload) => {
    unread.add(reply.raw, payload);
    return payload;
  });
  return app;
}

/** Reads bodies of any content type as JSON, because clients send an empty body with the content type of a form. */
function readBodies(app: App): void {
  const reader = new BodyReader();
  app.removeAllContentTypeParsers();
  app.addContentTypeParser('*', async (request: FastifyRequest, payload: IncomingMessage) => {
    if (bodySchemaOf(request) !== undefined) {
      return parsed(await reader.read(payload));
    }
    // Nobody needs this body. Clients read an early answer only after they have sent the whole body.
    payload.resume();
    return undefined;
  });
  app.addHook('preValidation', (request, _reply, next) => {
    const schema = bodySchemaOf(request);
    // A body that no handler reads would stay in memory while the request waits.
    request.body = schema === undefined ? undefined : normalizeBody(schema, request.body);
    next();
  });
}

function bodySchemaOf({ routeOptions: { schema } }: FastifyRequest): z.ZodType | undefined {
  return schema?.body instanceof z.ZodType ? schema.body : undefined;
}

function parsed(text: string): unknown {
  if (text.trim() === '') {
    return {};
  }
  try {
    return JSON.parse(text);
  } catch {
    throw new StatusError(400, 'the body is not JSON');
  }
}
