/** The commands with which users sign in and out. */
import { type Command, InvalidArgumentError } from 'commander';
import { BooleanFlag } from '../flags.ts';
import type { Globals } from '../globals.ts';
import { API_URL_FORM, parseApiURL, readSettings } from '../settingsfile.ts';
import type { Terminal } from '../terminal.ts';
import { entriesFor, type LoginFlags } from './login.ts';
import { type TargetFlags, targetOf } from './target.ts';
import { causeOfRefusal } from '../../api/http/refusedtoken.ts';
import { TokenSource } from '../../kube/tokensource.ts';
import { connect } from '../cluster.ts';
import { CommandError, EXIT, Interrupted } from '../errors.ts';
import { print } from '../output.ts';
import { readPassword } from '../prompt.ts';
import { changeKubeconfig } from './kubeconfig.ts';
import {
  isFresh,
  type LoginSession,
  placeOf,
  readSession,
  removeSession,
  replaceSession,
  sessionFields,
  sessionFile,
  withSessionLock,
  writeSession,
} from './session.ts';
import { undefinedIf } from '../../base/errors.ts';
import { printable } from '../text.ts';
import { tokensOf, withProvider } from './provider.ts';

const API_VERSIONS = ['client.authentication.k8s.io/v1', 'client.authentication.k8s.io/v1beta1'];

/**
 * Reads the session in `file`, and writes its ID token to the standard output. If necessary, renews the session first.
 *
 * @throws CommandError that names the next step; the signal's reason when the signal aborts.
 */
export async function credential(terminal: Terminal, file: string): Promise<void> {
  const { environment, out } = terminal;
  const apiVersion = versionIn(environment['KUBERNETES_EXEC_INFO']);
  const { idToken: token, end } = await freshSession(file, terminal);
  const status = { token, expirationTimestamp: new Date(end).toISOString() };
  out(`${JSON.stringify({ apiVersion, kind: 'ExecCredential', status })}\n`);
}

/**
 * Returns the API version in `request`. The program that started this command gives `request` in the variable `KUBERNETES_EXEC_INFO`. If
 * there is no `request`, returns the newest version.
 *
 * @throws CommandError for an unknown version.
 */
function versionIn(request = JSON.stringify({ apiVersion: API_VERSIONS[0] })): string {
  let version: unknown;
  try {
    ({ apiVersion: version } = JSON.parse(request) as { apiVersion?: unknown });
  } catch {
    version = undefined;
  }
  const known = API_VERSIONS.find((candidate) => candidate === version);
  if (known === undefined) {
    throw new CommandError(
      `KUBERNETES_EXEC_INFO must have the apiVersion ${API_VERSIONS.join(' or ')}`,
      EXIT.usage,
    );
  }
  return known;
}

/** Signal and environment of the command that needs the session. */
type Caller = Pick<Terminal, 'signal' | 'environment'>;

/**
 * Returns the session in `file`, with an ID token that has not expired. Only one process at a time asks the provider, because many
 * providers accept a refresh token only once. The other processes find the new token in the file.
 *
 * @throws CommandError that names the next step; the signal's reason when the signal aborts.
 */
async function freshSession(file: string, terminal: Caller): Promise<LoginSession> {
  const known = await readSession(file);
  if (isFresh(known)) {
    return known;
  }
  return await withSessionLock(file, terminal.signal, async () => {
    const session = await readSession(file);
    return isFresh(session) ? session : await renewed(file, session, terminal);
  });
}

async function renewed(file: string, session: LoginSession, terminal: Caller): Promise<LoginSession> {
  const { refreshToken, issuer } = session;
  if (refreshToken === undefined) {
    throw new CommandError(
      `Your token has expired, and ${issuer} gave no refresh token. Sign in again`,
      EXIT.denied,
    );
  }
  const tokens = await withProvider(session, terminal, async ({ oidc, configuration }) =>
    tokensOf(await oidc.refreshTokenGrant(configuration, refreshToken)),
  );
  const next = { ...session, ...sessionFields(tokens, session) };
  await writeSession(file, next);
  return next;
}

/** Pattern of a bearer token in an HTTP header (RFC 6750). */
const TOKEN = /^[A-Za-z0-9._~+/-]+=*$/;
/** Argument that stands for a token on the standard input. */
const INPUT = '-';
/** Longest token in characters. With a longer token, the header would be too large for API servers. */
const TOKEN_CHARACTERS = 128 * 1024;

/**
 * Writes the token of the user and nothing else.
 *
 * @throws CommandError when there is no token, or when it has expired or is not valid yet.
 */
export async function getToken(terminal: Terminal, globals: Globals): Promise<void> {
  const token = await new TokenSource(await connect(terminal, globals)).token();
  if (token === undefined) {
    throw new CommandError(
      `The kubeconfig has no token, because it signs in with a certificate. Sign in: ${terminal.name} login`,
      EXIT.denied,
    );
  }
  const cause = causeOfRefusal(token, { clientID: '' });
  if (cause !== undefined) {
    throw new CommandError(cause, EXIT.denied);
  }
  terminal.out(`${token}\n`);
}

