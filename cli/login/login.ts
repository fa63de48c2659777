/** Signs in at the identity provider of the cluster. */
import { CommandError, EXIT } from '../errors.ts';
import type { Globals } from '../globals.ts';
import { print } from '../output.ts';
import { readSettings } from '../config/settingsfile.ts';
import type { Terminal } from '../terminal.ts';
import { printable } from '../text.ts';
import { browserCommand, opener } from './browser.ts';
import { signInByBrowser, signInByDevice } from './flows.ts';
import { changeKubeconfig, type ContextEntries, readKubeconfig, SESSION_FLAG } from './kubeconfig.ts';
import { type Place, placeOf } from './place.ts';
import { type Address, type OpenIDProvider, scopesFor, withProvider } from './provider.ts';
import { userOf } from './review.ts';
import { selfCommand } from './self.ts';
import { replaceSession, sessionFields, sessionFile, type Tokens } from './session.ts';
import { type ServerAddress, type Target, type TargetFlags, targetOf } from './target.ts';

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
export function entriesFor({ address, namespace }: Target, user: ContextEntries['user']): ContextEntries {
  return { cluster: clusterEntry(address), user, namespace };
}

function addressIn({ issuer, clientID, authority }: Target): Address {
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
  { scopes, deviceFlow }: Target,
  isDevice: boolean | undefined,
): Promise<Tokens> {
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
  done: { place: Place; user: string; target: Target; hasRefresh: boolean },
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
