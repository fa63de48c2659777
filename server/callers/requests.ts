/** Gives the handlers of all routes the caller of their request. */
import type { App } from '../http/app.ts';
import { type Caller, type CallerClient, type Callers, tokenOf } from './caller.ts';

declare module 'fastify' {
  interface FastifyRequest {
    /** Returns the client with the rights of the caller. @throws StatusError 401 without a bearer token. */
    caller: () => CallerClient;
    /** Returns the client and the watches with the rights of the caller. @throws StatusError 401 without a bearer token. */
    fullCaller: () => Caller;
  }
}

/**
 * Adds the caller to each request. Refuses a request without a token before its body is read, unless the schema of the route says
 * `security: []`.
 */
export function addCallers(app: App, callers: Callers): void {
  app.decorateRequest('caller');
  app.decorateRequest('fullCaller');
  app.addHook('onRequest', (request, _reply, next) => {
    request.caller = () => callers.clientOf(request.headers);
    request.fullCaller = () => callers.callerOf(request.headers);
    const { schema } = request.routeOptions;
    if (schema !== undefined && schema.security?.length !== 0) {
      tokenOf(request.headers);
    }
    next();
  });
}
