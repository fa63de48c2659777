/** Adds the caller to each request, so that the handlers of all routes can act with the caller's rights. */
import type { FastifyRequest } from 'fastify';
import { keepConnection } from '../../kube/serving/connections.ts';
import type { App } from '../http/app.ts';
import { StatusError } from '../http/errors.ts';
import { type Caller, type CallerClient, type Callers, tokenOf } from './caller.ts';
import { causeOfRefusal, type SignInProvider } from '../../api/http/refusedtoken.ts';

declare module 'fastify' {
  interface FastifyRequest {
    /** Returns the client with the rights of the caller. @throws StatusError 401 when the request has no bearer token. */
    caller: () => CallerClient;
    /** Returns the client and the watches with the rights of the caller. @throws StatusError 401 when the request has no bearer token. */
    fullCaller: () => Caller;
    /**
     * Controller whose signal aborts when the text of the answer is ready, or when the client has closed the connection. It is absent if
     * the router refuses the request.
     */
    end?: AbortController;
  }
}

const GONE = new StatusError(408, 'The client closed the connection');

/**
 * Adds the caller to each request. A request without a token that the API server knows is refused before its body is read, unless the schema
 * of its route has `security: []`.
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
      request.owner = async () => await request.caller().username();
    }
    next();
  });
  // The text of the answer is complete now, so the objects of the answer no longer count in the memory limit of lists. The text counts in
  // the limit of unread answers (answers.ts) until the client has read it.
  app.addHook('onSend', (request, _reply, _payload, next) => {
    request.end?.abort();
    next();
  });
  app.addHook('preParsing', async (request) => {
    const username = await request.owner?.();
    if (username !== undefined) {
      request.username = username;
      keepConnection(request.socket, username);
    }
  });
}

function needsToken({ routeOptions: { schema } }: FastifyRequest): boolean {
  return schema !== undefined && schema.security?.length !== 0;
}

const CREDENTIALS = /^Bearer +(?:Bearer +)?([^ ].*)$/i;

/** Adds the header `WWW-Authenticate` to every answer with status 401. */
export function addChallenges(app: App, signIn: SignInProvider): void {
  app.addHook('onSend', (request, reply, _payload, next) => {
    if (reply.statusCode === 401) {
      void reply.header('www-authenticate', challengeOf(request.headers.authorization, signIn));
    }
    next();
  });
}

/**
 * Returns the value of the header `WWW-Authenticate` for a refused request. `authorization` is the value of the request's header
 * `Authorization`. `now` is in milliseconds since 1970.
 */
export function challengeOf(
  authorization: string | undefined,
  signIn: SignInProvider,
  now = Date.now(),
): string {
  const token = CREDENTIALS.exec(authorization ?? '')?.[1];
  if (token === undefined) {
    return 'Bearer';
  }
  const cause = causeOfRefusal(token, signIn, now / 1000);
  const description = cause === undefined ? '' : `, error_description="${cause}"`;
  return `Bearer error="invalid_token"${description}`;
}
