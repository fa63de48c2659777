/**
 * A stand-in for the token server of a registry. A real registry verifies the signatures of its tokens. Every client is allowed to pull
 * from `public/`. The only user gets all requested rights.
 */
import { createPrivateKey, sign, X509Certificate } from 'node:crypto';
import { once } from 'node:events';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { createServer, type Server } from 'node:https';
import type { AddressInfo } from 'node:net';
import { text } from 'node:stream/consumers';
import type { Authority } from '../../hack/cluster/authority.ts';
import { PASSWORD, serverCertificate, USER } from './registry.ts';

const SERVICE = 'tests';
const ISSUER = 'berth tests';
const REFRESH_TOKEN = 'identity-of-berth';

interface Access {
  type: string;
  name: string;
  actions: string[];
}

export class TokenServer {
  readonly #server: Server;
  readonly #pair: { key: string; cert: string };
  /** Granted scopes of each issued token. */
  readonly given: Access[][] = [];
  /** Lifetime of new tokens in seconds. The registry accepts a token for another minute. */
  seconds = 300;
  /** Whether new tokens expired two minutes ago, although the reply names a later time. */
  givesExpired = false;

  private constructor(server: Server, pair: { key: string; cert: string }) {
    this.#server = server;
    this.#pair = pair;
    server.on('request', (incoming, response) => {
      this.#answer(incoming, response).catch((error: unknown) => response.destroy(error as Error));
    });
  }

  static async start(authority: Authority): Promise<TokenServer> {
    const pair = await serverCertificate(authority);
    const server = createServer(pair).listen(0, '127.0.0.1');
    await once(server, 'listening');
    return new TokenServer(server, pair);
  }

  get host(): string {
    return `127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  /** Settings for the registry's configuration. */
  get settings(): { realm: string; service: string; issuer: string } {
    return { realm: `https://${this.host}/token`, service: SERVICE, issuer: ISSUER };
  }

  /** Returns the content of a pull secret with an identity token for a registry. */
  identityTokenConfig(registry: string): string {
    return JSON.stringify({ auths: { [registry]: { identitytoken: REFRESH_TOKEN } } });
  }

  async close(): Promise<void> {
    const closed = once(this.#server, 'close');
    this.#server.close();
    this.#server.closeAllConnections();
    await closed;
  }

  async #answer(incoming: IncomingMessage, response: ServerResponse): Promise<void> {
    const query = new URL(incoming.url ?? '', 'https://host').searchParams;
    const form = incoming.method === 'POST' ? new URLSearchParams(await text(incoming)) : query;
    const basic = `Basic ${Buffer.from(`${USER}:${PASSWORD}`).toString('base64')}`;
    const { authorization } = incoming.headers;
    const isKnown = authorization === basic || form.get('refresh_token') === REFRESH_TOKEN;
    if (form.get('service') !== SERVICE || (authorization !== undefined && !isKnown)) {
      response.writeHead(401, { 'content-type': 'application/json' });
      response.end('{"errors":[{"code":"UNAUTHORIZED","message":"incorrect username or password"}]}');
      return;
    }
    const access = form
      .getAll('scope')
      .flatMap((scopes) => scopes.split(' '))
      .map(parseScope);
    const granted = access.map((each) => (isKnown ? each : anonymously(each)));
    this.given.push(granted);
    response.setHeader('content-type', 'application/json');
    const token = this.#token(granted, isKnown ? USER : '');
    response.end(JSON.stringify({ token, expires_in: this.seconds }));
  }

  #token(access: Access[], subject: string): string {
    const now = Math.floor(Date.now() / 1000);
    const until = this.givesExpired ? now - 120 : now + this.seconds;
    const certificate = new X509Certificate(this.#pair.cert).raw.toString('base64');
    const header = { typ: 'JWT', alg: 'ES256', x5c: [certificate] };
    const claims = { iss: ISSUER, sub: subject, aud: SERVICE, nbf: now - 600, iat: now, exp: until, access };
    const signed = [header, claims]
      .map((part) => Buffer.from(JSON.stringify(part)).toString('base64url'))
      .join('.');
    const key = { key: createPrivateKey(this.#pair.key), dsaEncoding: 'ieee-p1363' as const };
    return `${signed}.${sign('sha256', Buffer.from(signed), key).toString('base64url')}`;
  }
}

function parseScope(scope: string): Access {
  const [type = '', name = '', actions = ''] = scope.split(':');
  return { type, name, actions: actions.split(',') };
}

function anonymously(access: Access): Access {
  const actions = access.name.startsWith('public/')
    ? access.actions.filter((action) => action === 'pull')
    : [];
  return { ...access, actions };
}
