/** The two ways to sign in at an identity provider. */
import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import { spawn } from 'node:child_process';
import { CommandError, EXIT } from '../errors.ts';
import { printable } from '../text.ts';
import { type OpenIDProvider, tokensOf } from './provider.ts';
import type { LoginTokens } from './session.ts';
import type { Environment } from '../settingsfile.ts';

/**
 * Time limit for a sign-in. The limit is long, because people might have to find a password and a second factor. The code for a device can
 * expire before this limit.
 */
const SIGN_IN_MILLISECONDS = 600_000;

export interface Prompt {
  /** Scopes, separated by spaces. */
  readonly scope: string;
  /** Writes a text for the person who signs in. */
  readonly say: (text: string) => void;
  readonly signal: AbortSignal;
}

/**
 * Signs in with a browser on this computer. Uses the authorization code flow of OAuth with PKCE. Resolves with the tokens.
 *
 * @throws CommandError; errors of the library.
 */
export async function signInByBrowser(
  { oidc, configuration }: OpenIDProvider,
  { scope, say, signal }: Prompt,
  openBrowser: OpenBrowser,
): Promise<LoginTokens> {
  const [verifier, state, nonce] = [oidc.randomPKCECodeVerifier(), oidc.randomState(), oidc.randomNonce()];
  await using loopback = await Loopback.open(state);
  const { href } = oidc.buildAuthorizationUrl(configuration, {
    redirect_uri: loopback.address,
    scope,
    state,
    nonce,
    code_challenge: await oidc.calculatePKCECodeChallenge(verifier),
    code_challenge_method: 'S256',
    // Providers give refresh tokens only if the person consents (OpenID Connect Core, section 11). Therefore the provider must ask for
    // consent.
    prompt: 'consent',
  });
  say(`Sign in with a browser on this computer. If no browser opens, open this address:\n\n  ${href}\n\n`);
  openBrowser(href);
  const { url, end } = await loopback.arrival(withLimit(signal));
  let isDone = false;
  try {
    const answer = await oidc.authorizationCodeGrant(configuration, url, {
      pkceCodeVerifier: verifier,
      expectedState: state,
      expectedNonce: nonce,
      idTokenExpected: true,
    });
    isDone = true;
    return tokensOf(answer);
  } finally {
    end(isDone);
  }
}

/**
 * Signs in with a browser on any computer. The person enters a code in the browser. Resolves with the tokens.
 *
 * @throws CommandError; errors of the library.
 */
export async function signInByDevice(
  { oidc, configuration }: OpenIDProvider,
  { scope, say, signal }: Prompt,
): Promise<LoginTokens> {
  const device = await oidc.initiateDeviceAuthorization(configuration, { scope });
  const address = device.verification_uri_complete ?? device.verification_uri;
  if (URL.parse(address)?.protocol !== 'https:') {
    throw new CommandError('The identity provider gave a sign-in address that is not https');
  }
  const code = printable(device.user_code);
  say(
    `Sign in with a browser on any computer. Enter the code ${code}, or check that the page shows this code. Open this address:\n\n  ${printable(address)}\n\n`,
  );
  const limited = withLimit(signal);
  try {
    const options = { signal: limited };
    return tokensOf(await oidc.pollDeviceAuthorizationGrant(configuration, device, undefined, options));
  } catch (error) {
    throw limited.aborted ? limited.reason : error;
  }
}

/** Returns a signal that aborts when `signal` aborts, or when the time limit for a sign-in is over. */
function withLimit(signal: AbortSignal): AbortSignal {
  const late = new AbortController();
  const minutes = SIGN_IN_MILLISECONDS / 60_000;
  const error = new CommandError(`Nobody signed in within ${minutes} minutes. Sign in again`, EXIT.noAnswer);
  setTimeout(() => late.abort(error), SIGN_IN_MILLISECONDS).unref();
  return AbortSignal.any([signal, late.signal]);
}

const PATH = '/callback';
/** Time limit for a browser to send its request, or to read the response of this server. */
const REQUEST_MILLISECONDS = 10_000;
/** Largest number of connections. A browser opens two or three connections, so many more can only come from other programs. */
const CONNECTIONS = 8;
const HEADERS = {
  'content-type': 'text/html; charset=utf-8',
  'content-security-policy': "default-src 'none'",
  'cache-control': 'no-store',
  'referrer-policy': 'no-referrer',
  connection: 'close',
};

interface Arrival {
  /** URL of the browser's request. The query of the URL contains the provider's answer. */
  readonly url: URL;
  /** Answers the browser with a page about the result of the sign-in. */
  readonly end: (isDone: boolean) => void;
}

