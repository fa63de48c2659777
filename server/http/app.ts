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
import { Counter, Gauge, Histogram, type Registry } from 'prom-client';
import { createServer, type Handler } from '../../kube/serving/httpserver.ts';
import { UnreadAnswers } from './answers.ts';
import {
  BODY_BYTES,
  BodyReader,
  type Dialect,
  normalizeBody,
  refuseUnknownParameters,
  translateBody,
} from './bodies.ts';
import { UnreadBodies } from './unreadbodies.ts';
import { routeWebSockets } from './websockets.ts';
import { refuseMalformed, REQUEST_ID, requestIDOf, sendError, StatusError } from './errors.ts';

/** Largest number of connections. At most 1,350 deployments wait, each on its own connection. The rest is for other requests. */
const CONNECTIONS = 2_048;
/**
 * A client's connection is closed if it transfers no data for this time in milliseconds. The time is long, because a handler can send four
 * requests to an API server that does not answer. Each of these four requests fails after at most 36 s, and the client must still get the
 * status 503. {@link UnreadAnswers} limits the time of long answers.
 */
const STALL_MILLISECONDS = 150_000;
/**
 * Longest pause in milliseconds between two requests of one connection. Proxies such as ingress-nginx and the load balancers of clouds keep
 * connections for 60 s. If this server closed them first, the proxy would sometimes send a request on a closed connection and answer 502.
 */
const KEEP_ALIVE_MILLISECONDS = 75_000;
/** Longest parameter of a path, in characters. The longest image reference fits even if every character is percent-encoded. */
const PARAMETER_LENGTH = 2_048;

/** User name under which the bodies of, and unread answers to, requests without a token are counted. */
const ANYBODY = '';

declare module 'fastify' {
  interface FastifyRequest {
    /**
     * Returns the name of the caller. Limits that hold for each user need this name. @throws ApiError 401 when the API server does not know
     * the caller.
     */
    owner?: () => Promise<string>;
  }
  interface FastifyContextConfig {
    /** Fields of other vendors' clients in the body. */
    dialect?: Dialect;
  }
}

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

