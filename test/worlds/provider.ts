/**
 * An OpenID Connect provider on loopback with TLS, with sign-in pages, device codes and keys that can be rotated. API server, clients
 * and browsers must trust its authority.
 */
import { createPrivateKey, generateKeyPair, type JsonWebKey, randomBytes, sign } from 'node:crypto';
import { once } from 'node:events';
import type { RequestListener } from 'node:http';
import { createServer, type Server } from 'node:https';
import { promisify } from 'node:util';
import { Provider } from 'oidc-provider';
import { createAuthority, issue } from '../../hack/cluster/authority.ts';
import { freePort } from '../../hack/cluster/ports.ts';
import { createKey } from '../../kube/certificates/certificate.ts';

/** Client of the CLI and of the tests. Tokens for other clients have another audience. */
export const CLIENT = 'berth';
export const OTHER_CLIENT = 'another-program';
/** Address to which native clients are redirected. The provider accepts every port of it. */
export const REDIRECT = 'http://127.0.0.1/callback';
/** Scopes whose claims are in the ID token. */
export const SCOPE = 'openid email groups';

const DEVICE_GRANT = 'urn:ietf:params:oauth:grant-type:device_code';
/** Smallest RSA keys that every library accepts. */
const RSA_BITS = 2048;
const HOUR_SECONDS = 3600;
/** Lifetimes of sessions, codes and grants in seconds. They are longer than each test. */
const TTL = Object.fromEntries(
  ['Interaction', 'Session', 'Grant', 'AccessToken', 'DeviceCode'].map((name) => [name, HOUR_SECONDS]),
);

export type Claims = Readonly<Record<string, unknown>>;
type SigningKey = JsonWebKey & { kid: string };

const generate = promisify(generateKeyPair);

export class IdentityProvider implements AsyncDisposable {
  /** Certificate of the authority as PEM. */
  readonly authority: string;
  readonly issuer: string;
  /** Lifetime of new ID tokens in seconds. */
  idTokenSeconds = HOUR_SECONDS;
  readonly #accounts: Readonly<Record<string, Claims>>;
  readonly #tls: { key: string; cert: string };
  readonly #port: number;
  readonly #cookieKey = randomBytes(16).toString('hex');
  #keys: SigningKey[] = [];
  /** Address to which web pages are redirected. Without one, the clients are programs of the person. */
  #page: string | undefined;
  #answer: RequestListener = (_, response) => response.destroy();
  #server: Server | undefined;

  private constructor(
    accounts: Readonly<Record<string, Claims>>,
    authority: string,
    tls: { key: string; cert: string },
    port: number,
  ) {
    this.#accounts = accounts;
    this.authority = authority;
    this.#tls = tls;
    this.#port = port;
    this.issuer = `https://127.0.0.1:${port}`;
  }

  /** Starts a provider with these accounts. Claims of an account come in addition to a verified email, NAME@berth.test. */
  static async start(accounts: Readonly<Record<string, Claims>>): Promise<IdentityProvider> {
    const authority = await createAuthority('identity provider');
    const key = await createKey();
    const cert = await issue(authority, {
      key,
      commonName: 'provider',
      ipAddresses: ['127.0.0.1'],
      usages: ['server'],
    });
    const tls = { key: key.pem, cert };
    const provider = new IdentityProvider(accounts, authority.certificate, tls, await freePort());
    await provider.rotateKeys();
    await provider.listen();
    return provider;
  }

  /** Begins to answer requests, also again after {@link close}. */
  async listen(): Promise<void> {
    const server = createServer(this.#tls, (request, response) => this.#answer(request, response));
    server.listen(this.#port, '127.0.0.1');
    await once(server, 'listening');
    this.#server = server;
  }

  /** Ends all connections and refuses new ones. Accounts and keys stay. */
  async close(): Promise<void> {
    const server = this.#server;
    this.#server = undefined;
    if (server !== undefined) {
      server.close();
      server.closeAllConnections();
      await once(server, 'close');
    }
  }

  /** Signs with a new key from now on, and forgets the earlier keys. */
  async rotateKeys(): Promise<void> {
    const { privateKey } = await generate('rsa', { modulusLength: RSA_BITS });
    const kid = randomBytes(4).toString('hex');
    this.#keys = [{ ...privateKey.export({ format: 'jwk' }), kid, use: 'sig', alg: 'RS256' }];
    this.#answer = new Provider(this.issuer, this.#configuration()).callback();
  }

  /** Makes the clients web pages with this address, or programs of the person again if it is undefined. Sessions and codes are lost. */
  registerPage(address: string | undefined): void {
    this.#page = address;
    this.#answer = new Provider(this.issuer, this.#configuration()).callback();
  }

  /** Returns the claims of an account's ID token. */
  claimsOf(account: string): Claims {
    return { sub: account, email: `${account}@berth.test`, email_verified: true, ...this.#accounts[account] };
  }

  /**
   * Returns an ID token that the provider itself would not issue, with its present key. `changes` replace claims of the account's token;
   * `undefined` removes a claim.
   */
  forge(account: string, changes: Claims): string {
    const [key] = this.#keys;
    const now = Math.floor(Date.now() / 1000);
    const times = { iat: now, exp: now + HOUR_SECONDS };
    const claims = { iss: this.issuer, aud: CLIENT, ...times, ...this.claimsOf(account), ...changes };
    const signed = [{ alg: 'RS256', typ: 'JWT', kid: key?.kid }, claims]
      .map((part) => Buffer.from(JSON.stringify(part)).toString('base64url'))
      .join('.');
    const signature = sign(
      'sha256',
      Buffer.from(signed),
      createPrivateKey({ key: key ?? {}, format: 'jwk' }),
    );
    return `${signed}.${signature.toString('base64url')}`;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  #configuration(): Record<string, unknown> {
    return {
      clients: [CLIENT, OTHER_CLIENT].map((id) => ({
        client_id: id,
        token_endpoint_auth_method: 'none',
        ...(this.#page === undefined
          ? { application_type: 'native', redirect_uris: [REDIRECT] }
          : { application_type: 'web', redirect_uris: [this.#page] }),
        grant_types: ['authorization_code', 'refresh_token', DEVICE_GRANT],
      })),
      scopes: ['openid', 'offline_access', 'email', 'groups'],
      claims: { openid: ['sub'], email: ['email', 'email_verified'], groups: ['groups'] },
      // With this setting, the claims are in the ID token. By default they are only in the answer of the userinfo endpoint, which no API
      // server uses.
      conformIdTokenClaims: false,
      features: {
        deviceFlow: { enabled: true },
        devInteractions: { enabled: true },
        revocation: { enabled: true },
      },
      pkce: { required: () => true },
      ttl: { ...TTL, IdToken: () => this.idTokenSeconds },
      jwks: { keys: this.#keys },
      cookies: { keys: [this.#cookieKey] },
      findAccount: (_: unknown, id: string) =>
        Object.hasOwn(this.#accounts, id) ? { accountId: id, claims: () => this.claimsOf(id) } : undefined,
    };
  }
}
