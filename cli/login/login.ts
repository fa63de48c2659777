/** Signs in at the identity provider of the cluster. */
import { access, constants } from 'node:fs/promises';
import { isSea } from 'node:sea';
import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import { spawn } from 'node:child_process';
import { CommandError, EXIT, explained } from '../errors.ts';
import type { Globals } from '../globals.ts';
import { print } from '../output.ts';
import { type Environment, readSettings } from '../settingsfile.ts';
import type { Terminal } from '../terminal.ts';
import { printable } from '../text.ts';
import { changeKubeconfig, type ContextEntries, readKubeconfig, SESSION_FLAG } from './kubeconfig.ts';
import {
  type ContextPlace,
  type LoginTokens,
  placeOf,
  replaceSession,
  sessionFields,
  sessionFile,
} from './session.ts';
import { type Address, scopesFor, tokensOf, withProvider } from './provider.ts';
import { type LoginTarget, type ServerAddress, type TargetFlags, targetOf } from './target.ts';
import type { OpenIDProvider } from '../../actions/identityprovider.ts';
import { causeOfRefusal, type SignInProvider } from '../../api/http/refusedtoken.ts';
import { VERSION } from '../../api/v1alpha1/version.ts';
import { apiErrorFrom } from '../../kube/errors.ts';

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
async function signInByBrowser(
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
async function signInByDevice(
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

const CALLBACK_PATH = '/callback';
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
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}${CALLBACK_PATH}`;
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
    if (request.method !== 'GET' || !isOwn || url?.pathname !== CALLBACK_PATH) {
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
function opener(command: readonly string[]): OpenBrowser {
  const [program = '', ...args] = command;
  return (address) => {
    const child = spawn(program, [...args, address], { stdio: 'ignore', detached: true });
    child.on('error', () => undefined);
    child.unref();
  };
}

export interface LoginFlags extends TargetFlags {
  /** Whether to show a code instead of opening a browser. */
  readonly device?: boolean;
}

/**
 * Signs in, and then writes two files: the session, and the kubeconfig with a context that uses the session. If the API server refuses the
 * user, writes neither file.
 *
 * @throws CommandError.
 */
export async function login(terminal: Terminal, globals: Globals, flags: LoginFlags): Promise<void> {
  const { signal } = terminal;
  const settings = await readSettings(terminal.environment);
  const place = placeOf(terminal, globals, settings);
  // The person must learn about a mistake in the kubeconfig before the sign-in.
  (await readKubeconfig(place.file)).checkOwn(place.context);
  const target = await targetOf(terminal, { place, settings, flags });
  const address = addressIn(target);
  const tokens = await withProvider(
    address,
    terminal,
    async (provider) => await signIn(terminal, provider, target, flags.device),
  );
  const user = await userOf(target.address, tokens.idToken, address, signal);
  const session = sessionFile(terminal, place);
  await replaceSession(session, { ...address, ...sessionFields(tokens) }, signal);
  const entries = entriesFor(target, { exec: await pluginFor(session) });
  await changeKubeconfig(place.file, signal, (kubeconfig) => kubeconfig.setContext(place.context, entries));
  await reportUser(terminal, globals, { place, user, target, hasRefresh: tokens.refreshToken !== undefined });
}

/** Returns the cluster, user and namespace that the command writes into the kubeconfig for a context. */
export function entriesFor(
  { address, namespace }: LoginTarget,
  user: ContextEntries['user'],
): ContextEntries {
  return { cluster: clusterEntry(address), user, namespace };
}

function addressIn({ issuer, clientID, authority }: LoginTarget): Address {
  if (issuer === undefined) {
    throw new CommandError(
      'The cluster does not name an identity provider. Name one with --issuer and --client-id, or use the token of a service account: berth user set-token TOKEN',
      EXIT.usage,
    );
  }
  if (clientID === undefined) {
    throw new CommandError(
      'With --client-id, give the ID of the client that is registered at the identity provider',
      EXIT.usage,
    );
  }
  return { issuer, clientID, ...(authority !== undefined && { authority }) };
}

async function signIn(
  { err, environment, signal }: Terminal,
  provider: OpenIDProvider,
  { scopes, deviceFlow }: LoginTarget,
  isDevice: boolean | undefined,
): Promise<LoginTokens> {
  const prompt = { scope: scopesFor(provider, scopes), say: err, signal };
  const browser = browserCommand(environment);
  const offersCodes =
    deviceFlow && provider.configuration.serverMetadata().device_authorization_endpoint !== undefined;
  if (isDevice === true && !offersCodes) {
    throw new CommandError('The identity provider offers no codes for devices. Sign in without --device');
  }
  if (isDevice === true || (isDevice === undefined && browser === undefined && offersCodes)) {
    return await signInByDevice(provider, prompt);
  }
  return await signInByBrowser(provider, prompt, browser === undefined ? () => undefined : opener(browser));
}

async function pluginFor(session: string): Promise<Record<string, unknown>> {
  const [command, ...args] = await selfCommand();
  return {
    apiVersion: 'client.authentication.k8s.io/v1',
    command,
    args: [...args, 'credential', SESSION_FLAG, session],
    interactiveMode: 'Never',
    provideClusterInfo: false,
    installHint: 'Install the command berth, and sign in again: berth login',
  };
}

function clusterEntry({ server, certificateAuthority, serverName }: ServerAddress): Record<string, string> {
  return {
    server,
    ...(certificateAuthority !== undefined && {
      'certificate-authority-data': Buffer.from(certificateAuthority).toString('base64'),
    }),
    ...(serverName !== undefined && { 'tls-server-name': serverName }),
  };
}

async function reportUser(
  terminal: Terminal,
  { output }: Globals,
  done: { place: ContextPlace; user: string; target: LoginTarget; hasRefresh: boolean },
): Promise<void> {
  const { place, user, target, hasRefresh } = done;
  if (output === 'table' || output === 'wide') {
    const life = hasRefresh
      ? ''
      : '. The identity provider gave no refresh token, so sign in again when your token has expired';
    terminal.out(
      `Signed in as ${printable(user)}. The context "${place.context}" of ${place.file} is now the current context${life}\n`,
    );
    return;
  }
  await print(terminal, output, {
    rows: [{ name: place.context, user, server: target.address.server, kubeconfig: place.file }],
    columns: [],
    itemOf: (row) => row,
  });
}

const PATH = '/apis/authentication.k8s.io/v1/selfsubjectreviews';

/**
 * Returns the name of the token's user. `signIn` is the identity provider that gave the token.
 *
 * @throws CommandError that names the next step, when the API server refuses the token or does not answer; ApiError.
 */
async function userOf(
  address: ServerAddress,
  token: string,
  signIn: SignInProvider,
  signal: AbortSignal,
): Promise<string> {
  const [{ Transport }, { Registry }] = await Promise.all([
    import('../../kube/transport.ts'),
    import('prom-client'),
  ]);
  const { server, certificateAuthority, serverName } = address;
  const connection = { server, certificateAuthority, serverName, token };
  const transport = new Transport(connection, { metrics: new Registry(), userAgent: `berth/${VERSION}` });
  try {
    const review = { apiVersion: 'authentication.k8s.io/v1', kind: 'SelfSubjectReview' };
    const { status, body } = await transport.request({ method: 'POST', path: PATH, body: review, signal });
    if (status === 401) {
      const cause = causeOfRefusal(token, signIn) ?? UNKNOWN_CAUSE;
      throw new CommandError(
        `Unauthorized: the API server ${server} refuses your token. ${cause}`,
        EXIT.denied,
      );
    }
    if (status !== 201) {
      throw apiErrorFrom(body, status);
    }
    return nameIn(body);
  } catch (error) {
    throw explained(error, `API server ${server}`, 'the kubeconfig');
  } finally {
    await transport.close();
  }
}

/** Next step for the user if the token does not show why the API server refused it. */
const UNKNOWN_CAUSE =
  'Ask an admin to compare issuer, client ID and groups of the identity provider with the configuration of the API server';

function nameIn(review: unknown): string {
  const { status } = review as { status?: { userInfo?: { username?: unknown } } };
  const name = status?.userInfo?.username;
  return typeof name === 'string' ? name : '';
}

/**
 * Returns the program and its first arguments. If the script of this command is executable, the program is the script and not Node.js. An
 * update of Node.js can change the path of Node.js, but not the path of the script.
 */
async function selfCommand(): Promise<readonly [string, ...string[]]> {
  const [, file = ''] = process.argv;
  if (isSea()) {
    return [process.execPath];
  }
  const isProgram = await access(file, constants.X_OK).then(
    () => true,
    () => false,
  );
  return isProgram ? [file] : [process.execPath, file];
}