/** Creates the application without routes. Its `server` does not listen yet. If `tls` is true, it is an HTTPS server. */
export function createApp({ logger, tls }: AppOptions): App {
  // The variable has Fastify's type of a logger. With pino's own type, the type of the application would differ from App.
  const loggerInstance: FastifyBaseLogger = logger;
  const app: App = fastify({
    serverFactory: (handler) => {
      const answer: Handler = (request, response) => handler(request, response);
      const server = tls
        ? createServer(answer, { logger, tls: {}, connections: CONNECTIONS })
        : createServer(answer, { logger, connections: CONNECTIONS });
      routeWebSockets(server, handler);
      return server;
    },
    loggerInstance,
    // The framework would log two lines for each request. {@link logRequests} logs those that administrators need.
    logController: new LogController({ disableRequestLogging: true, requestIdLogLabel: 'requestID' }),
    genReqId: requestIDOf,
    bodyLimit: BODY_BYTES,
    // Clients append paths to their configured address. Therefore a URL can contain a double slash or end with a slash.
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
  answerUnknownPaths(app);
  app.server.timeout = STALL_MILLISECONDS;
  app.server.keepAliveTimeout = KEEP_ALIVE_MILLISECONDS;
  checkQueries(app);
  readBodies(app);
  const unread = new UnreadAnswers();
  app.addHook('onSend', async (request, reply, payload) => {
    await unread.add(reply.raw, payload, async () => (await request.owner?.()) ?? ANYBODY);
    return payload;
  });
  return app;
}

/** Answers a request that no route takes: with 405 and the header `Allow` if the path has routes of other methods, and else with 404. */
function answerUnknownPaths(app: App): void {
  const routes: { path: RegExp; method: string }[] = [];
  app.addHook('onRoute', ({ url, method }) => {
    const path = patternOf(url);
    routes.push(...[method].flat().map((one) => ({ path, method: one })));
  });
  app.setNotFoundHandler((request, reply) => {
    const path = request.url.split('?')[0] ?? '';
    const cleaned = path.replaceAll(/\/{2,}/g, '/').replace(/(.)\/$/, '$1');
    const methods = routes.filter((route) => route.path.test(cleaned)).map(({ method }) => method);
    const allowed = [...new Set(methods)].join(', ');
    if (allowed !== '') {
      void reply.header('allow', allowed);
    }
    const error =
      allowed === ''
        ? new StatusError(404, `${request.method} ${path} not found`)
        : new StatusError(405, `${path} takes only ${allowed}, not ${request.method}`);
    sendError(error, request, reply);
  });
}

/** Returns a pattern of the paths that a route takes. Each name of a parameter stands for a part without a slash, and `*` for any rest. */
function patternOf(url: string): RegExp {
  const parts = url
    .split('/')
    .map((part) => (part === '*' ? '.+' : part.startsWith(':') ? '[^/]+' : part.replaceAll('.', '[.]')));
  return new RegExp(`^${parts.join('/')}$`);
}

/**
 * Refuses queries with unknown parameters. The routes of the documentation are left out: they describe no answer, and browsers and proxies
 * may append anything to the addresses of pages.
 */
function checkQueries(app: App): void {
  app.addHook('preValidation', ({ routeOptions: { schema }, query }, _reply, next) => {
    if (schema?.response !== undefined) {
      const known = schema.querystring instanceof z.ZodObject ? Object.keys(schema.querystring.shape) : [];
      refuseUnknownParameters(query as object, known);
    }
    next();
  });
}

/** Reads bodies of any content type as JSON, because clients send an empty body with the content type of a form. */
function readBodies(app: App): void {
  const unread = new UnreadBodies();
  const reader = new BodyReader(unread);
  app.addHook('onSend', (request, _reply, _payload, next) => {
    const { raw } = request;
    if (!raw.complete && !raw.readableFlowing) {
      // A read marks the body as consumed. Otherwise Node.js would drop it at once when the answer is sent.
      raw.read(0);
      unread.drop(raw);
    }
    next();
  });
  app.removeAllContentTypeParsers();
  app.addHook('onRequest', (request, _reply, next) => {
    if (request.mediaType === undefined) {
      // The framework would refuse a content type without the form of one, for example `json`.
      delete request.headers['content-type'];
    }
    next();
  });
  app.addContentTypeParser('*', async (request: FastifyRequest, payload: IncomingMessage) => {
    if (bodySchemaOf(request) !== undefined) {
      return await reader.read(payload, (await request.owner?.()) ?? ANYBODY);
    }
    // No handler needs this body.
    unread.drop(payload);
    return undefined;
  });
  app.addHook('preValidation', (request, reply, next) => {
    const schema = bodySchemaOf(request);
    // If no schema describes the body, no handler reads it. Such a body is dropped, so that it does not stay in memory while the request
    // waits.
    const { body, warnings } = translateBody(schema && request.body, request.routeOptions.config.dialect);
    request.body = schema && normalizeBody(schema, body);
    if (warnings.length > 0) {
      void reply.header('warning', warnings.map((text) => `299 - "${text}"`).join(', '));
    }
    next();
  });
}

function bodySchemaOf({ routeOptions: { schema } }: FastifyRequest): z.ZodType | undefined {
  return schema?.body instanceof z.ZodType ? schema.body : undefined;
}

/** Upper bounds of the buckets in seconds. A request for one object takes milliseconds, and a deployment takes minutes. */
const BUCKETS = [0.005, 0.025, 0.1, 0.25, 0.5, 1, 5, 15, 60, 300, 600];
/**
 * Value of the label `route` for requests that match no route. Their paths are not used as values, because clients could choose too many
 * different paths.
 */
const NO_ROUTE = 'none';

/** Counts requests and measures how long they take. `waiting` returns the number of requests that wait, for example for a VM. */
export function addMetrics(app: App, registry: Registry, waiting: () => number): void {
  const registers = [registry];
  const labelNames = ['method', 'route'] as const;
  const durations = new Histogram({
    name: 'berth_http_request_duration_seconds',
    help: 'Seconds from the arrival of a request until its answer is sent',
    labelNames,
    buckets: BUCKETS,
    registers,
  });
  const requests = new Counter({
    name: 'berth_http_requests_total',
    help: 'Requests of clients, by route and status code of the answer',
    labelNames: ['method', 'route', 'code'] as const,
    registers,
  });
  // oxlint-disable-next-line no-new -- The registry keeps the gauge.
  new Gauge({
    name: 'berth_http_waiting_requests',
    help: 'Requests that wait for a VM or an emulator to run, or for the deletion of a VM',
    registers,
    collect() {
      this.set(waiting());
    },
  });
  app.addHook('onResponse', (request, reply, next) => {
    const { method } = request;
    const route = request.routeOptions.url ?? NO_ROUTE;
    requests.inc({ method, route, code: reply.statusCode });
    durations.observe({ method, route }, reply.elapsedTime / 1000);
    next();
  });
}

/** Longest path in a line, in characters. Longer paths are cut. */
const PATH_CHARACTERS = 256;
/** Methods that change nothing. */
const READING: ReadonlySet<string> = new Set(['GET', 'HEAD', 'OPTIONS']);
/**
 * Statuses of refused requests that are only logged at the level `debug`. Somebody without a token, or with too many requests, could fill the
 * log with them.
 */
const COMMON_REFUSALS: ReadonlySet<number> = new Set([401, 429]);

declare module 'fastify' {
  interface FastifyRequest {
    /** Name of the caller, for the log. It is absent before the API server has confirmed the token. */
    username?: string;
  }
}

/**
 * Adds the id of the request to each answer. Logs each request that changes something, and each failure of the server. Other requests are
 * logged at the level `debug`. A line has no query, no body and no token.
 */
export function logRequests(app: App): void {
  app.decorateRequest('username');
  app.addHook('onRequest', (request, reply, next) => {
    void reply.header(REQUEST_ID, request.id);
    next();
  });
  app.addHook('onResponse', (request, reply, next) => {
    const { method, url, username } = request;
    const { statusCode: status } = reply;
    const changes = !READING.has(method) && !COMMON_REFUSALS.has(status);
    const level = status >= 500 ? 'warn' : changes ? 'info' : 'debug';
    const path = url.split('?')[0]?.slice(0, PATH_CHARACTERS);
    const milliseconds = Math.round(reply.elapsedTime);
    request.log[level]({ method, path, status, username, milliseconds }, 'Request answered');
    next();
  });
}