/** Stores a token for the context. Creates the context if it does not exist. @throws CommandError. */
export async function setToken(
  terminal: Terminal,
  globals: Globals,
  { token: typed, flags }: { token: string; flags: TargetFlags },
): Promise<void> {
  // The token can also come from the standard input, because other users of the computer can see the arguments of a command.
  const given =
    typed === INPUT
      ? await readPassword(terminal, true, { word: 'token', longest: TOKEN_CHARACTERS })
      : typed;
  const token = given.trim().replace(/^Bearer +/i, '');
  if (!TOKEN.test(token) || token.length > TOKEN_CHARACTERS) {
    // The message does not contain the token, because messages can get into logs.
    throw new CommandError(
      'TOKEN must be a bearer token: letters, digits and the characters ._~+/-=',
      EXIT.usage,
    );
  }
  const settings = await readSettings(terminal.environment);
  const place = placeOf(terminal, globals, settings);
  const target = await targetOf(terminal, { place, settings, flags });
  await changeKubeconfig(place.file, terminal.signal, (kubeconfig) =>
    kubeconfig.setContext(place.context, entriesFor(target, { token })),
  );
  await replaceSession(sessionFile(terminal, place), undefined, terminal.signal);
  const { output } = globals;
  if (output === 'table' || output === 'wide') {
    terminal.out(
      `Stored the token. The context "${place.context}" of ${place.file} is now the current context\n`,
    );
    return;
  }
  const row = { name: place.context, server: target.address.server, kubeconfig: place.file };
  await print(terminal, output, { rows: [row], columns: [], itemOf: (item) => item });
}

/** Removes the context and its session, even if the identity provider does not answer. @throws CommandError. */
export async function logout(terminal: Terminal, globals: Globals): Promise<void> {
  const { signal } = terminal;
  const place = placeOf(terminal, globals, await readSettings(terminal.environment));
  const wasThere = await changeKubeconfig(place.file, signal, (kubeconfig) =>
    kubeconfig.removeContext(place.context),
  );
  const file = sessionFile(terminal, place);
  const session = await withSessionLock(file, signal, async () => {
    const found = await undefinedIf((error) => error instanceof CommandError, readSession(file));
    await removeSession(file);
    return found;
  });
  const isRevoked = session === undefined || (await revoke(session, terminal));
  const { output } = globals;
  if (output === 'table' || output === 'wide') {
    const message = wasThere
      ? 'Signed out. Removed the context'
      : 'You were not signed in. There is no context';
    terminal.out(`${message} "${place.context}" of ${place.file}\n`);
  } else {
    const rows = wasThere ? [{ name: place.context, kubeconfig: place.file }] : [];
    await print(terminal, output, { rows, columns: [], itemOf: (row) => row });
  }
  if (!isRevoked) {
    terminal.err(
      `The command could not end the session at ${printable(session.issuer)}. Anyone who has a copy of the tokens can still use them\n`,
    );
  }
}

/** Asks the provider to make the refresh token invalid. Resolves with true if the provider did this, or if there is no refresh token. */
async function revoke(session: LoginSession, terminal: Terminal): Promise<boolean> {
  const { refreshToken } = session;
  if (refreshToken === undefined) {
    return true;
  }
  const work = withProvider(session, terminal, async ({ oidc, configuration }) => {
    const { revocation_endpoint: address } = configuration.serverMetadata();
    await (address && oidc.tokenRevocation(configuration, refreshToken));
    return address !== undefined;
  });
  const isFailure = (error: unknown) => error instanceof CommandError && !(error instanceof Interrupted);
  return (await undefinedIf(isFailure, work)) ?? false;
}

export function addLogin(command: Command, terminal: Terminal): void {
  addTargetFlags(command)
    .option('--issuer <url>', 'URL of the identity provider, if the HTTP API does not give one')
    .option(
      '--client-id <id>',
      'ID of the client at the identity provider, if the HTTP API does not give one',
    )
    .addOption(new BooleanFlag('--device', 'whether to show a code instead of opening a browser'))
    .action(async (flags: LoginFlags) => {
      const { login } = await import('./login.ts');
      await login(terminal, command.optsWithGlobals<Globals>(), flags);
    });
}

export function addLogout(command: Command, terminal: Terminal): void {
  command.action(async () => {
    await logout(terminal, command.optsWithGlobals<Globals>());
  });
}

export function addUserCommands(noun: Command, terminal: Terminal): void {
  addLogin(noun.command('login').description('Sign in at the identity provider of the cluster'), terminal);
  addLogout(noun.command('logout').description('Sign out'), terminal);
  const get = noun.command('get-token').description('Print the token of the user, and nothing else');
  get.action(async () => {
    await getToken(terminal, get.optsWithGlobals<Globals>());
  });
  const set = noun.command('set-token').description('Sign in with a token, for example of a service account');
  addTargetFlags(set.argument('<token>', 'bearer token, or - for the standard input')).action(
    async (token: string, flags: TargetFlags) => {
      await setToken(terminal, set.optsWithGlobals<Globals>(), { token, flags });
    },
  );
}

export function addCredential(command: Command, terminal: Terminal): void {
  command
    .requiredOption('--session <file>', 'file with the session of the user')
    .action(async ({ session }: { session: string }) => {
      await credential(terminal, session);
    });
}

function addTargetFlags(command: Command): Command {
  return command
    .option('--api-url <url>', 'HTTP API of Berth (default: the address in the settings)', parseAddress)
    .option('--server <url>', 'API server (default: the address from the HTTP API or the kubeconfig)')
    .option(
      '--certificate-authority <file>',
      'PEM file with the certificate of the private authority that signed the certificates of the HTTP API and the API server',
    );
}

function parseAddress(text: string): string {
  const address = parseApiURL(text);
  if (address === undefined) {
    throw new InvalidArgumentError(`It ${API_URL_FORM}.`);
  }
  return address;
}
