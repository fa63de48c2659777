/**
 * Adds the header `WWW-Authenticate` (RFC 6750) to answers with status 401. If the refused token itself shows why it is not valid, the
 * header contains this reason. The API server's own reason is not known here, because the API server only logs it. This file does not
 * decide about access.
 */
import { causeOfRefusal, type SignIn } from '../../api/http/refusedtoken.ts';
import type { App } from '../http/app.ts';

const CREDENTIALS = /^Bearer +(?:Bearer +)?([^ ].*)$/i;

/** Adds the header `WWW-Authenticate` to every answer with status 401. */
export function addChallenges(app: App, signIn: SignIn): void {
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
export function challengeOf(authorization: string | undefined, signIn: SignIn, now = Date.now()): string {
  const token = CREDENTIALS.exec(authorization ?? '')?.[1];
  if (token === undefined) {
    return 'Bearer';
  }
  const cause = causeOfRefusal(token, signIn, now / 1000);
  const description = cause === undefined ? '' : `, error_description="${cause}"`;
  return `Bearer error="invalid_token"${description}`;
}
