/** Tells clients the ids of their requests, and logs the requests that change something or fail. */
import type { App } from './app.ts';
import { REQUEST_ID } from './requestid.ts';

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
