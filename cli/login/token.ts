/** Shows and stores the token of the user. */
import { causeOfRefusal } from '../../api/http/refusedtoken.ts';
import { TokenSource } from '../../kube/tokensource.ts';
import { connect } from '../cluster.ts';
import { CommandError, EXIT } from '../errors.ts';
import type { Globals } from '../globals.ts';
import { print } from '../output.ts';
import { readPassword } from '../password.ts';
import { readSettings } from '../config/settingsfile.ts';
import type { Terminal } from '../terminal.ts';
import { changeKubeconfig } from './kubeconfig.ts';
import { entriesFor } from './login.ts';
import { placeOf } from './place.ts';
import { replaceSession, sessionFile } from './session.ts';
import { type TargetFlags, targetOf } from './target.ts';

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
