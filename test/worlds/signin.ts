/** People who sign in at a provider of tests, through its pages, with a client that a CLI would use. */
import * as client from 'openid-client';
import { Agent, fetch } from 'undici';
import { type IdentityProvider, CLIENT, REDIRECT, SCOPE } from './provider.ts';

/** Largest number of pages and redirects of one sign-in. A normal sign-in has eight. */
const STEPS = 20;
/** Interval in seconds at which a device asks whether its person has signed in. */
const POLL_SECONDS = 1;
/** Length of a page's beginning in an error message. */
const MESSAGE_CHARACTERS = 500;

/** Signs in with a browser: authorization code with PKCE. Returns the ID token. */
export async function signIn(
  provider: IdentityProvider,
  account: string,
  clientId = CLIENT,
): Promise<string> {
  await using session = await Session.open(provider, clientId);
  const verifier = client.randomPKCECodeVerifier();
  const state = client.randomState();
  const address = client.buildAuthorizationUrl(session.configuration, {
    redirect_uri: REDIRECT,
    scope: SCOPE,
    state,
    code_challenge: await client.calculatePKCECodeChallenge(verifier),
    code_challenge_method: 'S256',
  });
  const end = await session.visit(address, account);
  const tokens = await client.authorizationCodeGrant(session.configuration, end, {
    pkceCodeVerifier: verifier,
    expectedState: state,
  });
  return idToken(tokens.id_token);
}

/** Signs in with a code that a device shows. Returns the ID token. */
export async function signInByDevice(provider: IdentityProvider, account: string): Promise<string> {
  await using session = await Session.open(provider, CLIENT);
  const device = await client.initiateDeviceAuthorization(session.configuration, { scope: SCOPE });
  await session.visit(new URL(device.verification_uri_complete ?? ''), account);
  const tokens = await client.pollDeviceAuthorizationGrant(session.configuration, {
    ...device,
    interval: POLL_SECONDS,
  });
  return idToken(tokens.id_token);
}

/**
 * Fills the forms of the provider's pages as a browser of the person does, from the address that a program has opened. Returns the last
 * address. If the provider sends the browser to the program, it is the address of the program. If `cancels` is true, the person refuses.
 */
export async function visitPages(
  provider: IdentityProvider,
  address: string,
  { account, cancels = false }: { account: string; cancels?: boolean },
): Promise<URL> {
  await using session = await Session.open(provider, CLIENT);
  return await session.visit(new URL(address), account, cancels);
}

/** Returns whether the address is that of a program of the person, or of the console. */
function isClient({ protocol, pathname }: URL): boolean {
  return pathname === '/console/' || (protocol === 'http:' && pathname === new URL(REDIRECT).pathname);
}

function idToken(token: string | undefined): string {
  if (token === undefined) {
    throw new Error('the provider gave no ID token');
  }
  return token;
}

/** A client of the provider, and a browser without scripts that keeps cookies. */
class Session implements AsyncDisposable {
  readonly configuration: client.Configuration;
  readonly #agent: Agent;
  readonly #cookies = new Map<string, string>();

  private constructor(configuration: client.Configuration, agent: Agent) {
    this.configuration = configuration;
    this.#agent = agent;
  }

  static async open(provider: IdentityProvider, clientId: string): Promise<Session> {
    const agent = new Agent({ connect: { ca: provider.authority } });
    const customFetch = (async (url: string, options: object) =>
      await fetch(url, { ...options, dispatcher: agent })) as unknown as client.CustomFetch;
    const server = new URL(provider.issuer);
    const none = client.None();
    const configuration = await client.discovery(server, clientId, undefined, none, {
      [client.customFetch]: customFetch,
    });
    configuration[client.customFetch] = customFetch;
    return new Session(configuration, agent);
  }

  /** Fills the forms of all pages, and follows all redirects. Returns the address of the client, or of the page without a form. */
  async visit(start: URL, account: string, cancels = false): Promise<URL> {
    let address = start;
    let fields: URLSearchParams | undefined;
    for (let step = 0; step < STEPS; step += 1) {
      const { location, page } = await this.#get(address, fields);
      const form = cancels ? cancelOf(page) : formOf(page, account);
      const next = location === undefined ? form : { action: location, fields: undefined };
      if (next === undefined) {
        return address;
      }
      address = new URL(next.action, address);
      if (isClient(address)) {
        return address;
      }
      fields = next.fields;
    }
    throw new Error(`no end after ${STEPS} pages: ${address.href}`);
  }

  async #get(
    address: URL,
    form: URLSearchParams | undefined,
  ): Promise<{ location: string | undefined; page: string }> {
    const response = await fetch(address, {
      dispatcher: this.#agent,
      redirect: 'manual',
      headers: { cookie: [...this.#cookies].map(([name, value]) => `${name}=${value}`).join('; ') },
      ...(form !== undefined && { method: 'POST', body: form }),
    });
    for (const cookie of response.headers.getSetCookie()) {
      const [, name = '', value = ''] = /^([^=]+)=([^;]*)/.exec(cookie) ?? [];
      this.#cookies.set(name, value);
    }
    const page = await response.text();
    if (response.status >= 400) {
      throw new Error(`${address.pathname}: HTTP ${response.status} ${page.slice(0, MESSAGE_CHARACTERS)}`);
    }
    return { location: response.headers.get('location') ?? undefined, page };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#agent.close();
  }
}

/** Returns the address with which the person refuses. The result is undefined if the page has none. */
function cancelOf(page: string): { action: string; fields: undefined } | undefined {
  const [, action] = / href="([^"]*\/abort)"/.exec(page) ?? [];
  return action === undefined ? undefined : { action, fields: undefined };
}

/** Returns the form of a page with its values and the name of the account. The result is undefined if the page has none. */
function formOf(page: string, account: string): { action: string; fields: URLSearchParams } | undefined {
  const [, action, content = ''] = /<form[^>]* action="([^"]*)"[^>]*>([^]*?)<\/form>/.exec(page) ?? [];
  if (action === undefined) {
    return undefined;
  }
  const fields = new URLSearchParams();
  for (const [input] of content.matchAll(/<input[^>]*>/g)) {
    const [, name = ''] = / name="([^"]*)"/.exec(input) ?? [];
    const [, value] = / value="([^"]*)"/.exec(input) ?? [];
    fields.set(name, value ?? account);
  }
  return { action, fields };
}
