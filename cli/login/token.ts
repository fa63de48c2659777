/** Shows and stores the token of the user. */
import { causeOfRefusal } from '../../api/http/refusedtoken.ts';
import { TokenSource } from '../../kube/tokensource.ts';
import { connect } from '../cluster.ts';
import { CommandError, EXIT, Interrupted } from '../errors.ts';
import type { Globals } from '../globals.ts';
import { print } from '../output.ts';
import { readPassword } from '../password.ts';
import { readSettings } from '../settingsfile.ts';
import type { Terminal } from '../terminal.ts';
import { changeKubeconfig } from './kubeconfig.ts';
import { entriesFor } from './login.ts';
import {
  placeOf,
  readSession,
  removeSession,
  replaceSession,
  type LoginSession,
  sessionFile,
  withSessionLock,
} from './session.ts';
import { type TargetFlags, targetOf } from './target.ts';
import { undefinedIf } from '../../base/errors.ts';
import { printable } from '../text.ts';
import { withProvider } from './provider.ts';

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