export class Loopback implements AsyncDisposable {
  readonly #server: Server;
  readonly #state: string;
  readonly #arrival = Promise.withResolvers<Arrival>();
  readonly #sockets = new Set<Socket>();
  /** Connection of the browser. It is undefined until the browser brings the answer of the provider. */
  #taken: Socket | undefined;

  private constructor(state: string) {
    this.#state = state;
    this.#server = createServer({ requestTimeout: REQUEST_MILLISECONDS }, (request, response) =>
      this.#take(request, response),
    );
    this.#server.maxConnections = CONNECTIONS;
    this.#server.on('connection', (socket: Socket) => {
      this.#sockets.add(socket);
      socket.once('close', () => this.#sockets.delete(socket));
    });
    // This listener prevents an unhandled rejection when no caller waits for the browser's request.
    this.#arrival.promise.catch(() => undefined);
  }

  /**
   * Listens on a free port. Only a request with this `state` counts as the answer of the identity provider, because only this provider and
   * the user's browser know the `state`.
   */
  static async open(state: string): Promise<Loopback> {
    const loopback = new Loopback(state);
    loopback.#server.listen(0, '127.0.0.1');
    await once(loopback.#server, 'listening');
    return loopback;
  }

  /** Address to which the provider sends the browser. */
  get address(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}${PATH}`;
  }

  /** Resolves with the request of the browser. @throws the signal's reason when the signal aborts. */
  async arrival(signal: AbortSignal): Promise<Arrival> {
    const onAbort = () => this.#arrival.reject(signal.reason as Error);
    signal.addEventListener('abort', onAbort, { once: true });
    if (signal.aborted) {
      onAbort();
    }
    try {
      return await this.#arrival.promise;
    } finally {
      signal.removeEventListener('abort', onAbort);
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const closed = once(this.#server, 'close');
    this.#server.close();
    for (const socket of this.#sockets) {
      // Browsers also keep unused connections open. This loop closes them, because the server cannot close before all its connections are
      // closed.
      if (socket !== this.#taken) {
        socket.destroy();
      }
    }
    // A browser that does not read the response must not delay the end of the command for long.
    setTimeout(() => this.#taken?.destroy(), REQUEST_MILLISECONDS).unref();
    await closed;
  }

  #take(request: IncomingMessage, response: ServerResponse): void {
    const url = URL.parse(request.url ?? '', this.address);
    const isOwn = request.headers.host === new URL(this.address).host;
    if (request.method !== 'GET' || !isOwn || url?.pathname !== PATH) {
      answer(response, 404, 'There is nothing here.');
    } else if (url.searchParams.get('state') !== this.#state || this.#taken) {
      // Other pages and programs can guess the port, but not the state. Their requests do not end the sign-in.
      answer(response, 400, 'This address does not belong to a sign-in that is under way.');
    } else {
      this.#taken = request.socket;
      this.#arrival.resolve({
        url,
        end: (isDone) =>
          isDone
            ? answer(response, 200, 'You are signed in. You can close this window.')
            : answer(response, 400, 'The sign-in failed. The terminal shows the reason.'),
      });
    }
  }
}

function answer(response: ServerResponse, status: number, message: string): void {
  response.writeHead(status, HEADERS).end(`<!doctype html><title>berth</title><p>${message}</p>\n`);
}

/**
 * Opens an address in a browser. The function must not throw. If no browser opens, the user can still open the address that the terminal
 * shows.
 */
type OpenBrowser = (address: string) => void;

/**
 * Returns the program that opens an address in a browser, and the arguments of this program. The result is undefined if the user has no
 * browser on this computer, for example on a server or in a session over SSH.
 */
export function browserCommand(
  { BROWSER: own = '', SSH_CONNECTION: remote, DISPLAY: display, WAYLAND_DISPLAY: wayland }: Environment,
  platform: string = process.platform,
): readonly string[] | undefined {
  const [first = ''] = own.split(':');
  if (first.trim() !== '') {
    return first.trim().split(/\s+/);
  }
  if (remote) {
    return undefined;
  }
  if (platform === 'darwin') {
    return ['open'];
  }
  if (platform === 'win32') {
    return ['rundll32', 'url.dll,FileProtocolHandler'];
  }
  return display || wayland ? ['xdg-open'] : undefined;
}

/** Returns a function that starts the program with an address. The function uses no shell. The browser can run longer than this command. */
export function opener(command: readonly string[]): OpenBrowser {
  const [program = '', ...args] = command;
  return (address) => {
    const child = spawn(program, [...args, address], { stdio: 'ignore', detached: true });
    child.on('error', () => undefined);
    child.unref();
  };
}
