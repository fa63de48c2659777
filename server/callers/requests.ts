/** Gives the handlers of all routes the caller of their request. */
import type { FastifyRequest } from 'fastify';
import type { App } from '../http/app.ts';
import { mayBeLarge } from '../http/bodyreader.ts';
import { StatusError } from '../http/errors.ts';
import { type Caller, type CallerClient, type Callers, tokenOf } from './caller.ts';

declare module 'fastify' {
  interface FastifyRequest {
    /** Returns the client with the rights of the caller. @throws StatusError 401 without a bearer token. */
    caller: () => CallerClient;
    /** Returns the client and the watches with the rights of the caller. @throws StatusError 401 without a bearer token. */
    fullCaller: () => Caller;
    /** Aborts when the answer is written, or when the client is gone. A request that the router refuses has none. */
    end?: AbortController;
  }
}

const GONE = new StatusError(408, 'The client is gone');

/**
 * Adds the caller to each request. Refuses a request without a token before its body is read, unless the schema of the route says
 * `security: []`. Reads a large body only if the API server knows the caller.
 */
export function addCallers(app: App, callers: Callers): void {
  app.decorateRequest('caller');
  app.decorateRequest('fullCaller');
  app.decorateRequest('end');
  app.addHook('onRequest', (request, reply, next) => {
    const end = new AbortController();
    request.end = end;
    reply.raw.once('close', () => end.abort(GONE));
    request.caller = () => callers.clientOf(request.headers, end.signal);
    request.fullCaller = () => callers.callerOf(request.headers, end.signal);
    if (needsToken(request)) {
      tokenOf(request.headers);
    }
    next();
  });
  // The text of the answer counts elsewhere until the client has read it. The objects that it was made from are not needed any more.
  app.addHook('onSend', (request, _reply, _payload, next) => {
    request.end?.abort();
    next();
  });
  app.addHook('preParsing', async (request) => {
    if (needsToken(request) && mayBeLarge(request.headers)) {
      await request.caller().username();
    }
  });
}

function needsToken({ routeOptions: { schema } }: FastifyRequest): boolean {
  return schema !== undefined && schema.security?.length !== 0;
}
