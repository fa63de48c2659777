/** Signs in at the identity provider of the cluster. */
import { access, constants } from 'node:fs/promises';
import { isSea } from 'node:sea';
import { CommandError, EXIT, explained } from '../errors.ts';
import type { Globals } from '../globals.ts';
import { print } from '../output.ts';
import { readSettings } from '../settingsfile.ts';
import type { Terminal } from '../terminal.ts';
import { printable } from '../text.ts';
import { browserCommand, opener, signInByBrowser, signInByDevice } from './flows.ts';
import { changeKubeconfig, type ContextEntries, readKubeconfig, SESSION_FLAG } from './kubeconfig.ts';
import {
  type ContextPlace,
  placeOf,
  replaceSession,
  sessionFields,
  sessionFile,
  type LoginTokens,
} from './session.ts';
import { type Address, type OpenIDProvider, scopesFor, withProvider } from './provider.ts';
import { type ServerAddress, type LoginTarget, type TargetFlags, targetOf } from './target.ts';
import { causeOfRefusal, type SignInProvider } from '../../api/http/refusedtoken.ts';
import { VERSION } from '../../api/v1alpha1/version.ts';
import { apiErrorFrom } from '../../kube/errors.ts';

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
